#!/usr/bin/env python3
"""Slots of backing nodes: how soon a node is ready in one, and how many are given out per second.

usage: benches/run slots [--rounds N] [--burst N] [--slots N] [--launchers NAME,…] [--markdown FILE]

Needs a Python interpreter with kazoo. The backing nodes are static hosts, which are not checked. Each part has its own
ZooKeeper and launcher.
"""

import contextlib
import json
import pathlib
import queue
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from bad_hour import NODES, Consumer, Journal  # noqa: E402
from comparison import column, measure, parser, report  # noqa: E402
from parts import LABEL, ZooKeeper, wait_for, write_config  # noqa: E402

BACKING = "big"


def write_slots_config(path, zookeeper, hosts, slots):
    """A static provider of the backing nodes, and a metastatic one."""
    path = write_config(path, zookeeper, True, hosts)
    text = path.read_text().replace(f"labels: [{LABEL}]", f"labels: [{BACKING}]")
    text = text.replace(f"labels:\n  - name: {LABEL}", f"labels:\n  - name: {LABEL}\n  - name: {BACKING}")
    path.write_text(text + f"""  - name: slots-bench
    driver: metastatic
    pools:
      - name: main
        labels:
          - name: {LABEL}
            backing-label: {BACKING}
            max-parallel-jobs: {slots}
            grace-time: 3600
""")


@contextlib.contextmanager
def launcher(arguments, who, hosts):
    """ZooKeeper, launcher process and consumer."""
    with tempfile.TemporaryDirectory(prefix="nodepool-slots-") as home:
        config = pathlib.Path(home) / "nodepool.yaml"
        with ZooKeeper(home) as zookeeper:
            write_slots_config(config, zookeeper, hosts, arguments.slots)
            with who.start(config, home) as process:
                consumer = Consumer(zookeeper)
                # It acquires a backing node, which is kept.
                consumer.serve_one()
                yield zookeeper, process, consumer
                consumer.client.stop()


def served(consumer):
    """Submits a request; returns its path and the seconds until it was fulfilled, as its requestor sees it."""
    changes, began = queue.SimpleQueue(), time.perf_counter()
    (request,) = consumer.submit(1)
    while True:
        data, _ = consumer.client.get(request, watch=changes.put)
        if (state := json.loads(data)["state"]) == "fulfilled":
            return request, time.perf_counter() - began
        if state == "failed":
            raise RuntimeError(f"{request} failed")
        changes.get(timeout=60)


def rounds(arguments, who):
    """Median milliseconds from a request to its node, and transactions of the launcher in between."""
    took, transactions = [], []
    with launcher(arguments, who, 1) as (zookeeper, _, consumer):
        for _ in range(arguments.rounds):
            # The writes of the last round have ended.
            time.sleep(0.3 if who.is_ours else 2)
            journal = Journal(zookeeper, consumer)
            request, seconds = served(consumer)
            took.append(1000 * seconds)
            journal.follow()
            (number, _, _) = journal.ended[request]
            transactions.append(sum(1 for row in journal.transactions[:number]))
            node = f"{NODES}/{json.loads(consumer.client.get(request)[0])['nodes'][0]}"
            with consumer.client.Lock(f"{node}/lock"):
                consumer.client.delete(request)
                for state in ("in-use", "used"):
                    changed = {**json.loads(consumer.client.get(node)[0]), "state": state}
                    consumer.client.set(node, json.dumps(changed).encode())
    return statistics.median(took), statistics.median(transactions)


def burst(arguments, who):
    """Nodes per second, of many requests at once. Their backing nodes are requested meanwhile."""
    with launcher(arguments, who, -(-arguments.burst // arguments.slots)) as (zookeeper, _, consumer):
        journal, began = Journal(zookeeper, consumer), time.time()
        paths = consumer.submit(arguments.burst)

        def ended():
            journal.follow()
            # Without the launcher's own requests.
            return all(path in journal.ended for path in paths)

        wait_for("the requests", ended, 900)
        ends = [journal.ended[path] for path in paths]
        if failed := [end for end in ends if end[2] != "fulfilled"]:
            raise RuntimeError(f"{len(failed)} requests failed")
    return arguments.burst / (max(end[1] for end in ends) - began)


def rows(arguments):
    measured = measure(arguments, (rounds, burst))
    return [
        ("request to a node in a free slot, median", "≤ 5 ms", column(measured[rounds], 0), "ms", "less"),
        ("transactions of the launcher meanwhile, median", "≤ 2", column(measured[rounds], 1), "", "less"),
        (f"{arguments.burst} nodes at once, {arguments.slots} per backing node", "", measured[burst], "/s", "more"),
    ]


def main():
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=20, help="nodes that are requested and returned one by one")
    options.add_argument("--burst", type=int, default=100, help="nodes that are requested at once")
    options.add_argument("--slots", type=int, default=4, help="slots per backing node")
    arguments = options.parse_args()
    report(arguments, rows(arguments))


if __name__ == "__main__":
    main()
