"""The parts of a benchmark of nodes in a cloud: `running` is a launcher with its ZooKeeper and a consumer."""

import json
import statistics
import time

from bad_hour import NODES, Journal
from containers import fulfilled
from parts import wait_for


def nodes_of(consumer, requests):
    return [f"{NODES}/{node}" for request in requests for node in json.loads(consumer.client.get(request)[0])["nodes"]]


def release(consumer, requests):
    """Uses the nodes of fulfilled requests, and waits until they are deleted."""
    nodes = nodes_of(consumer, requests)
    for request in requests:
        consumer.client.delete(request)
    for node in nodes:
        with consumer.client.Lock(f"{node}/lock"):
            for state in ("in-use", "used"):
                changed = {**json.loads(consumer.client.get(node)[0]), "state": state}
                consumer.client.set(node, json.dumps(changed).encode())
    wait_for("the deletion of the nodes", lambda: not any(map(consumer.client.exists, nodes)), 600)


def single(running, rounds):
    """Median seconds from a request to a ready node."""
    times = []
    with running as (zookeeper, _, consumer):
        for _ in range(rounds):
            journal, began = Journal(zookeeper, consumer), time.time()
            requests = consumer.submit(1)
            times.append(fulfilled(journal, requests, 300)[0] - began)
            release(consumer, requests)
    return statistics.median(times)


def many(running, nodes):
    """Seconds until all nodes of many requests at once are ready, and then until all are deleted."""
    with running as (zookeeper, _, consumer):
        journal, began = Journal(zookeeper, consumer), time.time()
        requests = consumer.submit(nodes)
        ready = max(fulfilled(journal, requests, 1800)) - began
        began = time.time()
        release(consumer, requests)
        return ready, time.time() - began


def cycles(running, count):
    """Whole lives of nodes per second."""
    ready, deleted = many(running, count)
    return count / (ready + deleted)


def idle(running, seconds):
    """Processor time in percent, and memory, while nothing changes."""
    with running as (_, process, _):
        time.sleep(20)
        began, computed = time.monotonic(), process.computed()
        time.sleep(seconds)
        percent = 100 * (process.computed() - computed) / (time.monotonic() - began)
        return percent, process.resident_mb()
