"""What an embedded broker keeps in a directory, so that it finds it again when it is started anew.

    DIR/cluster.json          topics, ids and settings; transactional ids; committed offsets
    DIR/t-0.log               the batches of partition 0 of topic t, one after the other, as they are on the wire

A batch that was cut off by a crash is cut away. Transactions that were open are aborted: their producers are gone.
Files are not synced to disk: this is no place for data that must survive the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from spark_kafka_sink.broker.offsets import CommittedOffset
from spark_kafka_sink.broker.transactions import Transaction, TransactionState
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.records.decoder import check_batches
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header

if TYPE_CHECKING:
    from spark_kafka_sink.broker.cluster import EmbeddedCluster


class ClusterFiles:
    """The cluster's lock guards it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: list[LogFile] = []
        self._loading = False
        directory.mkdir(parents=True, exist_ok=True)

    def log_file(self, topic: str, partition: int) -> LogFile:
        log = LogFile(self._directory / f"{topic}-{partition}.log")
        self._logs.append(log)
        return log

    def save(self, cluster: EmbeddedCluster) -> None:
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
        state = json.loads(path.read_text())
        coordinator = cluster.coordinator
        coordinator.next_producer_id = state["next_producer_id"]
        for each in state["transactional_ids"]:
            coordinator.transactions[each["id"]] = _transaction(each)
        for group, topic, partition, offset, epoch, metadata in state["offsets"]:
            cluster.offsets.commit(group, {(topic, partition): CommittedOffset(offset, epoch, metadata)})
        self._loading = True
        for each in state["topics"]:
            topic = cluster.create_topic(each["name"], each["partitions"], each["config"], UUID(each["id"]))
            for found in topic.partitions:
                found.log.recover(read_batches(self._directory / f"{topic.name}-{found.index}.log"))
                for producer_id, epoch in found.log.open_transactions():
                    found.log.end_transaction(producer_id, epoch, commit=False, wall_ms=cluster.wall_ms())
        self._loading = False

    def close(self) -> None:
        for log in self._logs:
            log.close()


class LogFile:
    """Guarded by the lock of its log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]

    def delete(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self._file.close()


def read_batches(path: Path) -> Iterator[memoryview]:
    """All whole batches of a log; what follows them is cut off the file."""
    if not path.exists():
        return
    data = memoryview(bytearray(path.read_bytes()))
    at = 0
    while len(data) - at >= HEADER_BYTES:
        try:
            size = parse_header(data[at:]).size_bytes
            check_batches(data[at : at + size])
        except DecodeError:
            break
        yield data[at : at + size]
        at += size
    if at < len(data):
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
    kind = TransactionState(state["state"])
    return Transaction(
        state["id"],
        state["producer_id"],
        state["epoch"],
        state["last_epoch"],
        timeout_ms=state["timeout_ms"],
        # What was open has been aborted by now.
        state=TransactionState.COMPLETE_ABORT if kind is TransactionState.ONGOING else kind,
        version=state["version"],
    )
