"""What an embedded broker keeps in a directory, so that it finds it again when it is started anew.

    DIR/cluster.json          topics, ids and settings; transactional ids; committed offsets
    DIR/in-use                locked while a broker uses the directory
    DIR/t-0.log               the batches of partition 0 of topic t, one after the other, as they are on the wire

A batch that was cut off by a crash is cut away. Transactions that were open are aborted, and their producers fenced:
one that has outlived the broker would else commit what it writes from now on, without what it wrote before.
Files are not synced to disk: this is no place for data that must survive the machine. A log is opened for each append,
so that thousands of partitions hold no descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.broker.transaction_coordinator import Transaction, TransactionState
from spark_kafka_sink.errors import ConfigurationError, DecodeError
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.records.decoder import parse_batches
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header

_log = logging.getLogger(__name__)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """ConfigurationError if another broker uses the directory. A process that ends by whatever gives it back."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "in-use").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{directory} is used by another broker, and two would write over each other's records. Stop that one, "
                "or name another directory."
            ) from None
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child may have it open, too


class ClusterFiles:
    """The cluster's lock guards it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loading = False
        directory.mkdir(parents=True, exist_ok=True)

    def log_file(self, topic: str, partition: int) -> LogFile:
        """OSError, if records of another topic of that name are there."""
        path = self._directory / f"{topic}-{partition}.log"
        if not self._loading and path.exists() and path.stat().st_size:
            raise FileExistsError(errno.EEXIST, f"{path} has records of a topic that cluster.json does not know")
        return LogFile(path)

    def save(self, cluster: EmbeddedCluster) -> None:
        """OSError leaves the file as it was."""
        if self._loading:
            return
        state = {
            "topics": [
                {"name": t.name, "id": str(t.id), "partitions": len(t.partitions), "config": dict(t.config)}
                for t in cluster.topics.values()
            ],
            "next_producer_id": cluster.coordinator.next_producer_id,
            "transactional_ids": [_transaction_state(t) for t in cluster.coordinator.transactions.values()],
            "offsets": [
                [group, topic, partition, committed.offset, committed.leader_epoch, committed.metadata]
                for group, offsets in cluster.offsets.committed.items()
                for (topic, partition), committed in offsets.items()
            ],
        }
        path = self._directory / "cluster.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(state, indent=1))
        new.replace(path)

    def load(self, cluster: EmbeddedCluster) -> None:
        path = self._directory / "cluster.json"
        if not path.exists():
            return
        self._loading = True
        try:
            self._load(cluster, json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"{path} is not what a broker wrote there: {type(error).__name__}") from error
        finally:
            self._loading = False

    def _load(self, cluster: EmbeddedCluster, state: Any) -> None:
        coordinator = cluster.coordinator
        coordinator.next_producer_id = state["next_producer_id"]
        for each in state["transactional_ids"]:
            coordinator.transactions[each["id"]] = _transaction(each)
        for group, topic, partition, offset, epoch, metadata in state["offsets"]:
            cluster.offsets.commit(group, {(topic, partition): CommittedOffset(offset, epoch, metadata)})
        by_producer = {each.producer_id: each for each in coordinator.transactions.values()}
        for each in state["topics"]:
            created = cluster.create_topic(each["name"], each["partitions"], each["config"], UUID(each["id"]))
            for found in created.partitions:
                found.log.recover(read_batches(self._directory / f"{created.name}-{found.index}.log"))
                for producer_id in found.log.open_transactions():
                    by_producer[producer_id].partitions.add((created.name, found.index))
        coordinator.abort_timed_out(math.inf)


class LogFile:
    """The batches of one partition. Guarded by the lock of its log.

    An append that fails in the middle is cut off again, or batches behind it, which were acknowledged, would be lost:
    reading ends where something is no batch. Where even that fails, the next append begins with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None
        """The end of the last whole batch, after an append has failed. None: the file ends there."""

    def append(self, data: Buffer) -> None:
        """OSError: nothing of `data` is in the file."""
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._end is not None:
                os.ftruncate(handle, self._end)
            self._end = os.lseek(handle, 0, os.SEEK_END)
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(handle, view) :]
            except OSError:
                os.ftruncate(handle, self._end)
                raise
        finally:
            os.close(handle)
        self._end = None

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)


def read_batches(path: Path) -> Iterator[memoryview]:
    """All whole batches of a log; what follows them is cut off the file."""
    if not path.exists():
        return
    data = memoryview(bytearray(path.read_bytes()))
    at = 0
    while len(data) - at >= HEADER_BYTES:
        try:
            size = parse_header(data[at:]).size_bytes
            parse_batches(data[at : at + size])
        except DecodeError:
            break
        yield data[at : at + size]
        at += size
    if at < len(data):
        _log.warning("%s: its last %d bytes are no whole batch and are cut off", path, len(data) - at)
        os.truncate(path, at)


def _transaction_state(transaction: Transaction) -> dict[str, Any]:
    return {
        "id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "last_epoch": transaction.last_epoch,
        "timeout_ms": transaction.timeout_ms,
        "state": transaction.state.value,
        "version": transaction.version,
    }


def _transaction(state: dict[str, Any]) -> Transaction:
    return Transaction(
        state["id"],
        state["producer_id"],
        state["epoch"],
        state["last_epoch"],
        timeout_ms=state["timeout_ms"],
        state=TransactionState(state["state"]),
        version=state["version"],
    )
