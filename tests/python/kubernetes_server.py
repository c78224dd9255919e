"""Runs a Kubernetes API of real programs on loopback, for the contract of doc/simulated-kubernetes.md.

usage: kubernetes_server.py PROGRAMS DIRECTORY

PROGRAMS holds etcd, kube-apiserver and kube-controller-manager. DIRECTORY must not exist; it gets certificates, data,
logs and a kubeconfig with the contexts `admin` and `nodepool`. When that file can be used, its path is printed. The
server runs until SIGINT or SIGTERM.

There are no containers: this script binds pods to the node `loopback` and writes their status. The annotations
`loopback/…` of doc/simulated-kubernetes.md control a pod.
"""

import base64
import datetime
import ipaddress
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NODE = "loopback"
CONTROLLERS = "namespace,serviceaccount,serviceaccount-token,resourcequota,garbagecollector"
START_TIMEOUT_S = 120
LOOK_S = 0.02
DEFAULT_DELAY_S = 1.0
# No pod takes longer to stop.
GRACE_MAX_S = 2.0
NEVER = float("inf")


class Authority:
    """Issues the certificates of the server and its clients."""

    def __init__(self, directory):
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes for tests")])
        certificate = self.builder(self.name, self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(self.key, hashes.SHA256())
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        (directory / "ca.crt").write_bytes(self.pem)

    def builder(self, subject, key):
        now = datetime.datetime.now(datetime.timezone.utc)
        return x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(
            key.public_key()).serial_number(x509.random_serial_number()).not_valid_before(
                now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=365))

    def issue(self, name, common_name, organisation=None, is_server=False):
        """Writes NAME.crt and NAME.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        usage = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = self.builder(x509.Name(attributes), key).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False)
        if is_server:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        (self.directory / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(self.directory / f"{name}.key", key)


def write_key(path, key):
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()))


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Api:
    """Calls as an administrator."""

    def __init__(self, directory, port):
        self.base = f"https://127.0.0.1:{port}"
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = str(directory / "ca.crt")
        self.session.cert = (str(directory / "admin.crt"), str(directory / "admin.key"))

    def call(self, method, path, body=None, content_type="application/json", **more):
        data = None if body is None else json.dumps(body)
        return self.session.request(
            method, self.base + path, data=data, headers={"Content-Type": content_type}, timeout=60, **more)

    def create(self, path, body):
        answer = self.call("POST", path, body)
        if answer.status_code != 201:
            raise RuntimeError(f"POST {path}: {answer.status_code} {answer.text}")

    def is_ready(self):
        try:
            return self.call("GET", "/readyz").text == "ok"
        except requests.ConnectionError:
            return False


def start(programs, directory, started):
    """Starts the programs, adds them to the list, and returns the port of the API."""
    port, etcd_port, peer_port = free_ports(3)
    authority = Authority(directory)
    authority.issue("server", "kube-apiserver", is_server=True)
    authority.issue("admin", "admin", "system:masters")
    authority.issue("controllers", "system:kube-controller-manager")
    # Signs the tokens of service accounts.
    accounts = rsa.generate_private_key(65537, 2048)
    write_key(directory / "accounts.key", accounts)
    (directory / "accounts.pub").write_bytes(accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    write_kubeconfig(directory / "controllers.kubeconfig", directory, port, {"controllers": certificate_user(
        directory, "controllers")})

    etcd = f"http://127.0.0.1:{etcd_port}"
    commands = [
        ["etcd", "--data-dir", directory / "etcd", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
         "--listen-peer-urls", f"http://127.0.0.1:{peer_port}"],
        ["kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
         f"--secure-port={port}", f"--cert-dir={directory}", f"--tls-cert-file={directory}/server.crt",
         f"--tls-private-key-file={directory}/server.key", f"--client-ca-file={directory}/ca.crt",
         "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
         f"--service-account-key-file={directory}/accounts.pub",
         f"--service-account-signing-key-file={directory}/accounts.key", "--service-cluster-ip-range=10.96.0.0/16",
         "--endpoint-reconciler-type=none", "--allow-privileged=true"],
        ["kube-controller-manager", f"--kubeconfig={directory}/controllers.kubeconfig",
         "--use-service-account-credentials=true", f"--service-account-private-key-file={directory}/accounts.key",
         f"--root-ca-file={directory}/ca.crt", f"--controllers={CONTROLLERS}", "--leader-elect=false",
         "--bind-address=127.0.0.1", f"--secure-port={free_ports(1)[0]}", f"--cert-dir={directory}"],
    ]
    manager_help = subprocess.run([programs / "kube-controller-manager", "--help"], stdout=subprocess.PIPE, text=True)
    if " --port int" in manager_help.stdout:
        # Versions before 1.24 would open another port, without TLS.
        commands[-1].append("--port=0")
    for command in commands:
        with (directory / f"{command[0]}.log").open("wb") as log:
            words = [str(programs / command[0]), *map(str, command[1:])]
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        if command[0] == "kube-apiserver":
            api = Api(directory, port)
            wait_for("the API", api.is_ready, started)
    return port


def wait_for(what, condition, started):
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (value := condition()):
        if ended := [one.args[0] for one in started if one.poll() is not None]:
            raise RuntimeError(f"{ended[0]} has ended; its log is in the directory")
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for {what}")
        time.sleep(0.1)
    return value


def certificate_user(directory, name):
    def encoded(suffix):
        return base64.b64encode((directory / f"{name}.{suffix}").read_bytes()).decode()

    return {"client-certificate-data": encoded("crt"), "client-key-data": encoded("key")}


def write_kubeconfig(path, directory, port, users):
    certificate = base64.b64encode((directory / "ca.crt").read_bytes()).decode()
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": certificate}
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "current-context": next(iter(users)),
        "clusters": [{"name": "loopback", "cluster": cluster}],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "contexts": [{"name": name, "context": {"cluster": "loopback", "user": name}} for name in users],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(kubeconfig, indent=1))


def create_account(api, started):
    """The service account of the driver; returns its token."""
    core, rbac = "/api/v1/namespaces/default", "/apis/rbac.authorization.k8s.io/v1"
    account = {"kubernetes.io/service-account.name": "nodepool"}
    api.create(f"{core}/serviceaccounts", {"metadata": {"name": "nodepool"}})
    api.create(f"{core}/secrets", {
        "metadata": {"name": "nodepool", "annotations": account}, "type": "kubernetes.io/service-account-token"})
    verbs = ["create", "get", "list", "watch", "delete"]
    group = "rbac.authorization.k8s.io"
    api.create(f"{rbac}/clusterroles", {"metadata": {"name": "nodepool"}, "rules": [
        {"apiGroups": [""], "resources": ["namespaces", "pods", "secrets", "serviceaccounts"], "verbs": verbs},
        {"apiGroups": [group], "resources": ["roles", "rolebindings"], "verbs": verbs},
        {"apiGroups": [group], "resources": ["roles"], "verbs": ["bind", "escalate"]},
    ]})
    api.create(f"{rbac}/clusterrolebindings", {
        "metadata": {"name": "nodepool"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "nodepool"},
        "subjects": [{"kind": "ServiceAccount", "name": "nodepool", "namespace": "default"}]})

    def token():
        return api.call("GET", f"{core}/secrets/nodepool").json().get("data", {}).get("token")

    return base64.b64decode(wait_for("the token of the account", token, started)).decode()


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind, is_true, reason=None, message=None):
    return {"type": kind, "status": "True" if is_true else "False", "lastTransitionTime": now(), "reason": reason,
            "message": message}


def conditions(is_ready):
    reason = None if is_ready else "ContainersNotReady"
    return [condition("Initialized", True), condition("Ready", is_ready, reason),
            condition("ContainersReady", is_ready, reason), condition("PodScheduled", True)]


class Pod:
    """A pod as the API shows it, with its annotations."""

    def __init__(self, body):
        self.body, self.uid = body, body["metadata"]["uid"]
        self.name, self.namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.node = body["spec"].get("nodeName")
        self.phase = body["status"].get("phase")

    def annotation(self, name):
        return (self.body["metadata"].get("annotations") or {}).get(f"loopback/{name}")

    def seconds(self, name, default):
        text = self.annotation(name)
        return default if text is None else NEVER if text == "never" else float(text)

    def state(self):
        """The state of the first container, and its reason."""
        for status in self.body["status"].get("containerStatuses") or []:
            for state, details in status["state"].items():
                return state, (details or {}).get("reason")
        return None, None

    def containers(self, state, is_ready=False, last=None):
        """The status of all containers; `last` is the state before a restart."""
        return [{"name": one["name"], "image": one["image"], "imageID": "", "ready": is_ready, "started": is_ready,
                 "restartCount": int(last is not None), "state": state, "lastState": last or {}}
                for one in self.body["spec"]["containers"]]

    def situation(self):
        """Everything that decides what happens next."""
        metadata = self.body["metadata"]
        told = [one.get("message") for one in self.body["status"].get("conditions") or []]
        return json.dumps([self.node, self.phase, self.state(), metadata.get("annotations"), told,
                           metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds")])


class Kubelet:
    """Decides what happens to each pod, and when."""

    def __init__(self, api):
        self.api, self.addresses = api, 0
        # By uid: the pod, its situation, and the time since which it is in it; None after the next step was taken.
        self.pods = {}

    def next_step(self, pod):
        """Seconds from the beginning of the situation, and what to do then; None if nothing will happen."""
        if pod.node not in (None, "", NODE):
            return None
        if pod.body["metadata"].get("deletionTimestamp"):
            grace = min(pod.body["metadata"].get("deletionGracePeriodSeconds") or 0, GRACE_MAX_S)
            if pod.state()[0] != "running" or not grace:
                return 0, self.remove
            stop = pod.seconds("stop-seconds", grace)
            return (stop if stop == NEVER else min(stop, grace)), self.remove
        if pod.phase in ("Failed", "Succeeded"):
            return None
        if not pod.node:
            message = pod.annotation("unschedulable")
            if message is None:
                return 0, self.bind
            told = [one.get("message") for one in pod.body["status"].get("conditions") or []]
            if message not in told:
                return 0, lambda pod: self.patch(pod, conditions=[
                    condition("PodScheduled", False, "Unschedulable", message)])
            return pod.seconds("unschedulable-seconds", NEVER), self.bind
        return self.next_step_on_node(pod)

    def next_step_on_node(self, pod):
        state, reason = pod.state()
        if state is None:
            return 0, lambda pod: self.wait(pod, "ContainerCreating")
        delay = pod.seconds("delay-seconds", DEFAULT_DELAY_S)
        waiting, end = pod.annotation("waiting"), pod.annotation("end")
        if state == "waiting" and waiting:
            first = "ErrImagePull" if waiting == "ImagePullBackOff" else waiting
            if reason == "ContainerCreating":
                return delay, lambda pod: self.wait(pod, first)
            if reason != waiting:
                return 1, lambda pod: self.wait(pod, waiting)
            delay = pod.seconds("waiting-seconds", NEVER)
        elif state == "waiting" and reason != "ContainerCreating":
            delay = 0
        if end and (state == "running" or pod.annotation("end-seconds") is None):
            return pod.seconds("end-seconds", 0) if state == "running" else delay, self.end
        return (delay, self.run) if state == "waiting" else None

    def look(self):
        for pod, situation, since in list(self.pods.values()):
            step = self.next_step(pod) if since is not None else None
            if step and time.monotonic() - since >= step[0]:
                # The situation changes with the event of this step.
                self.pods[pod.uid] = (pod, situation, None)
                step[1](pod)

    def note(self, kind, body):
        pod = Pod(body)
        if kind == "DELETED":
            self.pods.pop(pod.uid, None)
            return
        known = self.pods.get(pod.uid)
        is_same = known and known[1] == pod.situation()
        self.pods[pod.uid] = (pod, pod.situation(), known[2] if is_same else time.monotonic())

    def patch(self, pod, **status):
        body = {"metadata": {"uid": pod.uid}, "status": status}
        self.api.call("PATCH", f"{pod.path}/status", body, "application/strategic-merge-patch+json")

    def bind(self, pod):
        self.api.call("POST", f"{pod.path}/binding", {
            "metadata": {"name": pod.name, "uid": pod.uid}, "target": {"kind": "Node", "name": NODE}})

    def wait(self, pod, reason):
        is_crash = reason == "CrashLoopBackOff"
        image = pod.body["spec"]["containers"][0]["image"]
        message = pod.annotation("message") or {
            "ErrImagePull": f"failed to pull image {image}", "ImagePullBackOff": f'Back-off pulling image "{image}"',
        }.get(reason)
        state = {"waiting": {"reason": reason, "message": message}}
        crash = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now(), "finishedAt": now()}}
        phase = {"phase": "Running"} if is_crash else {}
        self.patch(pod, conditions=conditions(False),
                   containerStatuses=pod.containers(state, last=crash if is_crash else None), **phase)

    def run(self, pod):
        self.addresses += 1
        address = f"127.86.{self.addresses >> 8 & 255}.{self.addresses & 255}"
        self.patch(pod, phase="Running", hostIP="127.0.0.1", podIP=address, podIPs=[{"ip": address}], startTime=now(),
                   conditions=conditions(True),
                   containerStatuses=pod.containers({"running": {"startedAt": now()}}, is_ready=True))

    def end(self, pod):
        phase = pod.annotation("end")
        has_failed = phase == "Failed"
        ended = {"exitCode": int(pod.annotation("exit-code") or has_failed), "startedAt": now(), "finishedAt": now(),
                 "reason": pod.annotation("reason") or ("Error" if has_failed else "Completed")}
        if pod.annotation("message"):
            ended["message"] = pod.annotation("message")
        status = {"containerStatuses": pod.containers({"terminated": ended})}
        if pod.annotation("pod-reason"):
            # As after an eviction.
            status = {"reason": pod.annotation("pod-reason"), "message": pod.annotation("message"),
                      "containerStatuses": None}
        self.patch(pod, phase=phase, conditions=conditions(False), **status)

    def remove(self, pod):
        self.api.call("DELETE", pod.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}})


def follow_pods(api, events):
    """Puts all events of pods into the queue, from a list onwards."""
    while True:
        try:
            listed = api.call("GET", "/api/v1/pods").json()
            for pod in listed["items"]:
                events.put(("ADDED", pod))
            path = f"/api/v1/pods?watch=1&resourceVersion={listed['metadata']['resourceVersion']}"
            with api.session.get(api.base + path, stream=True, timeout=(10, None)) as stream:
                for line in stream.iter_lines(chunk_size=1):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    events.put((event["type"], event["object"]))
        except requests.RequestException as error:
            print(f"the watch of the pods has ended: {error}", file=sys.stderr)
            time.sleep(1)


def register_node(api):
    api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    size = {"cpu": "1000", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "pods": "10000"}
    status = {"capacity": size, "allocatable": size, "conditions": [condition("Ready", True)],
              "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    api.call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, "application/strategic-merge-patch+json")


def main(programs, directory):
    programs, directory = pathlib.Path(programs), pathlib.Path(directory).absolute()
    directory.mkdir(mode=0o700)
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    started = []
    try:
        port = start(programs, directory, started)
        api, events = Api(directory, port), queue.Queue()
        register_node(api)
        token = create_account(api, started)
        threading.Thread(target=follow_pods, args=(Api(directory, port), events), daemon=True).start()
        kubeconfig = directory / "kubeconfig"
        write_kubeconfig(kubeconfig, directory, port, {"admin": certificate_user(directory, "admin"),
                                                       "nodepool": {"token": token}})
        print(kubeconfig, flush=True)
        kubelet = Kubelet(api)
        while not is_over.wait(LOOK_S):
            while not events.empty():
                kubelet.note(*events.get())
            kubelet.look()
    finally:
        for one in reversed(started):
            # Nothing of theirs is needed any more, and an API server waits for its watches.
            one.kill()
            one.wait()


if __name__ == "__main__":
    os.umask(0o077)
    main(*sys.argv[1:])
