#!/usr/bin/env python3
"""Measures the web port of a running launcher: lists, metrics, and the live page in a browser.

usage: web.py ZOOKEEPER PORT PID NODES SECONDS [--page]

Needs a Python interpreter with kazoo; wrk, and for `--page` chromium with its chromedriver. Prints one line of JSON.
"""

import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from kazoo.client import KazooClient

TIMEOUT = 180
# Nodes of the launcher itself have lower numbers.
FIRST = 1000000
TICKS = os.sysconf("SC_CLK_TCK")


def wait_for(what, condition, pause=0.02):
    deadline = time.monotonic() + TIMEOUT
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for {what}")
        time.sleep(pause)
    return value


def get(port, path, accept="text/plain"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return response.read()


def record(number, state):
    return json.dumps({
        "state": state, "state_time": 1700000000.0 + number, "created_time": 1700000000.0, "provider": "elsewhere", "pool": "main",
        "type": ["debian-small"], "external_id": f"0f9a3b7c-{number:012}", "public_ipv4": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
        "interface_ip": "10.0.0.1", "connection_port": 22, "hostname": f"host-{number}", "username": "zuul", "az": "az1",
        "launcher": "nl01.example.org", "host_keys": [], "resources": {"cores": 2, "ram": 4096, "instances": 1}}).encode()


def fill(client, nodes):
    client.ensure_path("/nodepool/nodes")
    pending = []
    for number in range(nodes):
        pending.append(client.create_async(f"/nodepool/nodes/{FIRST + number:010}", record(number, "in-use")))
        if len(pending) == 500:
            [done.get() for done in pending]
            pending = []
    [done.get() for done in pending]


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wrk(port, path, *headers):
    command = ["wrk", "-t1", "-c4", "-d5s", "--latency", *[part for header in headers for part in ("-H", header)]]
    output = subprocess.run([*command, f"http://127.0.0.1:{port}{path}"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])
    median, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", output).groups()
    return rate, float(median) * {"us": 0.001, "ms": 1, "s": 1000}[unit]


def fresh(port, path, accept, rounds):
    """Median of milliseconds for responses that are not cached."""
    times = []
    for _ in range(rounds):
        time.sleep(1.1)
        began = time.monotonic()
        get(port, path, accept)
        times.append((time.monotonic() - began) * 1000)
    return sorted(times)[len(times) // 2]


class Browser:
    def __init__(self):
        self.home = tempfile.TemporaryDirectory(prefix="nodepool-bench-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env={**os.environ, "HOME": self.home.name})
        wait_for("chromedriver", lambda: self.answers())
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
                 f"--user-data-dir={self.home.name}/profile"]
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": flags}}}}
        self.session = self.call("/session", wanted)["sessionId"]

    def answers(self):
        try:
            return bool(self.call("/status"))
        except OSError:
            return False

    def call(self, path, body=None, method=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return json.load(response)["value"]

    def open(self, url):
        self.call(f"/session/{self.session}/url", {"url": url})

    def run(self, script):
        return self.call(f"/session/{self.session}/execute/sync", {"script": script, "args": []})

    def processes(self):
        """Process ids of the browser, including its renderers."""
        parents = {}
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
        found, last = {self.driver.pid}, 0
        while len(found) != last:
            last = len(found)
            found |= {pid for pid, parent in parents.items() if parent in found}
        return found - {self.driver.pid}

    def cpu(self):
        return sum(cpu(pid) for pid in self.processes())

    def quit(self):
        self.call(f"/session/{self.session}", method="DELETE")
        self.driver.terminate()
        self.driver.wait()
        self.home.cleanup()


def measure_page(client, port, pid, nodes, seconds):
    browser, results = Browser(), {}
    url = f"http://127.0.0.1:{port}/#/nodes"
    browser.open(url)
    drawn = "const mark = performance.getEntriesByName('drawn')[0]; return mark ? mark.startTime : null"
    results["interactive_ms"] = wait_for("the page", lambda: browser.run(drawn))
    time.sleep(2)
    shown = "return document.documentElement.dataset.revision"
    revision = browser.run(shown)
    own, theirs, began, changes = cpu(pid), browser.cpu(), time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while changes < passed * 100:
            client.set_async(f"/nodepool/nodes/{FIRST + random.randrange(nodes):010}", record(changes, random.choice(["ready", "in-use", "used"])))
            changes += 1
        time.sleep(0.01)
    passed = time.monotonic() - began
    results["browser_percent"] = (browser.cpu() - theirs) / passed * 100
    results["launcher_percent"] = (cpu(pid) - own) / passed * 100
    results["changes_per_s"] = changes / passed
    if browser.run(shown) == revision:
        raise RuntimeError("the page did not show the changes")
    browser.quit()
    return results


def main():
    address, port, pid, nodes, seconds = sys.argv[1], *map(int, sys.argv[2:6])
    client = KazooClient(hosts=address)
    client.start()
    fill(client, nodes)
    last = f'"{FIRST + nodes - 1:010}"'.encode()
    wait_for("all nodes", lambda: last in get(port, "/node-list", "application/json"), 1.1)
    results = {"bytes": len(get(port, "/node-list", "application/json"))}
    results["fresh_json_ms"] = fresh(port, "/node-list", "application/json", 7)
    results["fresh_text_ms"] = fresh(port, "/node-list", "text/plain", 3)
    results["json_per_s"], results["json_ms"] = wrk(port, "/node-list", "Accept: application/json")
    results["packed_per_s"], results["packed_ms"] = wrk(port, "/node-list", "Accept: application/json", "Accept-Encoding: gzip")
    if "--page" in sys.argv:
        before = cpu(pid)
        for _ in range(20):
            time.sleep(1.05)
            get(port, "/metrics")
        results["scrape_ms"] = (cpu(pid) - before) / 20 * 1000
        results.update(measure_page(client, port, pid, nodes, seconds))
    client.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
