#!/usr/bin/env python3
"""Requests builds and deletions from a running builder, and measures how long each took to start.

usage: images.py ZOOKEEPER FOLDER CLOUD BUILDS REMOVALS

Needs a Python interpreter with kazoo. The fake disk-image-create writes its times to FOLDER; CLOUD is the root URL of the
simulated OpenStack. Prints one line of JSON: milliseconds, a list for each metric.
"""

import json
import pathlib
import sys
import time
import urllib.request

from kazoo.client import KazooClient

IMAGE = "bench"
ROOT = f"/nodepool/images/{IMAGE}"
TIMEOUT = 120


def wait_for(what, condition, pause=0.002):
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for {what}")
        time.sleep(pause)
    return value


def children(client, path):
    return [name for name in client.get_children(path) if name != "lock"] if client.exists(path) else []


def uploads(client):
    """Path, record and creation time of each upload."""
    found = []
    for build in children(client, f"{ROOT}/builds"):
        for number in children(client, f"{ROOT}/builds/{build}/providers/lab/images"):
            path = f"{ROOT}/builds/{build}/providers/lab/images/{number}"
            data, stat = client.get(path)
            if data:
                found.append((path, json.loads(data), stat.ctime / 1000))
    return found


def ready(client):
    return {path: created for path, record, created in uploads(client) if record["state"] == "ready"}


def deletions(cloud):
    with urllib.request.urlopen(f"{cloud}/sim/state", timeout=30) as response:
        kinds = json.load(response)["calls_by_kind"].get("image", {})
    return sum(count for kind, count in kinds.items() if kind.startswith("DELETE"))


def main():
    address, folder, cloud, builds, removals = sys.argv[1:]
    folder, client = pathlib.Path(folder), KazooClient(hosts=address)
    client.start()
    started, ended = folder / "started", folder / "ended"
    lines = lambda file: file.read_text().split() if file.exists() else []
    wait_for("the first upload", lambda: ready(client))
    results = {"build_ms": [], "upload_ms": [], "removal_ms": []}
    for _ in range(int(builds)):
        known, before = ready(client), len(lines(started))
        requested = time.time()
        client.create(f"{ROOT}/request-build")
        wait_for("a build", lambda: len(lines(started)) > before)
        results["build_ms"].append((float(lines(started)[-1]) - requested) * 1000)
        new = wait_for("its upload", lambda: ready(client).keys() - known.keys(), 0.01)
        results["upload_ms"].append((ready(client)[new.pop()] - float(lines(ended)[-1])) * 1000)
        wait_for("the deletion of the request", lambda: not client.exists(f"{ROOT}/request-build"))
    for _ in range(int(removals)):
        path = max(ready(client).items(), key=lambda upload: upload[1])[0]
        record, before = json.loads(client.get(path)[0]), deletions(cloud)
        record["state"] = "deleting"
        requested = time.time()
        client.set(path, json.dumps(record).encode())
        wait_for("the deletion", lambda: deletions(cloud) > before)
        results["removal_ms"].append((time.time() - requested) * 1000)
        wait_for("another upload", lambda: path not in ready(client) and len(ready(client)) > 0, 0.01)
        time.sleep(0.2)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
