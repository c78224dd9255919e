"""Zuul's own side of Nodepool (zuul.nodepool.Nodepool and below), driven line by line; for Zuul 10.2.0 and 13.1.1.

usage: zuul_client.py HOSTS [CERTIFICATE KEY AUTHORITY]

Requests are submitted, watched and revised as by Zuul's scheduler; their nodes are accepted, used, held and returned as by
the executor. All of this is Zuul's code; this file only maps ids to requests.
"""

import inspect
import sys
import threading
import uuid
from configparser import ConfigParser
from types import SimpleNamespace

from zuul import model
from zuul.lib.tracing import Tracing
from zuul.nodepool import Nodepool
from zuul.zk import ZooKeeperClient
from zuul.zk.nodepool import NodeRequestEvent, ZooKeeperNodepool

import lines

PROJECT = "example.org/project"


class Consumer:
    def __init__(self, hosts, certificate=None, key=None, authority=None, timeout=10.0):
        self.client = ZooKeeperClient(hosts, tls_cert=certificate, tls_key=key, tls_ca=authority, timeout=timeout)
        self.client.connect()
        self.nodepool = Nodepool(self.client, "zuul-under-test", statsd=None)
        # The scheduler's caches, without its election: there is only one scheduler here.
        self.completed = {}
        self.completion = threading.Condition()
        self.zk = self.nodepool.zk_nodepool = ZooKeeperNodepool(
            self.client,
            enable_node_request_cache=True,
            node_request_event_callback=self.on_request,
            enable_node_cache=True)
        self.nodesets = {}
        self.tenants = {}

    def on_request(self, request, event):
        with self.completion:
            if event == NodeRequestEvent.COMPLETED:
                self.completed[request.id] = request.state
            else:
                self.completed.setdefault(request.id, "deleted")
            self.completion.notify_all()

    # --- the scheduler ---

    def submit(self, labels, priority=200, relative_priority=0, tenant="tenant", provider=None):
        nodeset = model.NodeSet("nodeset")
        for index, label in enumerate(labels):
            nodeset.addNode(model.Node([f"node{index}"], label))
        job = SimpleNamespace(uuid=uuid.uuid4().hex, name="job", nodeset=nodeset)
        event = SimpleNamespace(zuul_event_id=uuid.uuid4().hex)
        request = self.nodepool.requestNodes(
            uuid.uuid4().hex, job, tenant, "check", provider, priority, relative_priority, event)
        self.nodesets[request.id] = nodeset
        self.tenants[request.id] = tenant
        return request.id

    def wait(self, request, timeout=60):
        """Waits for the event that Zuul waits for; returns the final state of the request."""
        with self.completion:
            if not self.completion.wait_for(lambda: request in self.completed, timeout):
                raise TimeoutError(f"request {request} is {self.state(request)} after {timeout} s")
            return self.completed[request]

    def revise(self, request, relative_priority):
        """Returns the resulting relative priority: a request that is being served is not revised."""
        self.nodepool.reviseRequest(self.zk.getNodeRequest(request), relative_priority)
        return self.zk.getNodeRequest(request).relative_priority

    def cancel(self, request):
        self.nodepool.cancelRequest(self.zk.getNodeRequest(request))

    # --- the executor ---

    def accept(self, request):
        """Locks the nodes and deletes the request; returns the records of the nodes, in requested order."""
        nodeset = self.nodesets[request].copy()
        self.nodepool.acceptNodes(self.zk.getNodeRequest(request), nodeset)
        self.nodesets[request] = nodeset
        return [node.toDict() for node in nodeset.getNodes()]

    def use(self, request):
        self.nodepool.useNodeSet(self.nodesets[request], self.tenants[request], PROJECT)

    def give_back(self, request):
        """Marks nodes in use as used, and unlocks all."""
        build = SimpleNamespace(uuid=uuid.uuid4().hex)
        self.nodepool.returnNodeSet(self.nodesets.pop(request), build, self.tenants[request], PROJECT, 1.5)

    def unlock(self, request):
        self.nodepool.unlockNodeSet(self.nodesets.pop(request))

    def hold(self, request, reason="held by a test", expiration=None):
        """Holds the nodes for an autohold request, and unlocks them; returns the request's id."""
        hold = model.HoldRequest()
        hold.tenant, hold.project, hold.job, hold.ref_filter = self.tenants[request], PROJECT, "job", ".*"
        hold.reason, hold.node_expiration = reason, expiration
        self.zk.storeHoldRequest(hold)
        self.nodepool.holdNodeSet(self.nodesets[request], hold, SimpleNamespace(uuid=uuid.uuid4().hex), 1.5)
        self.give_back(request)
        return hold.id

    def end_hold(self, hold):
        """Marks the held nodes as used, as `zuul-client autohold-delete` does."""
        delete = self.zk.deleteHoldRequest
        # Zuul 13 also has nodes of its own launchers; ours are not of that kind.
        others = [None] * (len(inspect.signature(delete).parameters) - 1)
        delete(self.zk.getHoldRequest(hold), *others)

    # --- state as seen by Zuul ---

    def state(self, request):
        found = self.zk.getNodeRequest(request)
        return found.state if found else None

    def request(self, request):
        found = self.zk.getNodeRequest(request)
        return dict(found.toDict(), nodes=found.nodes) if found else None

    def node(self, node):
        found = self.zk.getNode(node)
        return found.toDict() if found else None

    def list(self):
        """The content of the scheduler's caches, and the launchers."""
        requests = {name: self.zk.getNodeRequest(name, cached=True) for name in self.zk.getNodeRequests(cached=True)}
        return {
            "requests": {name: found.state for name, found in requests.items() if found},
            "nodes": {node.id: node.state for node in self.zk.nodeIterator(cached=True)},
            "launchers": [
                {"id": launcher.id, "labels": sorted(launcher.supported_labels)}
                for launcher in self.zk.getRegisteredLaunchers()],
        }

    def close(self):
        self.client.disconnect()


def main():
    lines.log_to_stderr()
    # As every service of Zuul at its start, with an empty configuration: requests carry the ids of their spans.
    Tracing(ConfigParser())
    consumer = Consumer(*sys.argv[1:])
    names = ["submit", "wait", "revise", "cancel", "accept", "use", "give_back", "unlock", "hold", "end_hold",
             "state", "request", "node", "list"]
    lines.serve({name: getattr(consumer, name) for name in names})
    consumer.close()


if __name__ == "__main__":
    main()
