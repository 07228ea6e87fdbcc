"""Topics: what the callers of send know of the topics that they write to, and their wait for what is not known yet.

A call waits until the topic's partitions are known: they are asked for at once, and again until the call's time is up.

Where a record names a partition that is not known, it may have been added since the last look at metadata: the call
asks for a second, and at least once. Mostly it is a mistake, so later calls that name a missing partition wait for
nothing, as long as the topic has as many partitions. They ask for metadata only: what was added is known soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import InvalidRecordError, KafkaSinkError, MetadataTimeoutError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.protocol.topic_names import is_topic_name

_ADDED_MS = 1_000.0
"""After this time every broker knows of partitions that were added."""
_IN_USE_MS = 1_000.0
"""For so long it need not be said again that a topic is in use; metadata.max.idle.ms is five seconds or more."""


class _TopicsInUse(NamedTuple):
    """Topics whose partitions are known by this snapshot, and until when metadata need not hear of their use."""

    snapshot: ClusterSnapshot
    until_ms: dict[str, float]


class TopicMetadataWaiter:
    """The topics that callers send to. May be used by any thread."""

    def __init__(
        self,
        metadata: Metadata,
        loop: SenderLoop,
        metrics: ProducerMetrics,
        *,
        wakeup: Callable[[], None],
        max_block_ms: int,
        system: System,
    ) -> None:
        self._metadata = metadata
        self._loop = loop
        self._metrics = metrics
        self._wakeup = wakeup
        self._max_block_ms = max_block_ms
        self._system = system
        self._in_use = _TopicsInUse(metadata.snapshot, {})
        self._missed: dict[str, int] = {}  # topic -> how many partitions it had when an answer was waited for in vain

    def await_partitions(self, topic: str, now: float, partition: int | None = None) -> ClusterSnapshot:
        """Wait until the topic's partitions are known, and `partition` is among them if it is given.

        `now` is when the call began: max.block.ms counts from there. After that it raises MetadataTimeoutError, and
        sooner InvalidRecordError if only the one partition is missing; at once what the brokers refuse for good.
        """
        in_use = self._in_use
        if partition is None and in_use.snapshot is self._metadata.snapshot and now < in_use.until_ms.get(topic, 0.0):
            return in_use.snapshot
        self._metadata.add_topic(topic, now)
        snapshot = self._known(topic, partition) or self._wait(topic, now, partition)
        in_use = self._in_use
        if in_use.snapshot is not snapshot:
            in_use = self._in_use = _TopicsInUse(snapshot, {})
        in_use.until_ms[topic] = now + _IN_USE_MS
        return snapshot

    def prefetch(self, topics: Iterable[str], now: float) -> set[str]:
        """Request metadata of the topics whose partitions are not known, and return these topics, without waiting.

        One request covers all of them. Metadata requests a topic that does not exist again, as long as it is in use.
        """
        snapshot = self._metadata.snapshot
        unknown = {topic for topic in topics if snapshot.partition_count(topic) is None}
        for topic in filter(is_topic_name, unknown):
            self._metadata.add_topic(topic, now)
        return unknown

    def _wait(self, topic: str, began_ms: float, partition: int | None) -> ClusterSnapshot:
        if self._loop.is_current():
            raise self._cannot_wait(topic, partition)
        started_ms = self._system.now()
        try:
            while (snapshot := self._known(topic, partition)) is None:
                was_missed = self._was_missed(topic)
                version = self._metadata.request_update_for_topic(topic)
                self._wakeup()
                in_time = not was_missed and self._await_metadata(version, began_ms + self._max_block_ms)
                is_missing = in_time and self._is_missing(topic, began_ms)
                if (not in_time or is_missing) and self._known(topic, partition) is None:
                    # Look once more: the topic may have become known in the last moment.
                    raise self._unknown(topic, partition)
                # By the latest answer: the right may have been granted since the last call.
                self._metadata.raise_for_topic(topic)
            return snapshot
        finally:
            self._metrics.record_wait("metadata-wait-time", self._system.now() - started_ms)

    def _await_metadata(self, version: int, deadline_ms: float) -> bool:
        remaining_ms = deadline_ms - self._system.now()
        if remaining_ms <= 0:
            return False
        try:
            self._loop.await_metadata(self._metadata, version, remaining_ms)
        except MetadataTimeoutError:
            return False
        return True

    def _is_missing(self, topic: str, began_ms: float) -> bool:
        """The topic is known, and no partition is expected any more."""
        return self._metadata.snapshot.partition_count(topic) is not None and self._system.now() - began_ms >= _ADDED_MS

    def _known(self, topic: str, partition: int | None) -> ClusterSnapshot | None:
        """A snapshot that knows the topic. The next snapshot may not."""
        snapshot = self._metadata.snapshot
        known = snapshot.partition_count(topic) if partition is None else snapshot.partition(topic, partition)
        return None if known is None else snapshot

    def _was_missed(self, topic: str) -> bool:
        count = self._metadata.snapshot.partition_count(topic)
        return count is not None and self._missed.get(topic) == count

    def _cannot_wait(self, topic: str, partition: int | None) -> KafkaSinkError:
        count = self._metadata.snapshot.partition_count(topic)
        if count is None:
            return MetadataTimeoutError(
                f"{format_partition(topic)} is not known yet, and a callback cannot wait for it."
            )
        return InvalidRecordError(
            f"{format_partition(topic)} has no partition {partition}: it has {count}, and a callback cannot wait for "
            "more."
        )

    def _unknown(self, topic: str, partition: int | None) -> KafkaSinkError:
        count = self._metadata.snapshot.partition_count(topic)
        if count is not None:
            self._missed[topic] = count
            return InvalidRecordError(
                f"{format_partition(topic)} has no partition {partition}: it has {count}, numbered from 0, by the "
                "brokers' latest answer."
            )
        reason = self._metadata.topic_error(topic)
        why = str(reason) if reason is not None else self._metadata.describe_missing_metadata(topic)
        limit = f"within max.block.ms ({self._max_block_ms} ms)"
        error = MetadataTimeoutError(f"The partitions of {format_partition(topic)} did not become known {limit}. {why}")
        error.__cause__ = reason
        return error
