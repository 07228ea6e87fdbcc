"""Before any task starts, the driver opens a connection to one of the bootstrap servers and closes it again.

A wrong address would else show itself only in the tasks, after `max.block.ms` and Spark's four attempts: minutes. The
check is about the address alone; who may write what is asked by the producers, which know how to say it.

A stream plans every micro-batch anew, and must not fail because its broker restarts just then. So an address that
answered once is not tried again by the same process, and one that does not answer gets a few seconds to do so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from spark_kafka_sink.errors import NetworkError

PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.25

_answered: set[tuple[str, ...]] = set()


def check_connection(servers: Sequence[str], patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Raise NetworkError, with every address and its fault, if no server takes a connection in time."""
    if tuple(servers) in _answered:
        return
    deadline = time.monotonic() + patience_seconds
    while True:
        faults: dict[str, OSError] = {}
        for server in servers:
            fault = _fault_of(server, max(0.1, deadline - time.monotonic()))
            if fault is None:
                _answered.add(tuple(servers))
                return
            faults[server] = fault
        nobody_is_known = all(isinstance(error, socket.gaierror) for error in faults.values())
        if nobody_is_known or time.monotonic() + _PAUSE_SECONDS > deadline:
            raise NetworkError(_words(faults))
        time.sleep(_PAUSE_SECONDS)


def _fault_of(server: str, timeout_seconds: float) -> OSError | None:
    """None if it takes a connection."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_seconds).close()
    except OSError as error:
        return error
    return None


def _words(faults: dict[str, OSError]) -> str:
    each = "; ".join(f"{server}: {error.strerror or error}" for server, error in faults.items())
    return (
        f"The driver could not connect to any of the servers in kafka.bootstrap.servers ({each}). "
        "Check host and port, and that a broker listens there. If only the executors can reach Kafka, "
        'say .option("checkConnection", "false").'
    )
