"""Operations of kazoo, and of Nodepool's client on top of it, with a coordinator, driven line by line.

usage: kazoo_embedded.py HOSTS [CERTIFICATE KEY AUTHORITY]
"""

import socket
import sys
import threading

from kazoo.protocol.states import KazooState
from kazoo.recipe.barrier import DoubleBarrier
from kazoo.recipe.cache import TreeCache
from kazoo.recipe.counter import Counter
from kazoo.recipe.lock import Lock
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from nodepool.zk.vendor.client import ZuulKazooClient
from nodepool.zk.vendor.states import AddWatchMode

import lines


def wait_for(condition, what):
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"timed out waiting for {what}")


def main():
    lines.log_to_stderr()
    hosts, *files = sys.argv[1:]
    tls = dict(zip(("certfile", "keyfile", "ca"), files), use_ssl=True) if files else {}

    def connect(**more):
        client = ZuulKazooClient(hosts=hosts, timeout=4.0, **tls, **more)
        client.start(30)
        return client

    first, second = connect(), connect()

    def locks():
        held, wanted = Lock(first, "/locks/l", "one"), Lock(second, "/locks/l", "two")
        assert held.acquire()
        assert not wanted.acquire(blocking=False)
        order = []
        waiting = threading.Thread(target=lambda: wanted.acquire(timeout=20) and order.append("two"))
        waiting.start()
        wait_for(lambda: len(held.contenders()) == 2, "the second contender")
        assert held.contenders() == ["one", "two"], held.contenders()
        order.append("one")
        held.release()
        waiting.join(20)
        wanted.release()
        return order

    def counter():
        counter = Counter(first, "/counter")
        other = Counter(second, "/counter")
        for _ in range(20):
            counter += 1
            other += 2
        return counter.value

    def barrier():
        sides = [DoubleBarrier(client, "/barrier", 2) for client in (first, second)]
        inside = []

        def take_part(side):
            side.enter()
            inside.append(True)
            side.leave()

        threads = [threading.Thread(target=take_part, args=(side,)) for side in sides]
        [thread.start() for thread in threads]
        [thread.join(20) for thread in threads]
        return len(inside)

    def tree_cache():
        first.ensure_path("/cache/a")
        cache = TreeCache(second, "/cache")
        seen = []
        cache.listen(lambda event: seen.append(event.event_type))
        cache.start()
        wait_for(lambda: cache.get_data("/cache/a"), "the cached child")
        first.create("/cache/a/b", b"new")
        first.set("/cache/a", b"changed")
        wait_for(lambda: cache.get_data("/cache/a").data == b"changed", "the change")
        wait_for(lambda: cache.get_data("/cache/a/b"), "the new child")
        first.delete("/cache/a/b")
        wait_for(lambda: cache.get_data("/cache/a/b") is None, "the removal")
        cache.close()
        return sorted(cache.get_children("/cache", default=()))

    def recursive_watch():
        first.ensure_path("/watched")
        events = []
        second.add_watch("/watched", events.append, AddWatchMode.PERSISTENT_RECURSIVE)
        first.create("/watched/a", b"")
        first.set("/watched/a", b"x")
        first.create("/watched/a/b", b"", ephemeral=True)
        first.delete("/watched/a/b")
        wait_for(lambda: len(events) == 4, "four events")
        return [[event.type, event.path] for event in events]

    def transactions():
        transaction = first.transaction()
        transaction.create("/t", b"one")
        transaction.create("/t/s-", b"", sequence=True, ephemeral=True)
        transaction.check("/t", 0)
        transaction.set_data("/t", b"two")
        done = transaction.commit()
        failing = first.transaction()
        failing.set_data("/t", b"three")
        failing.delete("/missing")
        failing.check("/t", 1)
        failed = failing.commit()
        return [done[0], done[1], done[2], done[3].version,
                [type(result).__name__ for result in failed], first.get("/t")[0].decode()]

    def access_lists():
        first.add_auth("digest", "me:secret")
        first.create("/acl", b"", acl=OPEN_ACL_UNSAFE)
        acl = [*OPEN_ACL_UNSAFE, make_digest_acl("me", "secret", read=True)]
        first.set_acls("/acl", acl)
        kept, stat = first.get_acls("/acl")
        return [sorted(entry.id.scheme for entry in kept), stat.aversion, kept == acl]

    def session():
        """A client that loses its connection without closing it resumes the same session."""
        lost = connect()
        lost.create("/ephemeral", b"", ephemeral=True)
        session, password = lost.client_id
        states = []
        lost.add_listener(states.append)
        lost._connection._socket.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: states[:2] == [KazooState.SUSPENDED, KazooState.CONNECTED], "the return")
        same = lost.client_id == (session, password)
        owner = first.exists("/ephemeral").ephemeralOwner == session
        lost.stop()
        lost.close()
        return [same, owner, first.exists("/ephemeral") is None]

    def bulk():
        first.ensure_path("/bulk")
        made = [first.create_async("/bulk/n-", b"x" * 500, sequence=True) for _ in range(2000)]
        paths = [result.get(60) for result in made]
        read = [first.get_async(path) for path in paths]
        return [paths[-1], sum(len(result.get(60)[0]) for result in read), len(first.get_children("/bulk"))]

    lines.serve({
        function.__name__: function
        for function in (locks, counter, barrier, tree_cache, recursive_watch, transactions, access_lists, session, bulk)
    })
    for client in (first, second):
        client.stop()
        client.close()


if __name__ == "__main__":
    main()
