"""Clients of transaction coordinators that outlive a batch: of drivers, as tasks ask over their producers' connections.

To connect and to log in takes longer than what a driver has to ask for a batch. So a client goes back when its user has
ended well, and the next user with the same configuration finds it connected. One whose user ended with an error
is closed: answers may be on their way to it for which no caller waits any more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.network.system import System

_IDLE_MAX = 4

_idle: list[tuple[ClientConfig, TransactionsClient]] = []
"""Of this process, the one used last at the end. A worker of Spark has one thread; a forked child begins without
any."""
os.register_at_fork(after_in_child=_idle.clear)


@contextlib.contextmanager
def lent(config: ClientConfig, *, system: System | None = None) -> Iterator[TransactionsClient]:
    """A client for the time of the block. `system`: of a test; its clients are not kept."""
    client = _take(config) if system is None else None
    if client is None:
        client = TransactionsClient(config, system=system)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    if system is not None:
        client.close()
        return
    _idle.append((config, client))
    while len(_idle) > _IDLE_MAX:
        _idle.pop(0)[1].close()


def close_idle() -> None:
    while _idle:
        _idle.pop()[1].close()


def _take(config: ClientConfig) -> TransactionsClient | None:
    for position in reversed(range(len(_idle))):
        if _idle[position][0] == config:
            return _idle.pop(position)[1]
    return None
