#!/usr/bin/env python3
"""Instances of simulated clouds: how soon each launcher has them ready, and what they cost.

usage: benches/run machines CLOUD [--rounds N] [--nodes N] [--cycles N] [--instances N] [--idle S] [--launchers NAME,…]
                                  [--markdown FILE]

CLOUD is azure, gce or ibm. Needs a Python interpreter with kazoo. Each part has its own ZooKeeper, cloud and launcher.
Nodepool 11 reaches the simulation through a proxy with the TLS of the cloud's own hosts.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import urllib.parse
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


class Cloud(Printing):
    """A simulated cloud. Subclasses set `base`, its address."""

    # The only rate of its providers; without it, each part has its own.
    RATE = None

    @staticmethod
    def environment(_):
        return {}

    def control(self, command):
        url = f"{self.base}/sim/{command}"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60).close()


class Azure(Cloud):
    HOSTS = ["management.azure.com", "login.microsoftonline.com"]
    # Nodepool 11 counts reads, too.
    RATE = 10000

    def __init__(self, program, home, boot_s, delete_s, is_ours):
        self.auth = pathlib.Path(home) / "azure.json"
        # Nodepool 11 follows the links of pages and operations through the proxy.
        links = [] if is_ours else ["--base-url", "https://management.azure.com"]
        super().__init__([program, "--boot-s", boot_s, "--delete-s", delete_s, "--operation-s", 0, "--auth-file", self.auth,
                          *links], f"{home}/azure.log")
        self.base = self.address("listening on ")

    def add_foreign(self, count):
        tags = urllib.parse.quote(json.dumps({"team": "other"}))
        self.control(f"create?kind=vm&count={count}&prefix=foreign-&tags={tags}")

    def provider(self, rate):
        label = {"name": LABEL, "cloud-image": "debian", "hardware-profile": {"vm-size": "Standard_D2s_v3"}}
        reference = {"publisher": "Debian", "offer": "debian-12", "sku": "12-gen2", "version": "latest"}
        key = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQDB nodepool"
        image = {"name": "debian", "username": "zuul", "key": key, "image-reference": reference}
        pool = {"name": "main", "max-servers": 100000, "host-key-checking": False, "labels": [label]}
        return {"name": "east", "driver": "azure", "location": "eastus", "resource-group": "nodepool",
                "resource-group-location": "eastus", "auth-path": str(self.auth), "network": "network", "rate": rate,
                "cloud-images": [image], "pools": [pool]}


class Gce(Cloud):
    HOSTS = ["compute.googleapis.com"]

    def __init__(self, program, home, boot_s, delete_s, _):
        self.key = pathlib.Path(home) / "key.json"
        super().__init__([program, "--boot-s", boot_s, "--delete-s", delete_s, "--operation-s", 0,
                          "--quotas", "CPUS=100000,INSTANCES=100000", "--service-account-key", self.key], f"{home}/gce.log")
        self.base = self.address("listening on ")

    def environment(self, is_ours):
        credentials = {"GOOGLE_APPLICATION_CREDENTIALS": str(self.key)}
        own = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.base}/compute/v1/"}
        return {**credentials, **own} if is_ours else credentials

    def add_foreign(self, count):
        self.control(f"foreign?count={count}")

    @staticmethod
    def provider(rate):
        """Nodepool 11 reads `rate`, which its validator does not know."""
        label = {"name": LABEL, "cloud-image": "debian", "instance-type": "e2-medium"}
        image = {"name": "debian", "image-project": "debian-cloud", "image-family": "debian-12", "username": "zuul"}
        pool = {"name": "main", "host-key-checking": False, "labels": [label]}
        return {"name": "iowa", "driver": "gce", "project": "simulated", "region": "us-central1", "zone": "us-central1-a",
                "rate": rate, "cloud-images": [image], "pools": [pool]}


class Ibm(Cloud):
    HOSTS = ["us-south.iaas.cloud.ibm.com", "iam.cloud.ibm.com", "resource-controller.cloud.ibm.com"]
    RATE = 10000

    def __init__(self, program, home, boot_s, delete_s, _):
        self.credentials = pathlib.Path(home) / "ibm.env"
        # Nodepool 11 reads fields of an old version of the API.
        super().__init__([program, "--boot-s", boot_s, "--delete-s", delete_s, "--legacy-fields",
                          "--credentials-file", self.credentials], f"{home}/ibm.log")
        self.base = self.address("listening on ")
        with self.credentials.open("a") as file:
            file.write(f"RESOURCE_MANAGER_URL={self.base}\n")
        # Nodepool 11 cannot use a group that it has just created.
        self.control("group?name=np_dallas_main")

    def add_foreign(self, count):
        self.control(f"foreign?count={count}")

    def provider(self, rate):
        """Without floating IPs, as by default."""
        label = {"name": LABEL, "cloud-image": "debian", "profile": "cx2-2x4"}
        selected = {"operating-system": {"name": "debian-12-amd64"}, "status": "available"}
        image = {"name": "debian", "username": "zuul", "keys": ["nodepool"], "image-filter": selected}
        pool = {"name": "main", "max-servers": 100000, "host-key-checking": False, "labels": [label]}
        return {"name": "dallas", "driver": "ibmvpc", "region": "us-south", "vpc": "nodepool", "zone": "us-south-1",
                "subnet": "nodepool-1", "credentials-file": str(self.credentials), "rate": rate,
                "cloud-images": [image], "pools": [pool]}


CLOUDS = {"azure": Azure, "gce": Gce, "ibm": Ibm}


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
        simulation = CLOUDS[arguments.cloud]
        cloud = stack.enter_context(simulation(arguments.simulation, home, boot_s, delete_s, who.is_ours))
        environment = cloud.environment(who.is_ours)
        if not who.is_ours:
            environment |= stack.enter_context(Proxy(arguments.proxy, home, cloud)).environment()
        if instances:
            cloud.add_foreign(instances)
        config = write_config(pathlib.Path(home) / "nodepool.yaml", zookeeper, True, 0)
        head = config.read_text().partition("providers:")[0]
        config.write_text(f"{head}providers: [{json.dumps(cloud.provider(cloud.RATE or rate))}]\n")
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
