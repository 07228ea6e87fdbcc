"""TopicMetadataWaiter: lets calling threads wait for the metadata of topics.

A send waits until the partitions of its topic are known. It requests metadata immediately, and again after each update
that does not include the topic, until max.block.ms has passed.

If the caller requests an unknown partition, it may have been added since the last metadata update. So the send keeps
requesting metadata for one second, and at least once. But usually, the partition number is a mistake. Later sends that
request a missing partition therefore fail without waiting, until the topic's number of partitions changes. They still
request metadata, so that an added partition becomes known soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import InvalidRecordError, KafkaSinkError, MetadataTimeoutError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.protocol.topic_names import is_topic_name

_PARTITION_PROPAGATION_MS = 1_000.0
"""Time after which every broker is assumed to know newly added partitions."""
_TOPIC_USE_REFRESH_INTERVAL_MS = 1_000.0
"""Minimum time between two recordings that a topic is in use. Recording takes a lock, so not every send does it.

A send that requests a partition, and the first send after a metadata update, do it in any case. The interval must be
shorter than metadata.max.idle.ms (at least five seconds), after which the metadata of an unused topic is dropped.
"""


class _TopicsInUse(NamedTuple):
    """Topics that have partitions in `snapshot`, and whose use was recorded recently."""

    snapshot: ClusterSnapshot
    refresh_due_ms: dict[str, float]
    """For each topic, the time from which a send must record its use again."""


class TopicMetadataWaiter:
    """Waits for the metadata of the topics that callers send to.

    Thread-safe without a lock: `_topics_in_use` is replaced as a whole. Threads may overwrite each other's changes of a
    dictionary, and an entry may then be lost. That is harmless, because a later call only records a topic's use, or
    waits, once more.
    """

    def __init__(
        self,
        metadata: Metadata,
        loop: SenderLoop,
        metrics: ProducerMetrics,
        *,
        wake_sender: Callable[[], None],
        max_block_ms: int,
        system: System,
    ) -> None:
        self._metadata = metadata
        self._loop = loop
        self._metrics = metrics
        self._wake_sender = wake_sender
        self._max_block_ms = max_block_ms
        self._system = system
        self._topics_in_use = _TopicsInUse(metadata.snapshot, refresh_due_ms={})
        self._partition_counts_at_last_miss: dict[str, int] = {}
        """Partition count of each topic when a call last requested a partition that the topic did not have."""

    def await_partitions(self, topic: str, now_ms: float, partition: int | None = None) -> ClusterSnapshot:
        """Wait until the topic's partitions are known, including `partition` unless it is None. Return the metadata.

        `now_ms`: the time at which the call began; max.block.ms starts then.

        Raise MetadataTimeoutError if the topic is still unknown after max.block.ms. Raise InvalidRecordError if the
        topic has no such partition, usually much earlier. If brokers report a permanent error, raise it immediately.
        """
        topics_in_use = self._topics_in_use
        # Fast path for most calls: the metadata is unchanged, and the use of the topic was recorded recently.
        if (
            partition is None
            and topics_in_use.snapshot is self._metadata.snapshot
            and now_ms < topics_in_use.refresh_due_ms.get(topic, 0.0)
        ):
            return topics_in_use.snapshot
        self._metadata.add_topic(topic, now_ms)
        snapshot = self._find_snapshot(topic, partition) or self._wait_for_partitions(topic, now_ms, partition)
        topics_in_use = self._topics_in_use
        if topics_in_use.snapshot is not snapshot:
            topics_in_use = self._topics_in_use = _TopicsInUse(snapshot, refresh_due_ms={})
        topics_in_use.refresh_due_ms[topic] = now_ms + _TOPIC_USE_REFRESH_INTERVAL_MS
        return snapshot

    def prefetch(self, topics: Iterable[str], now_ms: float) -> set[str]:
        """Request metadata for those topics whose partitions are unknown, and return these topics without waiting.

        One request covers all topics. A topic that does not exist is requested again as long as it is in use.
        """
        snapshot = self._metadata.snapshot
        unknown_topics = {topic for topic in topics if snapshot.partition_count(topic) is None}
        for topic in filter(is_topic_name, unknown_topics):
            self._metadata.add_topic(topic, now_ms)
        return unknown_topics

    def _wait_for_partitions(self, topic: str, call_started_ms: float, partition: int | None) -> ClusterSnapshot:
        """Request metadata until it contains the topic and the partition. Raise the errors of `await_partitions`."""
        if self._loop.is_current():
            raise self._build_callback_error(topic, partition)
        wait_started_ms = self._system.now()
        try:
            while (snapshot := self._find_snapshot(topic, partition)) is None:
                should_continue = self._update_metadata_once(topic, call_started_ms)
                # Look once more before giving up, because the topic may just have become known.
                if not should_continue and self._find_snapshot(topic, partition) is None:
                    self._raise_unknown_topic_or_partition(topic, partition)
                # Check the topic's error only after an update. An error from an earlier one may be obsolete, for
                # example because a permission has been granted in the meantime.
                self._metadata.raise_for_topic(topic)
            return snapshot
        finally:
            self._metrics.record_wait("metadata-wait-time", self._system.now() - wait_started_ms)

    def _update_metadata_once(self, topic: str, call_started_ms: float) -> bool:
        """Request the topic's metadata and wait for it. Return whether another update may help."""
        was_missing = self._was_partition_missing(topic)
        version = self._metadata.request_update_for_topic(topic)
        self._wake_sender()
        if was_missing:  # an earlier call has already waited for a missing partition, so this call only requests it
            return False
        is_updated = self._await_metadata(version, call_started_ms + self._max_block_ms)
        return is_updated and not self._is_certainly_missing(topic, call_started_ms)

    def _await_metadata(self, version: int, deadline_ms: float) -> bool:
        """Wait for metadata that is newer than `version`. Return False after the deadline."""
        remaining_ms = deadline_ms - self._system.now()
        if remaining_ms <= 0:
            return False
        try:
            self._loop.await_metadata(self._metadata, version, remaining_ms)
        except MetadataTimeoutError:
            return False
        return True

    def _is_certainly_missing(self, topic: str, call_started_ms: float) -> bool:
        """Return whether a requested partition that is unknown certainly does not exist.

        It certainly does not if the topic is known and the call has waited long enough for a new partition to become
        known, too.
        """
        is_known = self._metadata.snapshot.partition_count(topic) is not None
        return is_known and self._system.now() - call_started_ms >= _PARTITION_PROPAGATION_MS

    def _find_snapshot(self, topic: str, partition: int | None) -> ClusterSnapshot | None:
        """Return the current snapshot, or None if it does not contain the topic or the requested partition.

        The caller must keep the snapshot, because the next one may not contain the topic anymore.
        """
        snapshot = self._metadata.snapshot
        if partition is None:
            is_known = snapshot.partition_count(topic) is not None
        else:
            is_known = snapshot.partition(topic, partition) is not None
        return snapshot if is_known else None

    def _was_partition_missing(self, topic: str) -> bool:
        """Return whether a call has already missed a partition when the topic had as many partitions as now."""
        partition_count = self._metadata.snapshot.partition_count(topic)
        return partition_count is not None and self._partition_counts_at_last_miss.get(topic) == partition_count

    def _build_callback_error(self, topic: str, partition: int | None) -> KafkaSinkError:
        """Build the error for a send in a callback, which cannot wait because it runs on the sender thread."""
        partition_count = self._metadata.snapshot.partition_count(topic)
        if partition_count is None:
            return MetadataTimeoutError(
                f"{format_partition(topic)} is not known yet, and a callback cannot wait for its metadata."
            )
        return InvalidRecordError(
            f"{format_partition(topic)} has no partition {partition}: it has {partition_count}, and a callback cannot "
            "wait for newer metadata."
        )

    def _raise_unknown_topic_or_partition(self, topic: str, partition: int | None) -> NoReturn:
        """Raise MetadataTimeoutError if the topic is unknown, and InvalidRecordError if only the partition is unknown.

        If only the partition is unknown, the topic's partition count is recorded, so that later calls for a missing
        partition fail immediately instead of waiting (see `_was_partition_missing`).
        """
        partition_count = self._metadata.snapshot.partition_count(topic)
        if partition_count is not None:
            self._partition_counts_at_last_miss[topic] = partition_count
            raise InvalidRecordError(
                f"{format_partition(topic)} has no partition {partition}: it has {partition_count}, numbered from 0, "
                "according to the brokers' latest response."
            )
        cause = self._metadata.topic_error(topic)
        reason = cause.reason if cause is not None else self._metadata.describe_missing_metadata(topic)
        raise MetadataTimeoutError(
            f"The partitions of {format_partition(topic)} did not become known within max.block.ms "
            f"({self._max_block_ms} ms). {reason}"
        ) from cause
