#!/usr/bin/env python3
"""Pods and namespaces of a simulated cluster: how soon each launcher notices, and what it costs.

usage: benches/run containers [--driver NAME] [--rounds N] [--namespaces N] [--pods N] [--idle S] [--launchers NAME,…]
                              [--markdown FILE]

Needs a Python interpreter with kazoo. Each part has its own ZooKeeper, cluster and launcher.
"""

import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
from bad_hour import NODES, Consumer, Journal  # noqa: E402
from comparison import column, measure, parser, report  # noqa: E402
from parts import LABEL, Process, ZooKeeper, wait_for, write_config  # noqa: E402

# Flags of the cluster, and the keys of labels for whole namespaces and for pods. The secrets are those for which the
# reference waits.
OPENSHIFT = ("--openshift", "--account-secrets", "--project", "main")
DRIVERS = {
    "kubernetes": ((), "type: namespace", "type: pod, image: busybox"),
    "openshift": (OPENSHIFT, "type: project", "type: pod, image: busybox"),
    "openshiftpods": (OPENSHIFT, "image: busybox", "image: busybox"),
}


class Cluster(Process):
    """The simulated Kubernetes, configured by its command line."""

    def __init__(self, program, home, *flags):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="cluster-", dir=home))
        self.kubeconfig = self.home / "kubeconfig"
        super().__init__([program, "--tls", "--kubeconfig", self.kubeconfig, *flags], self.home / "log")
        self.control = wait_for("the simulated cluster", lambda: next(
            (line.removeprefix("control on ") for line in self.log.read_text().splitlines()
             if line.startswith("control on ") and "listening on" in self.log.read_text()), None))

    def history(self):
        with urllib.request.urlopen(f"{self.control}/sim/history", timeout=60) as answer:
            return json.load(answer)

    def pod(self, record):
        """The history of a node's pod."""
        data = record["connection_port"]
        return next(pod for pod in self.history()["pods"]
                    if (pod["namespace"], pod["name"]) == (data["namespace"], data["pod"]))

    def deletion(self, record, driver):
        """Time of the call that deleted the node; None before it."""
        if driver == "openshiftpods":
            return self.pod(record)["delete_asked"]
        name = record["connection_port"]["namespace"]
        return next(one for one in self.history()["namespaces"] if one["name"] == name)["delete_asked"]


def write_cluster_config(path, zookeeper, driver, keys):
    path = write_config(path, zookeeper, True, 0)
    text = path.read_text().partition("providers:")[0]
    path.write_text(text + f"""providers:
  - name: cluster
    driver: {driver}
    context: nodepool
    pools:
      - name: main
        labels: [{{name: {LABEL}, {keys}}}]
""")


@contextlib.contextmanager
def launcher(arguments, who, is_pod, *flags):
    """ZooKeeper, cluster, launcher process and consumer."""
    of_driver, *keys = DRIVERS[arguments.driver]
    with tempfile.TemporaryDirectory(prefix="nodepool-containers-") as home:
        config = pathlib.Path(home) / "nodepool.yaml"
        with ZooKeeper(home) as zookeeper, Cluster(arguments.cluster, home, *of_driver, *flags) as cluster:
            write_cluster_config(config, zookeeper, arguments.driver, keys[is_pod])
            with who.start(config, home, KUBECONFIG=str(cluster.kubeconfig)) as process:
                consumer = Consumer(zookeeper)
                consumer.serve_one()
                yield zookeeper, cluster, process, consumer
                consumer.client.stop()


def fulfilled(journal, paths, limit):
    """Times at which the requests were fulfilled."""
    deadline = time.monotonic() + limit
    while len(journal.ended) < len(paths):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(journal.ended)} of {len(paths)} requests ended in {limit} s")
        time.sleep(0.02)
        journal.follow()
    ends = [journal.ended[path] for path in paths]
    if failed := [end for end in ends if end[2] != "fulfilled"]:
        raise RuntimeError(f"{len(failed)} requests failed")
    return [end[1] for end in ends]


def rounds(arguments, who):
    """Median milliseconds from a running pod to a fulfilled request, and from a released node to the call that deletes it."""
    ready, deleted = [], []
    with launcher(arguments, who, True, "--pod-start-s", "0.5") as (zookeeper, cluster, _, consumer):
        for _ in range(arguments.rounds):
            journal = Journal(zookeeper, consumer)
            (request,) = consumer.submit(1)
            (end,) = fulfilled(journal, [request], 120)
            node = f"{NODES}/{json.loads(consumer.client.get(request)[0])['nodes'][0]}"
            record = json.loads(consumer.client.get(node)[0])
            ready.append(1000 * (end - cluster.pod(record)["running"]))
            with consumer.client.Lock(f"{node}/lock"):
                consumer.client.delete(request)
                for state in ("in-use", "used"):
                    changed = {**json.loads(consumer.client.get(node)[0]), "state": state}
                    consumer.client.set(node, json.dumps(changed).encode())
                released = time.time()
            wait_for("the deletion of the node", lambda: cluster.deletion(record, arguments.driver))
            deleted.append(1000 * (cluster.deletion(record, arguments.driver) - released))
    return statistics.median(ready), statistics.median(deleted)


def burst(arguments, who):
    """Namespaces per second, of many requests at once."""
    with launcher(arguments, who, False, "--secret-fill-s", "0.1", "--pod-start-s", "0") as (zookeeper, _, _, consumer):
        journal, began = Journal(zookeeper, consumer), time.time()
        ends = fulfilled(journal, consumer.submit(arguments.namespaces), 600)
    return arguments.namespaces / (max(ends) - began)


def idle(arguments, who):
    """Processor time in percent, and memory, while many pods are in use and nothing changes."""
    with launcher(arguments, who, True, "--pod-start-s", "0.5") as (zookeeper, _, process, consumer):
        journal = Journal(zookeeper, consumer)
        fulfilled(journal, consumer.submit(arguments.pods), 900)
        time.sleep(10)
        began, computed = time.monotonic(), process.computed()
        time.sleep(arguments.idle)
        percent = 100 * (process.computed() - computed) / (time.monotonic() - began)
        return percent, process.resident_mb()


def rows(arguments):
    measured = measure(arguments, (rounds, burst, idle))
    return [
        ("running pod to fulfilled request, median", "≤ 20 ms", column(measured[rounds], 0), "ms", "less"),
        ("released node to the call that deletes it, median", "≤ 20 ms", column(measured[rounds], 1), "ms", "less"),
        (f"{arguments.namespaces} nodes at once", "≥ 10 ×", measured[burst], "/s", "more"),
        (f"processor time with {arguments.pods:,} idle pods", "≤ 0.5 %", column(measured[idle], 0), "%", "less"),
        (f"memory with {arguments.pods:,} idle pods", "", column(measured[idle], 1), "MB", "less"),
    ]


def main():
    options = parser(__doc__)
    options.add_argument("--cluster", type=os.path.abspath, required=True, help="the program of the simulated Kubernetes")
    options.add_argument("--driver", choices=DRIVERS, default="kubernetes")
    options.add_argument("--rounds", type=int, default=20, help="pods that are requested and released one by one")
    options.add_argument("--namespaces", type=int, default=100, help="namespaces, projects or shared pods that are requested at once")
    options.add_argument("--pods", type=int, default=1000, help="pods that are in use while nothing changes")
    options.add_argument("--idle", type=float, default=60, help="seconds for which nothing changes")
    arguments = options.parse_args()
    report(arguments, rows(arguments))


if __name__ == "__main__":
    main()
