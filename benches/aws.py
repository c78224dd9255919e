#!/usr/bin/env python3
"""Instances of EC2: how soon each launcher has them ready, and what they cost.

usage: benches/run aws [--rounds N] [--nodes N] [--cycles N] [--instances N] [--idle S] [--launchers NAME,…]
                       [--markdown FILE]

Needs a Python interpreter with kazoo and boto3. Each part has its own ZooKeeper, AWS and launcher. Both launchers run
against moto, and against the simulated EC2, which is faster than AWS.
"""

import contextlib
import os
import pathlib
import sys
import tempfile

import boto3
from botocore.config import Config

sys.dont_write_bytecode = True
import lives  # noqa: E402
from bad_hour import Consumer  # noqa: E402
from comparison import column, measure, parser, report  # noqa: E402
from parts import LABEL, REPOSITORY, Process, ZooKeeper, setting, wait_for, write_config  # noqa: E402

REGION = "us-west-2"
KEYS = {"moto": ("testing", "testing"), "simulated": ("simulated", "simulated-secret")}


class Aws(Process):
    """moto, or the simulated EC2."""

    def __init__(self, program, home, kind, *flags):
        home = pathlib.Path(tempfile.mkdtemp(prefix="aws-", dir=home))
        script = ["-u", "-B", REPOSITORY / "tests/python/aws_peer.py", "0"]
        super().__init__([program, *(script if kind == "moto" else flags)], home / "log")
        self.base = wait_for("AWS", lambda: next(
            (line.removeprefix("listening on ") for line in self.log.read_text().splitlines()
             if line.startswith("listening on ")), None))
        self.access_key, self.secret_key = KEYS[kind]
        self.ec2 = boto3.client(
            "ec2", REGION, endpoint_url=self.base, aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key, config=Config(retries={"max_attempts": 1}, read_timeout=300))

    def environment(self):
        return {
            "AWS_ENDPOINT_URL": self.base, "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}

    def moto_site(self):
        """Subnet, security group, key pair and AMI of a new moto."""
        vpc = self.ec2.create_vpc(CidrBlock="127.77.0.0/16")["Vpc"]["VpcId"]
        subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock="127.77.0.0/20")["Subnet"]["SubnetId"]
        group = self.ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
        self.ec2.create_key_pair(KeyName="nodepool")
        volume = self.ec2.create_volume(Size=8, AvailabilityZone=f"{REGION}a")["VolumeId"]
        snapshot = self.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        mapping = {"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": snapshot, "DeleteOnTermination": True}}
        image = self.ec2.register_image(
            Name="base", Architecture="x86_64", RootDeviceName="/dev/sda1", BlockDeviceMappings=[mapping])["ImageId"]
        return {"subnet": subnet, "group": group, "image": image}


SIMULATED_SITE = {
    "subnet": "subnet-0000000000000000a", "group": "sg-00000000000000002", "image": "ami-00000000000000001"}


def write_aws_config(path, zookeeper, site, rate):
    path = write_config(path, zookeeper, True, 0)
    text = path.read_text().partition("providers:")[0]
    path.write_text(text + f"""providers:
  - name: west
    driver: aws
    region-name: {REGION}
    rate: {rate}
    cloud-images: [{{name: base, image-id: {site['image']}, username: zuul}}]
    pools:
      - name: main
        subnet-id: {site['subnet']}
        security-group-id: {site['group']}
        host-key-checking: false
        labels: [{{name: {LABEL}, cloud-image: base, instance-type: t3.medium, key-name: nodepool}}]
""")


@contextlib.contextmanager
def launcher(arguments, who, kind, rate, *flags, instances=0):
    """ZooKeeper, AWS, launcher process and consumer."""
    program = setting("NODEPOOL_TEST_MOTO") if kind == "moto" else arguments.cloud
    with tempfile.TemporaryDirectory(prefix="nodepool-aws-") as home:
        config = pathlib.Path(home) / "nodepool.yaml"
        with ZooKeeper(home) as zookeeper, Aws(program, home, kind, *flags) as aws:
            site = aws.moto_site() if kind == "moto" else SIMULATED_SITE
            for _ in range(instances // 1000):
                aws.ec2.run_instances(ImageId=site["image"], InstanceType="t3.medium", MinCount=1000, MaxCount=1000)
            write_aws_config(config, zookeeper, site, rate)
            with who.start(config, home, **aws.environment()) as process:
                consumer = Consumer(zookeeper)
                consumer.serve_one()
                yield zookeeper, process, consumer
                consumer.client.stop()


def single(arguments, who):
    return lives.single(launcher(arguments, who, "moto", 2), arguments.rounds)


def many(arguments, who):
    return lives.many(launcher(arguments, who, "moto", 100), arguments.nodes)


def cycles(arguments, who):
    """On a cloud without limits."""
    flags = ("--boot-s", "0.5", "--terminate-s", "0.5")
    return lives.cycles(launcher(arguments, who, "simulated", 10000, *flags), arguments.cycles)


def idle(arguments, who):
    """While the account has many instances."""
    running = launcher(arguments, who, "simulated", 10, "--boot-s", "0.1", instances=arguments.instances)
    return lives.idle(running, arguments.idle)


def rows(arguments):
    measured = measure(arguments, (single, many, cycles, idle))
    return [
        ("request to ready node on moto, median", "", measured[single], "s", "less"),
        (f"{arguments.nodes} requests to ready nodes on moto", "", column(measured[many], 0), "s", "less"),
        (f"{arguments.nodes} used nodes to deleted ones on moto", "", column(measured[many], 1), "s", "less"),
        (f"{arguments.cycles:,} lives of nodes, simulated EC2", "≥ 200 /s", measured[cycles], "/s", "more"),
        (f"processor time with {arguments.instances:,} instances", "≤ 0.5 %", column(measured[idle], 0), "%", "less"),
        (f"memory with {arguments.instances:,} instances", "", column(measured[idle], 1), "MB", "less"),
    ]


def main():
    options = parser(__doc__)
    options.add_argument("--cloud", type=os.path.abspath, required=True, help="the program of the simulated EC2")
    options.add_argument("--rounds", type=int, default=10, help="nodes that are requested and released one by one")
    options.add_argument("--nodes", type=int, default=50, help="nodes that are requested at once on moto")
    options.add_argument("--cycles", type=int, default=500, help="nodes that are requested at once on the simulated EC2")
    options.add_argument("--instances", type=int, default=10000, help="instances of others while nothing changes")
    options.add_argument("--idle", type=float, default=300, help="seconds for which nothing changes")
    arguments = options.parse_args()
    report(arguments, rows(arguments))


if __name__ == "__main__":
    main()
