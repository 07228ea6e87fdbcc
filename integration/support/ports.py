"""Ports for processes that take them later, and take them again when they are restarted.

They are not among those that systems give to outgoing connections. Runs of the tests beside this one have others: a
lock on a file in the temporary folder says which block is taken, until its owner closes it or ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FIRST, LAST = 20_000, 32_000
BLOCK_PORTS = 40


class PortBlock:
    """Forty ports of which this object is the only owner on this machine, until it is closed."""

    def __init__(self) -> None:
        starts = range(FIRST, LAST, BLOCK_PORTS)
        for start in random.sample(starts, len(starts)):
            file = _locked(Path(tempfile.gettempdir()) / f"spark-kafka-sink-ports-{start}.lock")
            if file is not None:
                self._file = file
                self.start = start
                return
        raise RuntimeError(f"all ports from {FIRST} to {LAST} are taken by other runs of these tests")

    def free_ports(self) -> Iterator[int]:
        """The ports of the block that no process listens on now."""
        for port in range(self.start, self.start + BLOCK_PORTS):
            if _is_free(port):
                yield port

    def close(self) -> None:
        self._file.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def _locked(path: Path) -> IO[bytes] | None:
    """None if somebody else has the lock."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
