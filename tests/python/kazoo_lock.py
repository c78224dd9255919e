"""kazoo's lock recipe, driven line by line.

usage: kazoo_lock.py HOSTS [CERTIFICATE KEY AUTHORITY]
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.recipe.lock import Lock

import lines


def connect(hosts, certificate=None, key=None, authority=None, timeout=10.0):
    tls = {}
    if certificate:
        # As Nodepool and Zuul connect: the chain is verified, the host name is not.
        tls = dict(use_ssl=True, certfile=certificate, keyfile=key, ca=authority)
    client = KazooClient(hosts=hosts, timeout=timeout, **tls)
    client.start(30)
    return client


def main():
    lines.log_to_stderr()
    client = connect(*sys.argv[1:])
    locks = {}

    def lock(path):
        return locks.setdefault(path, Lock(client, path, "kazoo"))

    def acquire(path, blocking=True, timeout=None):
        try:
            return lock(path).acquire(blocking, timeout)
        except LockTimeout:
            return False

    lines.serve({
        "acquire": acquire,
        "contenders": lambda path: lock(path).contenders(),
        "release": lambda path: lock(path).release(),
        "session": lambda: client.client_id[0],
        "children": lambda path: sorted(client.get_children(path)),
        "get": lambda path: client.get(path)[0].decode("utf-8"),
        "set": lambda path, data: client.set(path, data.encode("utf-8")).version,
        "create": lambda path, data="", ephemeral=False, sequence=False: client.create(
            path, data.encode("utf-8"), ephemeral=ephemeral, sequence=sequence, makepath=True),
        "delete": lambda path, recursive=False: client.delete(path, recursive=recursive),
    })
    client.stop()
    client.close()


if __name__ == "__main__":
    main()
