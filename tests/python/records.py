"""Reads and writes records with the classes of the Python programs: Nodepool's in its environment, Zuul's in Zuul's.

usage: records.py [HOSTS CERTIFICATE KEY AUTHORITY]
"""

import json
import os
import sys

import lines


def of_nodepool(hosts=None, certificate=None, key=None, authority=None):
    from nodepool.zk import ZooKeeperClient
    from nodepool.zk.components import COMPONENT_REGISTRY
    from nodepool.zk.zookeeper import Node, NodeRequest

    if hosts:
        client = ZooKeeperClient(hosts, tls_cert=certificate, tls_key=key, tls_ca=authority)
        client.connect()
        COMPONENT_REGISTRY.create(client)

    def reading(kind):
        def read(text):
            record = kind.fromDict(json.loads(text), "200-0000000001")
            return {"record": record.toDict(), "written": record.serialize().decode("utf-8")}
        return read

    def pools():
        return [
            {"id": pool.id, "name": pool.name, "provider": pool.provider_name, "labels": sorted(pool.supported_labels),
             "priority": pool.priority, "paused": pool.paused, "state": pool.state, "hostname": pool.hostname}
            for pool in COMPONENT_REGISTRY.registry.all("pool")]

    def launchers():
        return [{"hostname": launcher.hostname, "state": launcher.state, "version": launcher.version}
                for launcher in COMPONENT_REGISTRY.registry.all("launcher")]

    return {"node": reading(Node), "request": reading(NodeRequest), "pools": pools, "launchers": launchers}


def of_zuul():
    from zuul import model

    def request(text):
        # The scheduler's cache reads every existing request in this way, whichever client created it.
        found = model.NodeRequest.fromDict(json.loads(text))
        return {"record": found.toDict(), "labels": found.labels, "priority": found.relative_priority}

    return {"request": request}


def main():
    lines.log_to_stderr()
    try:
        import nodepool  # noqa: F401
    except ImportError:
        commands = of_zuul()
    else:
        commands = of_nodepool(*sys.argv[1:])
    lines.serve(commands)
    # The ZooKeeper client has threads that would keep the process running.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
