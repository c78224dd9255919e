"""The parts of a benchmark: a ZooKeeper, the two launchers, the load generator, and their measurements from /proc."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
LABEL = "bench"


def setting(variable):
    return os.environ[variable]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what, condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for {what}")
        time.sleep(0.02)
    return value


class Process:
    """A child process with its output in a file; stopped at the end of the benchmark."""

    def __init__(self, command, log, **options):
        self.log = pathlib.Path(log)
        with self.log.open("ab") as output:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)

    @property
    def pid(self):
        return self.child.pid

    def stop(self, timeout=20):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(timeout)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def resident_mb(self):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024

    def computed(self):
        # The clock id of another process on Linux: precise, while /proc counts hundredths of a second.
        return time.clock_gettime((~self.pid << 3) | 2)


class ZooKeeper(Process):
    """Debian's ZooKeeper with its usual settings (fsync on), with a plain and a TLS port."""

    def __init__(self, home):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="zookeeper-", dir=home))
        self.plain, self.secure = free_port(), free_port()
        tls = setting("NODEPOOL_TEST_TLS")
        (self.home / "zoo.cfg").write_text(
            f"tickTime=2000\ndataDir={self.home}/data\nclientPortAddress=127.0.0.1\nclientPort={self.plain}\n"
            "admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n"
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"secureClientPortAddress=127.0.0.1\nsecureClientPort={self.secure}\nssl.clientAuth=need\n"
            f"ssl.keyStore.location={tls}/server-store.pem\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={tls}/ca.pem\nssl.trustStore.type=PEM\n")
        super().__init__(
            ["java", "-Xmx1g", "-cp", setting("NODEPOOL_TEST_ZOOKEEPER_CLASSPATH"),
             "org.apache.zookeeper.server.quorum.QuorumPeerMain", self.home / "zoo.cfg"], self.home / "log")
        wait_for("ZooKeeper", lambda: "Mode:" in self.ask("srvr"))

    @property
    def address(self):
        return f"127.0.0.1:{self.plain}"

    def ask(self, word):
        try:
            with socket.create_connection(("127.0.0.1", self.plain), 5) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def zxid(self):
        return int(next(line.split()[1] for line in self.ask("srvr").splitlines() if line.startswith("Zxid")), 16)

    def requests_seen(self):
        """Requests of all clients, by session: the number of the last request other than a ping."""
        seen = {}
        for line in self.ask("cons").splitlines():
            fields = dict(part.split("=", 1) for part in line.partition("(")[2].rstrip(")").split(",") if "=" in part)
            if "sid" in fields and "lcxid" in fields:
                seen[fields["sid"]] = int(fields["lcxid"], 16)
        return seen

    def stop(self, timeout=20):
        super().stop(timeout)
        shutil.rmtree(self.home, ignore_errors=True)


def write_config(path, zookeeper, tls, hosts, slots=1, checked_port=None):
    """A static provider with this number of hosts; with `checked_port`, hosts are checked over SSH before each assignment."""
    address, port = ("127.0.0.1", zookeeper.secure if tls else zookeeper.plain)
    lines = ["zookeeper-servers:", f"  - host: {address}", f"    port: {port}"]
    if tls:
        directory = setting("NODEPOOL_TEST_TLS")
        lines += ["zookeeper-tls:", f"  cert: {directory}/client.pem", f"  key: {directory}/client.key",
                  f"  ca: {directory}/ca.pem"]
    lines += ["labels:", f"  - name: {LABEL}", "providers:", "  - name: static-bench", "    driver: static", "    pools:",
              "      - name: main", "        nodes:"]
    for index in range(hosts):
        number = index + 2
        lines += [f"          - name: 127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
                  f"            labels: [{LABEL}]", "            username: zuul",
                  f"            host-key-checking: {'true' if checked_port else 'false'}",
                  f"            max-parallel-jobs: {slots}"]
        if checked_port:
            lines += [f"            connection-port: {checked_port}"]
    path = pathlib.Path(path)
    path.write_text("\n".join(lines) + "\n")
    return path


class Cloud(Process):
    """The simulated OpenStack, configured by its command line."""

    def __init__(self, program, home, *flags):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="cloud-", dir=home))
        self.clouds = self.home / "clouds.yaml"
        super().__init__([program, "--clouds-yaml", self.clouds, *flags], self.home / "log")
        self.base = wait_for("the simulated cloud", lambda: next(
            (line.removeprefix("listening on ") for line in self.log.read_text().splitlines()
             if line.startswith("listening on ")), None))
        # The port of the services may be closed later.
        self.control = self.base
        self.control = self.state()["control"]
        # The servers have no public address, and the reference fails the launch of a server without a known address.
        self.clouds.write_text(self.clouds.read_text().replace("  simulated:\n", "  simulated:\n    private: true\n"))

    def state(self):
        return self.get("state")

    def history(self):
        return self.get("history")["servers"]

    def turn(self, **knobs):
        request = urllib.request.Request(f"{self.control}/sim/knobs", json.dumps(knobs).encode(), method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def get(self, what):
        with urllib.request.urlopen(f"{self.control}/sim/{what}", timeout=60) as answer:
            return json.load(answer)


def write_cloud_config(path, zookeeper, tls, checked_port=None):
    """A provider of the simulated cloud, one label; with `checked_port`, host keys are gathered from this port."""
    path = write_config(path, zookeeper, tls, 0)
    text = path.read_text().partition("providers:")[0]
    path.write_text(text + f"""providers:
  - name: cloud-bench
    driver: openstack
    cloud: simulated
    cloud-images:
      - name: image
        image-name: raw-1M
        username: zuul
        connection-port: {checked_port or 22}
    pools:
      - name: main
        auto-floating-ip: false
        host-key-checking: {"true" if checked_port else "false"}
        networks: [private]
        labels:
          - name: {LABEL}
            cloud-image: image
            flavor-name: tiny
""")
    return path


LOGGING = """\
version: 1
formatters: {plain: {format: '%(asctime)s %(levelname)s %(name)s: %(message)s'}}
handlers: {console: {class: logging.StreamHandler, formatter: plain, stream: ext://sys.stdout}}
root: {level: WARNING, handlers: [console]}
"""


class Contestant:
    """One of the launchers, with its command line tool."""

    def __init__(self, name, directory, tls):
        self.name, self.directory, self.tls = name, pathlib.Path(directory), tls

    @property
    def is_ours(self):
        return self.name.startswith("ours")

    def command(self, config, home, web=False):
        logging = pathlib.Path(home) / "logging.yaml"
        logging.write_text(LOGGING)
        flags = ["-f"] if web else ["-f", "--no-webapp"]
        return [str(self.directory / "nodepool-launcher"), *flags, "-l", str(logging), "-c", str(config)]

    def start(self, config, home, web=False, **environment):
        log = pathlib.Path(home) / f"{self.name.replace(' ', '-')}.log"
        return Process(self.command(config, home, web), log, cwd=home, env={**os.environ, **environment})

    def list_command(self, config):
        return [str(self.directory / "nodepool"), "-c", str(config), "list"]


class Load:
    def __init__(self, program):
        self.program = program

    def run(self, scenario, zookeeper, *arguments, command=()):
        full = [self.program, scenario, "--zookeeper", zookeeper.address, *map(str, arguments)]
        if command:
            full += ["--", *command]
        done = subprocess.run(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "RUST_BACKTRACE": "0"})
        if done.returncode != 0:
            raise RuntimeError(f"{scenario} failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])
