#!/usr/bin/env python3
"""Instances of simulated clouds: how soon each launcher has them ready, and what they cost.

usage: benches/run machines CLOUD [--rounds N] [--nodes N] [--cycles N] [--instances N] [--idle S] [--launchers NAME,…]
                                  [--markdown FILE]

CLOUD is gce. Needs a Python interpreter with kazoo. Each part has its own ZooKeeper, cloud and launcher. Nodepool 11
reaches the simulation through a proxy with the TLS of the cloud's own host.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
import lives  # noqa: E402
from bad_hour import Consumer  # noqa: E402
from comparison import column, measure, parser, report  # noqa: E402
from parts import LABEL, Process, ZooKeeper, wait_for, write_config  # noqa: E402


class Printing(Process):
    """A program that prints its addresses."""

    def address(self, prefix):
        return wait_for(prefix, lambda: next(
            (line.removeprefix(prefix).strip() for line in self.log.read_text().splitlines() if line.startswith(prefix)), None))


class Gce(Printing):
    HOSTS = ["compute.googleapis.com"]

    def __init__(self, program, home, boot_s, delete_s):
        self.key = pathlib.Path(home) / "key.json"
        super().__init__([program, "--boot-s", boot_s, "--delete-s", delete_s, "--operation-s", 0,
                          "--quotas", "CPUS=100000,INSTANCES=100000", "--service-account-key", self.key], f"{home}/gce.log")
        self.base = self.address("listening on ")

    def environment(self, is_ours):
        credentials = {"GOOGLE_APPLICATION_CREDENTIALS": str(self.key)}
        own = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.base}/compute/v1/"}
        return {**credentials, **own} if is_ours else credentials

    def add_foreign(self, count):
        url = f"{self.base}/sim/foreign?count={count}"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60).close()

    @staticmethod
    def provider(rate):
        """Nodepool 11 reads `rate`, which its validator does not know."""
        label = {"name": LABEL, "cloud-image": "debian", "instance-type": "e2-medium"}
        image = {"name": "debian", "image-project": "debian-cloud", "image-family": "debian-12", "username": "zuul"}
        pool = {"name": "main", "host-key-checking": False, "labels": [label]}
        return {"name": "iowa", "driver": "gce", "project": "simulated", "region": "us-central1", "zone": "us-central1-a",
                "rate": rate, "cloud-images": [image], "pools": [pool]}


CLOUDS = {"gce": Gce}


class Proxy(Printing):
    """The TLS of a cloud's hosts for programs that have their addresses built in."""

    def __init__(self, program, home, cloud):
        hosts = [f"{host}={cloud.base}" for host in cloud.HOSTS]
        super().__init__([program, *hosts], f"{home}/proxy.log")
        self.url, self.authority = self.address("listening on "), self.address("authority ")

    def environment(self):
        authority = {name: self.authority for name in ("REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "SSL_CERT_FILE")}
        return {"HTTPS_PROXY": self.url, "https_proxy": self.url, "NO_PROXY": "127.0.0.1,localhost", **authority}


@contextlib.contextmanager
def launcher(arguments, who, rate, boot_s, delete_s, instances=0):
    """ZooKeeper, cloud, launcher process and consumer."""
    with tempfile.TemporaryDirectory(prefix="nodepool-machines-") as home, contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(home))
        cloud = stack.enter_context(CLOUDS[arguments.cloud](arguments.simulation, home, boot_s, delete_s))
        environment = cloud.environment(who.is_ours)
        if not who.is_ours:
            environment |= stack.enter_context(Proxy(arguments.proxy, home, cloud)).environment()
        if instances:
            cloud.add_foreign(instances)
        config = write_config(pathlib.Path(home) / "nodepool.yaml", zookeeper, True, 0)
        head = config.read_text().partition("providers:")[0]
        config.write_text(f"{head}providers: [{json.dumps(cloud.provider(rate))}]\n")
        process = stack.enter_context(who.start(config, home, **environment))
        consumer = Consumer(zookeeper)
        consumer.serve_one()
        yield zookeeper, process, consumer
        consumer.client.stop()


def single(arguments, who):
    return lives.single(launcher(arguments, who, 2, 1, 1), arguments.rounds)


def many(arguments, who):
    return lives.many(launcher(arguments, who, 100, 1, 1), arguments.nodes)


def cycles(arguments, who):
    """On a cloud without limits."""
    return lives.cycles(launcher(arguments, who, 10000, 0.5, 0.5), arguments.cycles)


def idle(arguments, who):
    """While the project has many instances."""
    return lives.idle(launcher(arguments, who, 10, 0.1, 0.1, arguments.instances), arguments.idle)


def rows(arguments):
    measured = measure(arguments, (single, many, cycles, idle))
    return [
        ("request to ready node, median", "", measured[single], "s", "less"),
        (f"{arguments.nodes} requests to ready nodes", "", column(measured[many], 0), "s", "less"),
        (f"{arguments.nodes} used nodes to deleted ones", "", column(measured[many], 1), "s", "less"),
        (f"{arguments.cycles:,} lives of nodes", "≥ 200 /s", measured[cycles], "/s", "more"),
        (f"processor time with {arguments.instances:,} instances", "≤ 0.5 %", column(measured[idle], 0), "%", "less"),
        (f"memory with {arguments.instances:,} instances", "", column(measured[idle], 1), "MB", "less"),
    ]


def main():
    options = parser(__doc__)
    options.add_argument("cloud", choices=sorted(CLOUDS))
    options.add_argument("--simulation", required=True, help="the program of the simulated cloud")
    options.add_argument("--proxy", required=True, help="the program tls-proxy")
    options.add_argument("--rounds", type=int, default=5, help="nodes that are requested and released one by one")
    options.add_argument("--nodes", type=int, default=50, help="nodes that are requested at once")
    options.add_argument("--cycles", type=int, default=500, help="nodes that are requested at once without a rate")
    options.add_argument("--instances", type=int, default=5000, help="instances of others while nothing changes")
    options.add_argument("--idle", type=float, default=300, help="seconds for which nothing changes")
    arguments = options.parse_args()
    report(arguments, rows(arguments))


if __name__ == "__main__":
    main()
