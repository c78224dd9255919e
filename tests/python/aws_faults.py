"""WSGI middleware in front of moto: logs every call, and injects the faults of rules that a test sets."""

import http
import io
import itertools
import json
import socket
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

# Statuses of errors that AWS does not answer with 400.
STATUSES = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "AuthFailure": 403,
    "ExpiredToken": 403,
    "InternalError": 500,
    "InternalServerException": 500,
    "InvalidClientTokenId": 403,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
}
# Parts of a signature, which are not logged.
SIGNATURE = ("X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token", "X-Amz-SignedHeaders", "Signature")
# Larger bodies are not read for the log. Those of images are far larger.
LOGGED_BODY = 1024 * 1024
RULE_KEYS = {"action", "service", "match", "skip", "times", "delay_s", "error", "answer", "cut"}
CUTS = {"before", "after", "middle"}


class Call:
    """The service, action and parameters of a request."""

    def __init__(self, environ):
        self.method, self.path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        self.query = dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        self.service = service(environ)
        self.parameters = {key: value for key, value in self.query.items() if key not in SIGNATURE}
        content_type = environ.get("CONTENT_TYPE", "")
        target = environ.get("HTTP_X_AMZ_TARGET")
        if content_type.startswith("application/x-www-form-urlencoded"):
            self.parameters.update(urllib.parse.parse_qsl(body(environ), keep_blank_values=True))
            for key in SIGNATURE:
                self.parameters.pop(key, None)
            self.action = self.parameters.pop("Action", "")
            self.parameters.pop("Version", None)
            if self.service == "s3":
                # A form without a signature.
                self.service = "ec2"
        elif target:
            self.action = target.rsplit(".", 1)[-1]
            self.parameters.update(json.loads(body(environ) or "{}"))
            if self.service == "s3":
                self.service = "servicequotas"
        elif self.service == "ebs":
            self.action = self.ebs(environ, content_type)
        else:
            self.action = self.s3(environ)

    def ebs(self, environ, content_type):
        parts = self.path.strip("/").split("/")
        if parts == ["snapshots"]:
            if content_type.startswith("application/json"):
                self.parameters.update(json.loads(body(environ) or "{}"))
            return "StartSnapshot"
        if parts[:2] == ["snapshots", "completion"]:
            blocks = environ.get("HTTP_X_AMZ_CHANGEDBLOCKSCOUNT")
            self.parameters.update(SnapshotId=parts[-1], ChangedBlocksCount=blocks)
            return "CompleteSnapshot"
        if len(parts) == 4 and parts[2] == "blocks" and self.method == "PUT":
            self.parameters.update(SnapshotId=parts[1], BlockIndex=parts[3])
            return "PutSnapshotBlock"
        return f"{self.method} {self.path}"

    def s3(self, environ):
        bucket, _, key = self.path.lstrip("/").partition("/")
        self.parameters.update(Bucket=bucket, Key=key)
        if environ.get("HTTP_X_AMZ_TAGGING"):
            self.parameters["Tagging"] = environ["HTTP_X_AMZ_TAGGING"]
        query, method = self.query, self.method
        if not bucket:
            return "ListBuckets"
        if not key:
            if "delete" in query:
                return "DeleteObjects"
            listing = "ListObjectsV2" if query.get("list-type") == "2" else "ListObjects"
            return {"PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket"}.get(method, listing)
        if "tagging" in query:
            return {"PUT": "PutObjectTagging", "DELETE": "DeleteObjectTagging"}.get(method, "GetObjectTagging")
        if "uploads" in query:
            return "CreateMultipartUpload"
        if "uploadId" in query:
            upload = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
            return upload.get(method, "ListParts")
        return {"PUT": "PutObject", "DELETE": "DeleteObject", "HEAD": "HeadObject"}.get(method, "GetObject")


def service(environ):
    """The service in the scope of the credentials; moto guesses S3 as well."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    return scope[3].lower() if len(scope) == 5 else "s3"


def body(environ):
    """Reads a short body as text and leaves it to be read again."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > LOGGED_BODY:
        return ""
    data = environ["wsgi.input"].read(length)
    environ["wsgi.input"] = io.BytesIO(data)
    return data.decode("utf-8", "replace")


def error_answer(call, error):
    """The status, headers and body of an AWS error as the service of the call writes it."""
    code, message = error["code"], error.get("message", "injected by the test")
    status = error.get("status") or STATUSES.get(code, 400)
    if call.service in ("ec2", "sts", "iam", "s3"):
        text = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        envelope = {
            "ec2": f"<Response><Errors><Error>{text}</Error></Errors><RequestID>fault</RequestID></Response>",
            "s3": f"<Error>{text}<RequestId>fault</RequestId></Error>",
        }.get(call.service, f"<ErrorResponse><Error><Type>Sender</Type>{text}</Error></ErrorResponse>")
        return status, {"Content-Type": "text/xml"}, f'<?xml version="1.0" encoding="UTF-8"?>\n{envelope}'
    headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}
    return status, headers, json.dumps({"__type": code, "message": message, "Message": message})


def cut(environ):
    """Closes the connection, so that the client gets no answer or no further bytes of it."""
    try:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    except OSError:
        # The client was faster.
        pass
    raise ConnectionResetError("cut by a rule")


class Rule:
    """A fault of calls of one action.

    Keys: `action` (`*` for all), and optionally `service` and `match`, parameters and their values. The rule leaves
    `skip` calls alone and then applies to `times` calls (null: all). It delays them by `delay_s`, and then answers the
    `error` {"code", "message", "status"}, or the `answer` {"status", "type", "body"}, without executing the call; or it
    cuts the connection `before` or `after` the call is executed, or in the `middle` of the answer.
    """

    def __init__(self, number, keys):
        if "action" not in keys or set(keys) - RULE_KEYS or keys.get("cut", "after") not in CUTS:
            raise ValueError(f"a rule has an action and keys of {sorted(RULE_KEYS)}")
        self.number, self.keys = number, keys
        self.skip, self.left, self.fired = keys.get("skip", 0), keys.get("times", 1), 0

    def applies(self, call):
        """Whether the rule applies to this call, which counts."""
        keys = self.keys
        is_meant = keys["action"] in ("*", call.action) and keys.get("service", call.service) == call.service
        parameters = keys.get("match", {}).items()
        if not is_meant or any(call.parameters.get(key) != value for key, value in parameters) or self.left == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.left is not None:
            self.left -= 1
        self.fired += 1
        return True

    def described(self):
        return {"id": self.number, "fired": self.fired, "left": self.left, **self.keys}


class Faults:
    """The middleware, with its rules and its log."""

    def __init__(self, application):
        self.application = application
        self.lock = threading.Lock()
        # moto does not lock its state, and two calls with one ClientToken must not both be executed.
        self.execution = threading.RLock()
        self.numbers = itertools.count(1)
        self.rules, self.calls = [], []

    def reset(self):
        with self.lock:
            self.rules, self.calls = [], []

    def add(self, keys):
        with self.lock:
            rule = Rule(next(self.numbers), keys)
            self.rules.append(rule)
            return rule.described()

    def remove(self, number=None):
        with self.lock:
            self.rules = [rule for rule in self.rules if number is not None and rule.number != number]

    def forget_calls(self):
        with self.lock:
            self.calls = []

    def described_rules(self):
        with self.lock:
            return [rule.described() for rule in self.rules]

    def described_calls(self, action=None):
        with self.lock:
            return [call for call in self.calls if action in (None, call["action"])]

    def __call__(self, environ, start_response):
        call = Call(environ)
        with self.lock:
            rule = next((rule for rule in self.rules if rule.applies(call)), None)
            entry = {
                "at_s": time.monotonic(), "service": call.service, "action": call.action,
                "parameters": call.parameters, "client": environ.get("REMOTE_PORT"),
                "rule": rule and rule.number, "status": None, "took_s": None,
            }
            self.calls.append(entry)
        keys = rule.keys if rule else {}
        try:
            time.sleep(keys.get("delay_s", 0))
            return self.answer(call, keys, environ, start_response, entry)
        finally:
            entry["took_s"] = time.monotonic() - entry["at_s"]

    def answer(self, call, keys, environ, start_response, entry):
        if "error" in keys:
            status, headers, text = error_answer(call, keys["error"])
            return reply(start_response, status, headers, text, entry)
        if "answer" in keys:
            answer = keys["answer"]
            headers = {"Content-Type": answer.get("type", "text/xml")}
            return reply(start_response, answer.get("status", 200), headers, answer.get("body", ""), entry)
        if keys.get("cut") == "before":
            cut(environ)
        status, headers, data = self.execute(call, environ)
        entry["status"] = int(status.split()[0])
        if keys.get("cut") == "after":
            cut(environ)
        write = start_response(status, headers)
        if keys.get("cut") == "middle":
            write(data[: len(data) // 2])
            cut(environ)
        return [data]

    def execute(self, call, environ):
        """The whole answer of moto."""
        started = []

        def start(status, headers, _=None):
            started.append((status, headers))

        if call.service == "s3":
            # Its calls are long, and independent.
            data = b"".join(self.application(environ, start))
        else:
            with self.execution:
                data = b"".join(self.application(environ, start))
        status, headers = started[0]
        return status, headers, data


def reply(start_response, status, headers, text, entry=None):
    data = text.encode()
    if entry is not None:
        entry["status"] = status
    start_response(f"{status} {http.HTTPStatus(status).phrase}", [*headers.items(), ("Content-Length", str(len(data)))])
    return [data]
