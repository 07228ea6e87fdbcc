"""Ports for processes that are started later, and that use the same ports again after a restart.

The ports are outside the range that systems use for outgoing connections. Concurrent test runs use different blocks: a
lock on a file in the temporary directory reserves a block until its owner closes it or ends.
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

FIRST_PORT, LAST_PORT = 20_000, 32_000
BLOCK_PORTS = 40


class PortBlock:
    """Forty ports that are reserved on this machine until the block is closed."""

    def __init__(self) -> None:
        starts = range(FIRST_PORT, LAST_PORT, BLOCK_PORTS)
        for start in random.sample(starts, len(starts)):
            file = _try_lock(Path(tempfile.gettempdir()) / f"spark-kafka-sink-ports-{start}.lock")
            if file is not None:
                self._file = file
                self.start = start
                return
        raise RuntimeError(f"all ports from {FIRST_PORT} to {LAST_PORT} are reserved by other test runs")

    def free_ports(self) -> Iterator[int]:
        """Yield the ports of the block on which no process listens."""
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


def _try_lock(path: Path) -> IO[bytes] | None:
    """Open and lock a file. Return None if another process holds the lock."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
