"""AWS for tests: moto's server on loopback, with the methods that it lacks, faults, and a log of all calls.

usage: aws_peer.py PORT

It listens on 127.0.0.1 only; PORT 0 picks a free port. When it listens it prints `listening on http://127.0.0.1:PORT`.
It runs until SIGINT or SIGTERM. A test controls it with JSON over HTTP, below /moto-api/nodepool:

    GET, PUT knobs              settings (aws_knobs.py); PUT changes the keys that it names
    GET, PUT quotas             the section `quotas` of the knobs
    GET, POST, DELETE rules     faults (`Rule` in aws_faults.py); DELETE rules/ID removes one
    GET, DELETE calls           the log, with monotonic times; GET calls?action=NAME returns the calls of one action
    PUT instances/ID            {"state", "code", "message"}: the state of an instance from now on
    DELETE instances/ID         removes an instance from all listings

POST /moto-api/reset deletes all resources, rules and calls, and sets the knobs to their defaults.
"""

import json
import os
import signal
import sys
import urllib.parse

# Set before moto is imported. Without its own images, listings are short and the start is quick.
os.environ.update({
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
    "MOTO_ENABLE_AMI_VALIDATION": "true",
    "MOTO_ENABLE_KEYPAIR_VALIDATION": "true",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
})

from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

import aws_images
import aws_instances
import aws_quotas
import aws_tokens
from aws_faults import Faults, body, reply
from aws_knobs import KNOBS

CONTROL = "/moto-api/nodepool/"


class QuietHandler(MotoRequestHandler):
    """Does not print every request; the log of calls has them."""

    def log_request(self, *_):
        pass


class Control:
    """The paths for tests, in front of the faults and moto."""

    def __init__(self, faults):
        self.faults = faults

    def __call__(self, environ, start_response):
        path = environ.get("PATH_INFO", "/")
        if path == "/moto-api/reset":
            self.reset()
        if path.startswith("/moto-api/") and not path.startswith(CONTROL):
            return self.faults.application(environ, start_response)
        if not path.startswith(CONTROL):
            return self.faults(environ, start_response)
        try:
            text = body(environ)
            query = dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", "")))
            parts = path.removeprefix(CONTROL).split("/")
            answer = self.control(environ["REQUEST_METHOD"], parts, query, json.loads(text) if text else None)
        except Exception as error:
            return reply(start_response, 400, {"Content-Type": "text/plain"}, f"{type(error).__name__}: {error}\n")
        return reply(start_response, 200, {"Content-Type": "application/json"}, json.dumps(answer))

    def reset(self):
        KNOBS.reset()
        self.faults.reset()
        aws_tokens.ANSWERS.clear()
        aws_images.TASKS.clear()

    def control(self, method, parts, query, value):
        match method, *parts:
            case "GET", "knobs":
                return KNOBS.values
            case "PUT", "knobs":
                return KNOBS.change(value)
            case "GET", "quotas":
                return KNOBS["quotas"]
            case "PUT", "quotas":
                return KNOBS.change({"quotas": value})
            case "GET", "rules":
                return self.faults.described_rules()
            case "POST", "rules":
                return self.faults.add(value)
            case "DELETE", "rules":
                return self.faults.remove()
            case "DELETE", "rules", number:
                return self.faults.remove(int(number))
            case "GET", "calls":
                return self.faults.described_calls(query.get("action"))
            case "DELETE", "calls":
                return self.faults.forget_calls()
            case "PUT", "instances", instance_id:
                with self.faults.execution:
                    return aws_instances.set_state(backend_of(instance_id).get_instance(instance_id), **value)
            case "DELETE", "instances", instance_id:
                with self.faults.execution:
                    return aws_instances.forget(backend_of(instance_id), instance_id)
        raise ValueError(f"no such control: {method} {'/'.join(parts)}")


def backend_of(instance_id):
    """The region of an instance."""
    for backend in ec2_backends[DEFAULT_ACCOUNT_ID].values():
        if backend.get_instance_by_id(instance_id):
            return backend
    raise ValueError(f"no instance {instance_id}")


def stop(*_):
    sys.exit(0)


def main(port):
    aws_images.patch()
    aws_instances.patch()
    aws_quotas.patch()
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    application = Control(Faults(DomainDispatcherApplication(create_backend_app)))
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=QuietHandler)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
