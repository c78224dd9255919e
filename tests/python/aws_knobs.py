"""Settings of the AWS for tests that a test changes while it runs."""

import copy

DEFAULTS = {
    # Service quotas: the applied values, AWS's default values, and whether the calls are refused.
    "quotas": {
        "applied": {
            "ec2": {"L-1216C47A": 100.0, "L-34B43A08": 100.0, "L-43DA4232": 100.0, "L-1586174D": 2.0},
            "ebs": {"L-D18FCD1D": 100.0, "L-7A658B76": 100.0, "L-FD252861": 20.0, "L-B3A130E6": 100000.0},
        },
        "default": {
            "ec2": {"L-1216C47A": 5.0, "L-34B43A08": 5.0, "L-43DA4232": 0.0, "L-DB2E81BA": 0.0, "L-1586174D": 0.0},
            "ebs": {"L-D18FCD1D": 50.0, "L-7A658B76": 50.0, "L-FD252861": 20.0, "L-B3A130E6": 100000.0},
        },
        "denied": False,
    },
    # A new instance is absent from `hidden_polls` calls of DescribeInstances and pending in the next `pending_polls`; a
    # terminated one is shutting-down in `shutting_down_polls`. With `end`, {"state", "code", "message", "times"}, this
    # number of new instances gets this state and reason instead of running.
    "instances": {"hidden_polls": 0, "pending_polls": 0, "shutting_down_polls": 0, "end": None},
    # A new host is pending in `pending_polls` calls of DescribeHosts, and then has the state `end`.
    "hosts": {"pending_polls": 0, "end": "available"},
    # An import task is active in all but the last of `polls`. With a text in `failure` it ends as deleted, with the
    # text as its message. More than `limit` unfinished tasks are refused.
    "imports": {"polls": 2, "failure": None, "limit": None},
    # Error codes of instance types that a fleet cannot launch, for example InsufficientInstanceCapacity.
    "fleets": {"unavailable": {}},
}


class Knobs:
    """The current settings."""

    def __init__(self):
        self.values = copy.deepcopy(DEFAULTS)

    def __getitem__(self, section):
        return self.values[section]

    def reset(self):
        self.values = copy.deepcopy(DEFAULTS)

    def change(self, sections):
        """Sets keys of sections; the other keys are unchanged."""
        for section, keys in sections.items():
            unknown = set(keys) - set(DEFAULTS.get(section, {}))
            if section not in DEFAULTS or unknown:
                raise ValueError(f"unknown settings: {section} {sorted(unknown)}")
        for section, keys in sections.items():
            self.values[section].update(keys)


KNOBS = Knobs()
