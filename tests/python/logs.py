"""Output of Nodepool 11 with a logging file. A command has a file and records to log; each runs in a separate process.

Commands: {"do": "log", "directory": PATH, "file": NAME, "zone": TZ, "records": [[LOGGER, LEVEL, TEXT]]} returns standard
output and standard error, or the reason why the file was rejected; {"do": "rollovers", "zone": TZ, "cases": [[WHEN, INTERVAL, UTC, TIME]]}
returns the next rotation after each time.
"""

import json
import logging
import logging.handlers
import os
import subprocess
import sys
import time

import lines

CHILD = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
# Loggers that exist when the file is read.
import nodepool.cmd.launcher, nodepool.cmd.builder
from nodepool import logconfig
job = json.loads(sys.argv[1])
try:
    if job["file"] in ("default", "debug"):
        config = logconfig.ServerLoggingConfig()
        if job["file"] == "debug":
            config.setDebug()
    else:
        config = logconfig.load_config(job["file"])
    config.apply()
except Exception as error:
    sys.exit("refused: %s: %s" % (type(error).__name__, error))
for logger, level, text in job["records"]:
    logging.getLogger(logger).log(level, text)
"""


def log(directory, file, zone, records):
    job = json.dumps({"file": file, "records": records})
    environment = dict(os.environ, TZ=zone, PYTHONDONTWRITEBYTECODE="1")
    ended = subprocess.run([sys.executable, "-c", CHILD, job], cwd=directory, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(ended.stderr.strip().splitlines()[-1])
    return {"stdout": ended.stdout, "stderr": ended.stderr}


def rollovers(zone, cases):
    os.environ["TZ"] = zone
    time.tzset()
    found = []
    for when, interval, utc, moment in cases:
        handler = logging.handlers.TimedRotatingFileHandler(os.devnull, when, interval, utc=utc, delay=True)
        found.append(handler.computeRollover(moment))
    return found


lines.serve({"log": log, "rollovers": rollovers})
