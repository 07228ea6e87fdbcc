"""Faults of the simulation's reads from the decision log: a stale leader, and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from spark_kafka_sink.exactly_once import log_partition
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.log_partition import LogRecord
from spark_kafka_sink.records.decoder import DecodedBatch
from tests.exactly_once.scheduler import Scheduler
from tests.simulated_cluster import SimulatedCluster

_iterate_records, _fetch_end_offset = log_partition._iterate_records, DecisionLog._fetch_end_offset


class LogReadFaults:
    """Faults in the reads of a topic with one partition. Reads of other topics have no faults."""

    def __init__(self, cluster: SimulatedCluster, scheduler: Scheduler, topic: str) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._topic = topic
        self._first_stored: dict[bytes, int] = {}
        """Offset of the first record that compaction has kept, by record key."""
        self._stale_reads: dict[str, tuple[int, int]] = {}
        """Number of batches that are missing at the end, and number of reads affected, by actor."""

    def state_hash(self) -> int:
        return hash((tuple(sorted(self._first_stored.items())), tuple(sorted(self._stale_reads.items()))))

    def compact(self) -> None:
        """Hide the records that Kafka's log cleaner would remove if it cleaned all committed records."""
        records = self._cluster.table(self._topic, 0, committed=True)
        keys, offsets = records.column("key").to_pylist(), records.column("offset").to_pylist()
        self._first_stored = dict(zip(keys, offsets, strict=True))

    def read_from_stale_leader(self, actor: str, missing_batches: int, reads: int) -> None:
        """Let the log end `missing_batches` too early in the actor's next `reads` end offset lookups."""
        self._stale_reads[actor] = missing_batches, reads

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as patches:
            patches.enter_context(patch.object(log_partition, "_iterate_records", self._read))
            patches.enter_context(
                patch.object(DecisionLog, "_fetch_end_offset", lambda log, partition: self._find_end(log, partition))
            )
            yield

    def _read(self, batch: DecodedBatch, key: bytes | None) -> Iterator[tuple[bytes, LogRecord]]:
        for record_key, record in _iterate_records(batch, key):
            if record.offset >= self._first_stored.get(record_key, -1):
                yield record_key, record

    def _find_end(self, log: DecisionLog, partition: int) -> int:
        end_offset = _fetch_end_offset(log, partition)
        actor = "" if self._scheduler.current is None else self._scheduler.current.name
        missing_batches, reads = self._stale_reads.get(actor, (0, 0))
        if not reads:
            return end_offset
        self._stale_reads[actor] = missing_batches, reads - 1
        base_offsets = [batch.base_offset for batch in self._cluster.log(self._topic, partition)._batches]
        return base_offsets[-missing_batches] if missing_batches <= len(base_offsets) else 0
