"""One JSON value per line: commands on standard input, replies on standard output, everything else on standard error."""

import json
import logging
import sys
import traceback


def serve(commands):
    """Answers each command ``{"do": NAME, ...}`` with ``{"ok": RESULT}``, or ``{"error": "CLASS: TEXT"}`` if it raised."""
    # Output of libraries must not mix with the replies.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": commands[command.pop("do")](**command)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def log_to_stderr(level=logging.INFO):
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
