"""Launches and deletes one node of each label with a Kubernetes driver of the Python Nodepool; prints what it did.

usage: kubernetes_reference.py KUBECONFIG CONFIG

CONFIG is a nodepool.yaml with one provider of the driver kubernetes, openshift or openshiftpods. The script prints JSON
values, one per line: for each label the fields of its ready node that Zuul reads, as ZooKeeper would have them; then
the requests of the driver in their order, where `during` is the start, or the launch or deletion of a label.

Placeholders replace tokens, certificates, the URL of the API and random parts of names. Successive requests that are
equal, those of a wait, are printed once, and the discovery of the API's groups is left out.

Configuration, provider, request handler, launcher and deleter are Nodepool's own classes. Only its pool worker and
ZooKeeper are replaced.
"""

import json
import os
import re
import sys
import tempfile
import types
import urllib.parse

import urllib3

import lines

# Fields of a node that Zuul reads and a driver decides.
FIELDS = ["connection_port", "connection_type", "interface_ip", "external_id", "host_id", "cloud", "python_path",
          "shell_type", "resources"]

# Documents about the API, which clients read before their first request and later as they like.
DISCOVERY = re.compile(r"/version.*|/api(/v1)?|/apis(/[^/]+(/v1)?)?")

# Secrets that a cluster creates for a service account: their names end with five random characters.
SECRET = re.compile(r"(/secrets/.*-(?:dockercfg|token)-)[a-z0-9]{5}$")

REQUEST = {"requestor": "zuul", "tenant_name": "tenant-one", "event_id": "event-1", "relative_priority": 2,
           "requestor_data": {"build_set_uuid": "build-set-1"}}


class Requests:
    """Records all requests that urllib3 sends in this process."""

    def __init__(self):
        self.recorded = []
        self.during = "start"
        send = urllib3.HTTPConnectionPool.urlopen

        def record_and_send(pool, method, url, body=None, *args, **kwargs):
            self.record(method, url, body)
            return send(pool, method, url, body, *args, **kwargs)

        urllib3.HTTPConnectionPool.urlopen = record_and_send

    def record(self, method, url, body):
        parts = urllib.parse.urlsplit(url)
        request = {"during": self.during, "method": method, "path": SECRET.sub(r"\1<random>", parts.path),
                   "query": dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)),
                   "body": json.loads(body) if body else None}
        if DISCOVERY.fullmatch(parts.path):
            return
        if not self.recorded or self.recorded[-1] != request:
            self.recorded.append(request)


class ZooKeeper:
    """Replaces ZooKeeper: keeps the records of nodes."""

    def __init__(self):
        self.nodes = {}

    def storeNode(self, node):
        self.nodes[node.id] = json.loads(node.serialize())

    def deleteNode(self, node):
        del self.nodes[node.id]

    def unlockNode(self, node):
        raise RuntimeError(f"node {node.id} was not deleted")


class PoolWorker:
    """Replaces the thread of a pool: tells a request handler what it works with."""

    launcher_id = "launcher"
    nodepool = types.SimpleNamespace(statsd=None)

    def __init__(self, manager, pool, zookeeper):
        self.getProviderManager = lambda: manager
        self.getProviderConfig = lambda: manager.provider
        self.getPoolConfig = lambda: pool
        self.getZK = lambda: zookeeper


def launch(manager, pool, label, number, zookeeper):
    from nodepool.zk import zookeeper as zk

    request = zk.NodeRequest(f"200-{number:010}")
    request.updateFromDict({"state": zk.PENDING, "node_types": [label], **REQUEST})
    node = zk.Node(f"{number:010}")
    node.state = zk.BUILDING
    node.type, node.provider, node.pool = [label], manager.provider.name, pool.name
    handler = manager.getRequestHandler(PoolWorker(manager, pool, zookeeper), request)
    handler._setFromPoolWorker()
    handler.nodeset.append(node)
    if not handler.hasProviderQuota([label]):
        raise RuntimeError(f"the pool {pool.name} has no room for {label}")
    handler.launch(node)
    for thread in handler._threads:
        thread.join()
    if not handler.launchesComplete() or node.state != zk.READY:
        raise RuntimeError(f"the node of {label} is {node.state}")
    return node


def load(path):
    """The configuration as the launcher loads it, after the checks of `nodepool config-validate`."""
    from nodepool import config as nodepool_config
    from nodepool.cmd.config_validator import ConfigValidator

    if ConfigValidator(path).validate() != 0:
        raise RuntimeError("Nodepool refuses the configuration")
    [provider] = nodepool_config.loadConfig(path).providers.values()
    return provider


def use(provider, requests):
    zookeeper = ZooKeeper()
    manager = provider.driver_object.getProvider(provider)
    manager.start(zookeeper)
    if not manager.ready:
        raise RuntimeError("the provider has no client")
    labels = [(pool, label) for pool in provider.pools.values() for label in pool.labels]
    ready, nodes = {}, {}
    for number, (pool, label) in enumerate(labels, 1):
        requests.during = f"launch {label}"
        nodes[label] = launch(manager, pool, label, number, zookeeper)
        ready[label] = {field: zookeeper.nodes[nodes[label].id][field] for field in FIELDS}
    for label, node in nodes.items():
        requests.during = f"delete {label}"
        manager.startNodeCleanup(node).join()
        if node.id in zookeeper.nodes:
            raise RuntimeError(f"the node of {label} still exists")
    return ready


def with_placeholders(nodes):
    for node in nodes.values():
        login = node["connection_port"]
        for key in ["host", "token", "ca_crt"]:
            if login.get(key):
                login[key] = f"<{key}>"
    return nodes


def main(kubeconfig, config):
    requests = Requests()
    with tempfile.TemporaryDirectory() as home:
        # The client of OpenShift keeps what it discovers at an address in a file, for all later processes.
        tempfile.tempdir = home
        # The drivers write the kubeconfig back when they load it.
        os.environ["KUBECONFIG"] = os.path.join(home, "kubeconfig")
        with open(kubeconfig) as source, open(os.environ["KUBECONFIG"], "w") as copied:
            copied.write(source.read())
        nodes = use(load(config), requests)
    for label, fields in with_placeholders(nodes).items():
        print(json.dumps({"node": label, **fields}))
    for request in requests.recorded:
        print(json.dumps(request))


if __name__ == "__main__":
    lines.log_to_stderr()
    main(*sys.argv[1:])
