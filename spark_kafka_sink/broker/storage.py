"""Persistent storage of an embedded cluster in a directory.

    DIR/cluster.json          topics with their ids and settings; transactional ids; committed offsets
    DIR/in-use                locked while a broker uses the directory
    DIR/t-0.log               the batches of partition 0 of topic t, one after the other, in their wire format

When a broker starts, it truncates each log at the first batch that is incomplete or corrupt, as a crash may leave one
at the end. It also aborts open transactions and fences their producers. Otherwise a producer that outlived the broker
could commit its next records without those that it wrote before the restart.

Files are not synced to disk, so data may be lost if the machine fails. Log files are opened for each append and then
closed, so thousands of partitions need no open file descriptors.
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
from spark_kafka_sink.broker.transaction_coordinator import TransactionMetadata, TransactionState
from spark_kafka_sink.errors import ConfigurationError, DecodeError
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.records.decoder import parse_batches
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header

_log = logging.getLogger(__name__)


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock the directory for one broker. The operating system releases the lock if the process dies.

    Raise ConfigurationError if another broker uses the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "in-use").open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"{directory} is in use by another broker, and two brokers would overwrite each other's records. "
                "Stop that broker, or use another directory."
            ) from None
        try:
            yield
        finally:
            # Closing the file is not enough to unlock it, because a forked child may have it open.
            fcntl.flock(lock_file, fcntl.LOCK_UN)


class ClusterFiles:
    """The files of a cluster; implements ClusterStore. Guarded by the cluster's lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # While loading, existing log files are expected and nothing is saved.
        self._is_loading = False
        directory.mkdir(parents=True, exist_ok=True)

    def log_file(self, topic: str, partition: int) -> LogFile:
        """Return the log file for a new partition. Raise OSError if it has records of a deleted or lost topic."""
        path = self._directory / f"{topic}-{partition}.log"
        if not self._is_loading and path.exists() and path.stat().st_size:
            raise FileExistsError(errno.EEXIST, f"{path} has records of a topic that is not in cluster.json")
        return LogFile(path)

    def save(self, cluster: EmbeddedCluster) -> None:
        """Replace cluster.json. If that fails, leave the file unchanged and raise OSError."""
        if self._is_loading:
            return
        document = {
            "topics": [
                {
                    "name": topic.name,
                    "id": str(topic.id),
                    "partitions": len(topic.partitions),
                    "config": dict(topic.config),
                }
                for topic in cluster.topics.values()
            ],
            "next_producer_id": cluster.coordinator.next_producer_id,
            "transactional_ids": [
                _transaction_to_json(transaction) for transaction in cluster.coordinator.transactions.values()
            ],
            "offsets": [
                [group, topic_name, partition, committed.offset, committed.leader_epoch, committed.metadata]
                for group, offsets in cluster.offsets.committed.items()
                for (topic_name, partition), committed in offsets.items()
                # delete_topic saves before it deletes the topic's offsets, because both must stay if saving fails.
                if topic_name in cluster.topics
            ],
        }
        path = self._directory / "cluster.json"
        new_path = path.with_suffix(".new")
        new_path.write_text(json.dumps(document, indent=1))
        new_path.replace(path)  # atomic: a crash leaves either the old file or the new one

    def load(self, cluster: EmbeddedCluster) -> None:
        """Load topics, logs, transactions and offsets into a new cluster, and abort all open transactions.

        Raise ConfigurationError if cluster.json was not written by a broker, or if a log has an open transaction that
        is not in cluster.json.
        """
        path = self._directory / "cluster.json"
        if not path.exists():
            return
        self._is_loading = True
        try:
            self._load(cluster, json.loads(path.read_text()))
        except ConfigurationError:  # a ValueError that already explains the problem
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{path} was not written by an embedded broker: {type(error).__name__}") from error
        finally:
            self._is_loading = False

    def _load(self, cluster: EmbeddedCluster, document: Any) -> None:
        """Restore the saved state, and abort all open transactions.

        Raise ConfigurationError if a log has an open transaction that is not in cluster.json.
        """
        # Restore the transactions before the logs: once a log is recovered, its partition is added to the transactions
        # that are still open in it.
        coordinator = cluster.coordinator
        coordinator.next_producer_id = document["next_producer_id"]
        for transaction_fields in document["transactional_ids"]:
            coordinator.transactions[transaction_fields["id"]] = _transaction_from_json(transaction_fields)
        # Offsets are saved as lists, so unpack them in the order in which `save` writes their items.
        for group, topic_name, partition_index, offset, leader_epoch, metadata in document["offsets"]:
            committed_offset = CommittedOffset(offset, leader_epoch, metadata)
            cluster.offsets.commit(group, {(topic_name, partition_index): committed_offset})
        transactions_by_producer = {
            transaction.producer_id: transaction for transaction in coordinator.transactions.values()
        }
        for topic_fields in document["topics"]:
            topic = cluster.create_topic(
                topic_fields["name"], topic_fields["partitions"], topic_fields["config"], UUID(topic_fields["id"])
            )
            for partition in topic.partitions:
                log_path = self._directory / f"{topic.name}-{partition.index}.log"
                partition.log.recover(recover_batches(log_path))
                for producer_id in partition.log.list_open_producer_ids():
                    if producer_id not in transactions_by_producer:
                        raise ConfigurationError(
                            f"{log_path} has an open transaction of producer id {producer_id}, which is not in "
                            "cluster.json. Restore the cluster.json that belongs to the log, or use another directory."
                        )
                    transactions_by_producer[producer_id].partitions.add((topic.name, partition.index))
        # Passing infinity as the current time aborts every open transaction.
        coordinator.abort_timed_out_transactions(math.inf)


class LogFile:
    """The file with the batches of one partition. Guarded by the log's lock.

    An append that fails may leave an incomplete batch at the end of the file. It must not stay there: recovery stops at
    the first incomplete batch, so it would lose all batches that are appended and acknowledged later. So the file is
    truncated to its previous end at once or, if that fails as well, at the beginning of the next append.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rollback_position: int | None = None
        """The end of the file before the last append, if that append failed; None if it succeeded.

        It is set at the beginning of each append, and reset to None when the append has succeeded. If it is already set
        when an append begins, the file is first truncated to it.
        """

    def append(self, data: Buffer) -> None:
        """Append a batch. If this raises OSError, the batch is not stored. The next append removes any partial data."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if self._rollback_position is not None:  # the previous append failed
                os.ftruncate(descriptor, self._rollback_position)
            self._rollback_position = os.lseek(descriptor, 0, os.SEEK_END)
            view = memoryview(data)
            try:
                # os.write may write only some of the bytes.
                while view:
                    view = view[os.write(descriptor, view) :]
            except OSError:
                os.ftruncate(descriptor, self._rollback_position)
                raise
        finally:
            os.close(descriptor)
        self._rollback_position = None

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)


def recover_batches(path: Path) -> list[memoryview]:
    """Truncate a log file at the first incomplete or corrupt batch, and return the batches before it.

    A crash leaves an incomplete batch at the end. A corrupt batch in the middle means that the file was damaged. The
    batches after it are dropped as well, as in Kafka's own log recovery.
    """
    if not path.exists():
        return []
    data = memoryview(bytearray(path.read_bytes()))
    batches: list[memoryview] = []
    position = 0
    while len(data) - position >= HEADER_BYTES:
        try:
            size = parse_header(data[position:]).size_bytes
            parse_batches(data[position : position + size])  # raises DecodeError if the batch is incomplete or corrupt
        except DecodeError as error:
            _log.warning("Found no valid batch at byte %d of %s: %s", position, path, error)
            break
        batches.append(data[position : position + size])
        position += size
    if position < len(data):
        _log.warning("Truncated %s: its last %d bytes were not a complete batch", path, len(data) - position)
        os.truncate(path, position)
    return batches


def _transaction_to_json(transaction: TransactionMetadata) -> dict[str, Any]:
    return {
        "id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "last_epoch": transaction.previous_epoch,  # the key in existing data directories
        "timeout_ms": transaction.timeout_ms,
        "state": transaction.state.value,
        "version": transaction.version,
    }


def _transaction_from_json(fields: dict[str, Any]) -> TransactionMetadata:
    return TransactionMetadata(
        fields["id"],
        fields["producer_id"],
        fields["epoch"],
        fields["last_epoch"],
        timeout_ms=fields["timeout_ms"],
        state=TransactionState(fields["state"]),
        version=fields["version"],
    )
