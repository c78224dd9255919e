"""The parts of a benchmark of nodes in a cloud: `running` is a launcher with its ZooKeeper and a consumer."""

import json
import statistics
import time
import uuid

from bad_hour import NODES, Journal
from containers import fulfilled
from parts import wait_for


def nodes_of(consumer, requests):
    return [f"{NODES}/{node}" for request in requests for node in json.loads(consumer.client.get(request)[0])["nodes"]]


def release(consumer, requests):
    """Uses the nodes of fulfilled requests as many executors at once do, and waits until they are deleted."""
    client, nodes = consumer.client, nodes_of(consumer, requests)

    def all_of(started):
        return [result.get() for result in started]

    all_of([client.delete_async(request) for request in requests])
    locks = all_of([client.create_async(f"{node}/lock/{uuid.uuid4().hex}__lock__", b"bench", ephemeral=True, sequence=True,
                                        makepath=True) for node in nodes])
    records = [json.loads(data) for data, _ in all_of([client.get_async(node) for node in nodes])]
    for state in ("in-use", "used"):
        changed = [json.dumps({**record, "state": state}).encode() for record in records]
        all_of([client.set_async(node, data) for node, data in zip(nodes, changed)])
    all_of([client.delete_async(lock) for lock in locks])
    names = {node.rpartition("/")[2] for node in nodes}
    wait_for("the deletion of the nodes", lambda: names.isdisjoint(client.get_children(NODES)), 600)


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
