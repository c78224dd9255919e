"""Runs command lines of the Python Nodepool, each in a forked process with all modules loaded."""

import os
import sys
import tempfile
import warnings

import lines

warnings.simplefilter("ignore")
from nodepool.cmd import nodepoolcmd  # noqa: E402


def run(words, folder, typed):
    """Standard output, standard error and exit status of the command line."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as notes:
        given.write(typed.encode())
        given.seek(0)
        child = os.fork()
        if child == 0:
            become(words, folder, [given, out, notes])
        _, status = os.waitpid(child, 0)
        texts = []
        for stream in (out, notes):
            stream.seek(0)
            texts.append(stream.read().decode())
        return {"out": texts[0], "notes": texts[1], "status": os.waitstatus_to_exitcode(status)}


def become(words, folder, streams):
    """Turns this process into the command; does not return."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))
        os.chdir(folder)
        os.environ["OS_CLIENT_CONFIG_FILE"] = os.path.join(folder, "clouds.yaml")
        sys.argv = ["nodepool", *words]
        try:
            status = nodepoolcmd.main()
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status or 0))


lines.serve({"run": run})
