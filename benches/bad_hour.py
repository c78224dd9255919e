#!/usr/bin/env python3
"""Requests wait while their cloud is full, down, or slow to return: what each launcher does, and when all are fulfilled.

usage: benches/run bad-hour [--scale N] [--requests N,…] [--faults FAULT,…] [--launchers NAME,…] [--limit S]
                            [--reference-max N] [--markdown FILE]

Needs a Python interpreter with kazoo. Each run has its own ZooKeeper, simulated OpenStack and launcher. The launcher
serves one request first, so that it has logged in. Then the fault begins, and all requests are created at once.
"""

import bisect
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import uuid

sys.dont_write_bytecode = True
from kazoo.client import KazooClient  # noqa: E402
from kazoo.exceptions import KazooException  # noqa: E402

from comparison import contestants, head, line, parser, save  # noqa: E402
from parts import LABEL, Cloud, ZooKeeper, wait_for, write_cloud_config  # noqa: E402
from transaction_log import CREATE, UPDATE, TransactionLog  # noqa: E402

REQUESTS, NODES = "/nodepool/requests", "/nodepool/nodes"
NODE = re.compile(rf"{NODES}/\d+")
ENDED = ("fulfilled", "failed")
QUOTA = "Quota exceeded for ports: Requested 1, but already used 100 of 100 ports"
FLAGS = ["--boot-time-s", 0.1, "--delete-time-s", 0.05, "--quota-servers", -1, "--quota-cores", -1, "--quota-ram-mib", -1,
         "--quota-ports", -1, "--hidden-quota-refusal", QUOTA]
# Longer than any run: the cloud never answers.
FOREVER_S = 1e6
COLUMNS = ["fault", "requests", "launcher", "creations", "creations/s", "records created", "records written", "transactions",
           "inversions", "failed", "first fulfilled", "all fulfilled"]


class Fault:
    """A state of the cloud: the knobs that begin and end it, and the seconds in between."""

    def __init__(self, name, seconds, begin, end):
        self.name, self.seconds, self.begin, self.end = name, seconds, begin, end

    def title(self, scale):
        return f"{self.name} for {self.seconds * scale:g} s"

    def run(self, cloud, requests, scale, began):
        """Waits for the end of the fault, which has begun at this time."""
        sleep_until(began + self.seconds * scale)
        cloud.turn(**self.end)


class SlowReturn(Fault):
    """A full cloud, with room for one more server each second after a minute."""

    def title(self, scale):
        return f"{super().title(scale)}, then {1 / scale:g} servers/s"

    def run(self, cloud, requests, scale, began):
        for limit in range(1, requests + 1):
            sleep_until(began + (self.seconds + limit) * scale)
            cloud.turn(hidden_quota_servers=limit)


def sleep_until(moment):
    time.sleep(max(0, moment - time.monotonic()))


FAULTS = {
    "full": Fault("full", 600, {"hidden_quota_servers": 0}, {"hidden_quota_servers": -1}),
    "error": Fault("503 of Nova", 300, {"faults": ["503 service=compute"]}, {"faults": []}),
    "refused": Fault("connections refused", 300, {"refuse_connections": True}, {"refuse_connections": False}),
    "hang": Fault("no answers", 300, {"faults": ["hang"], "hang_s": FOREVER_S}, {"faults": []}),
    "slow-return": SlowReturn("full", 60, {"hidden_quota_servers": 0}, {}),
}


class Consumer:
    """Requests and nodes, written as Zuul writes them."""

    def __init__(self, zookeeper):
        self.client = KazooClient(hosts=zookeeper.address)
        self.client.start()
        self.client.ensure_path(REQUESTS)

    @property
    def session(self):
        return self.client.client_id[0]

    def submit(self, count):
        """Creates requests without waiting for one another, and returns their paths in the order of their ranks."""
        created = [self.client.create_async(f"{REQUESTS}/200-", self.record(), ephemeral=True, sequence=True)
                   for _ in range(count)]
        return [path.get() for path in created]

    @staticmethod
    def record():
        now = time.time()
        return json.dumps({
            "state": "requested", "state_time": now, "declined_by": [], "node_types": [LABEL], "nodes": [], "reuse": True,
            "requestor": "zuul", "requestor_data": {
                "build_set_uuid": uuid.uuid4().hex, "tenant_name": "example", "pipeline_name": "check", "job_name": "unit-tests"},
            "provider": None, "relative_priority": 0, "event_id": uuid.uuid4().hex, "created_time": now,
            "tenant_name": "example"}).encode()

    def serve_one(self):
        """The whole life of a request and its node."""
        (request,) = self.submit(1)
        read = lambda path: json.loads(self.client.get(path)[0])
        wait_for("the first request", lambda: read(request)["state"] == "fulfilled", 120)
        node = f"{NODES}/{read(request)['nodes'][0]}"
        with self.client.Lock(f"{node}/lock"):
            self.client.delete(request)
            for state in ("in-use", "used"):
                self.client.set(node, json.dumps({**read(node), "state": state}).encode())
        wait_for("the deletion of the first node", lambda: not self.client.exists(node), 120)


class Journal:
    """What the launcher wrote: counts of its writes, and the end of each request."""

    def __init__(self, zookeeper, consumer):
        self.log, self.consumer = TransactionLog(zookeeper.home / "data"), consumer
        self.log.read()
        # Order among all transactions, time, state, path.
        self.number, self.transactions, self.ended = 0, [], {}

    def follow(self):
        for transaction in self.log.read():
            self.number += 1
            if transaction.session == self.consumer.session:
                continue
            kinds = [kind for kind, path, _ in transaction.changes if NODE.fullmatch(path)]
            self.transactions.append((transaction.at, kinds.count(CREATE), kinds.count(UPDATE)))
            for kind, path, data in transaction.changes:
                if kind == UPDATE and path.startswith(REQUESTS) and (state := json.loads(data)["state"]) in ENDED:
                    self.ended.setdefault(path, (self.number, transaction.at, state))

    def counts(self, since, until):
        """Transactions, node records created, and node records written."""
        during = [row for row in self.transactions if since <= row[0] <= until]
        return len(during), sum(row[1] for row in during), sum(row[2] for row in during)

    def fulfilled(self):
        return {path: end for path, end in self.ended.items() if end[2] == "fulfilled"}


def inversions(paths, fulfilled):
    """Pairs of requests of which the one with the higher number was fulfilled in an earlier transaction."""
    order = sorted((fulfilled[path][0], rank) for rank, path in enumerate(paths) if path in fulfilled)
    earlier, found = [], 0
    for _, together in itertools.groupby(order, lambda end: end[0]):
        ranks = [rank for _, rank in together]
        found += sum(len(earlier) - bisect.bisect(earlier, rank) for rank in ranks)
        for rank in ranks:
            bisect.insort(earlier, rank)
    return found


def creations(cloud):
    return cloud.state()["calls_by_kind"].get("compute", {}).get("POST /v2.1/servers", 0)


def measure(arguments, who, fault, requests, home):
    config = home / f"{who.name.replace(' ', '-')}.yaml"
    with ZooKeeper(home) as zookeeper, Cloud(arguments.cloud, home, *FLAGS) as cloud:
        write_cloud_config(config, zookeeper, who.tls)
        with who.start(config, home, OS_CLIENT_CONFIG_FILE=str(cloud.clouds)):
            consumer = Consumer(zookeeper)
            consumer.serve_one()
            journal = Journal(zookeeper, consumer)
            created, since, began = creations(cloud), time.time(), time.monotonic()
            cloud.turn(**fault.begin)
            paths = consumer.submit(requests)
            fault.run(cloud, requests, arguments.scale, began)
            created, until = creations(cloud) - created, time.time()
            while time.time() < until + arguments.limit and len(journal.ended) < requests:
                time.sleep(0.5)
                journal.follow()
            consumer.client.stop()
    transactions, records, writes = journal.counts(since, until)
    fulfilled = journal.fulfilled()
    ends = [end[1] - until for end in fulfilled.values()]
    if len(ends) == requests:
        whole = f"{max(ends):.1f} s"
    elif len(journal.ended) == requests:
        whole = f"{len(ends):,} in {max(ends):.1f} s" if ends else "never"
    else:
        whole = f"{len(ends):,} after {arguments.limit:g} s"
    return [created, f"{created / (until - since):.3g}", records, writes, transactions, inversions(paths, fulfilled),
            len(journal.ended) - len(fulfilled), f"{min(ends):.1f} s" if ends else "–", whole]


def attempt(arguments, who, fault, requests):
    """The cells of one run. A run that cannot be measured does not end the whole program."""
    not_run = ["not run"] + ["–"] * (len(COLUMNS) - 4)
    if not who.is_ours and requests > arguments.reference_max:
        return not_run
    with tempfile.TemporaryDirectory(prefix="nodepool-bad-hour-") as home:
        try:
            return measure(arguments, who, fault, requests, pathlib.Path(home))
        except (RuntimeError, OSError, KazooException) as error:
            print(f"{who.name}, {requests} requests: {error!r}", file=sys.stderr)
            return not_run


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    names = lambda text: text.split(",")
    options = parser(__doc__)
    options.add_argument("--cloud", type=os.path.abspath, required=True, help="the program of the simulated OpenStack")
    options.add_argument("--scale", type=float, default=1, help="factor of all durations of the faults")
    options.add_argument("--requests", type=numbers, default=[1, 60, 2000], help="numbers of waiting requests")
    options.add_argument("--faults", type=names, default=list(FAULTS), help=f"of {', '.join(FAULTS)}")
    options.add_argument("--limit", type=float, default=900, help="seconds after a fault to wait for all requests")
    options.add_argument("--reference-max", type=int, default=2000, help="more requests are not run with the reference")
    arguments = options.parse_args()
    launchers = contestants(arguments.programs)
    table = head(COLUMNS)
    print("\n".join(table), flush=True)
    for name in arguments.faults:
        for requests in arguments.requests:
            for launcher in arguments.launchers:
                row = [FAULTS[name].title(arguments.scale), requests, launcher]
                row += attempt(arguments, launchers[launcher], FAULTS[name], requests)
                table.append(line(row))
                print(table[-1], flush=True)
    save(arguments, table)


if __name__ == "__main__":
    main()
