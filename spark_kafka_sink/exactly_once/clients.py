"""Clients of transaction coordinators, kept from batch to batch.

Drivers have them; tasks ask over their producers' connections.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.network.system import System
from spark_kafka_sink.reader.kept_clients import KeptClients

_kept: KeptClients[TransactionsClient] = KeptClients()
os.register_at_fork(after_in_child=_kept.begin_anew)


@contextlib.contextmanager
def lent(config: ClientConfig, *, system: System | None = None) -> Iterator[TransactionsClient]:
    """A client for the time of the block. `system`: of a test; its clients are not kept."""
    if system is not None:
        with contextlib.closing(TransactionsClient(config, system=system)) as client:
            yield client
        return
    with _kept.lent(config, lambda: TransactionsClient(config)) as client:
        yield client


def close_idle() -> None:
    _kept.close_idle()
