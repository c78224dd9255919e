"""Client tokens for moto: a repeated call returns the first answer instead of being executed again."""

import json

from moto.ec2.exceptions import EC2ClientError

ANSWERS = {}


def mismatch(token):
    text = f"Arguments on this idempotent request are inconsistent with arguments used in previous request(s): {token}"
    return EC2ClientError("IdempotentParameterMismatch", text)


def idempotent(method, refusal, check=None):
    """A method of a response class that honours `ClientToken`.

    `refusal` makes the exception for a token that was used with other parameters. `check` may refuse to repeat an
    answer.
    """

    def call(self):
        parameters = {key: value for key, value in dict(self.params).items() if key != "ClientToken"}
        token = self._get_param("ClientToken")
        if not token:
            return method(self)
        key = (self.current_account, self.region, method.__name__, token)
        text = json.dumps(parameters, sort_keys=True, default=str)
        if key not in ANSWERS:
            ANSWERS[key] = (text, method(self))
            return ANSWERS[key][1]
        used_with, answer = ANSWERS[key]
        if used_with != text:
            raise refusal(token)
        if check:
            check(answer.result)
        return answer

    call.__name__ = method.__name__
    return call
