"""Follows ZooKeeper's transaction log: every change of the tree, in its order, with its time, without a load on the server.

`crates/testkit/src/history_checker/zk_txn_log.rs` reads the same format.
"""

import dataclasses
import pathlib
import struct
import zlib

HEADER = 16
# Longer than the longest entry.
READ_SIZE = 4 << 20
CREATE, UPDATE = "create", "update"
KINDS = {1: CREATE, 15: CREATE, 19: CREATE, 21: CREATE, 5: UPDATE}
MULTI, REJECTED = 14, -1


@dataclasses.dataclass
class Transaction:
    session: int
    # Seconds since the Unix epoch, by ZooKeeper's clock.
    at: float
    # Kind, path and data of each creation and update.
    changes: list


class TransactionLog:
    def __init__(self, data_dir):
        self.folder, self.file, self.offset = pathlib.Path(data_dir) / "version-2", None, HEADER

    def read(self):
        """The transactions since the last call."""
        found = []
        while True:
            # ZooKeeper completes a file before it creates the next one, so the names are read first.
            later = [file for file in self.folder.glob("log.*") if self.file is None or first_zxid(file) > first_zxid(self.file)]
            while self.file and (entries := self.entries()):
                found += entries
            if not later:
                return found
            self.file, self.offset = min(later, key=first_zxid), HEADER

    def entries(self):
        """The next complete entries. Zeros fill the rest of the file."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            data, position, found = file.read(READ_SIZE), 0, []
        while len(data) >= position + 12:
            checksum, length = struct.unpack_from(">qi", data, position)
            body = data[position + 12:position + 12 + length]
            if length <= 0 or len(body) < length or zlib.adler32(body) != checksum:
                break
            found.append(transaction(body))
            # A byte ends the entry.
            position += 12 + length + 1
        self.offset += position
        return found


def first_zxid(file):
    return int(file.name.removeprefix("log."), 16)


def transaction(body):
    session, _, _, milliseconds, kind = struct.unpack_from(">qiqqi", body)
    return Transaction(session, milliseconds / 1000, changes(kind, body[32:]))


def changes(kind, body):
    if kind == MULTI:
        (count,), position, parts = struct.unpack_from(">i", body), 4, []
        for _ in range(count):
            part, length = struct.unpack_from(">ii", body, position)
            parts.append((part, body[position + 8:position + 8 + length]))
            position += 8 + length
        # A rejected transaction contains the operations before the rejected one.
        if any(part == REJECTED for part, _ in parts):
            return []
        return [change for part, content in parts for change in changes(part, content)]
    if kind not in KINDS:
        return []
    path, rest = buffer(body)
    return [(KINDS[kind], path.decode(), buffer(rest)[0])]


def buffer(body):
    (length,) = struct.unpack_from(">i", body)
    end = 4 + max(length, 0)
    return body[4:end], body[end:]
