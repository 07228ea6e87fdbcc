"""Faults of the explorer's reads from the decision log: a stale leader, and compaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from spark_kafka_sink.exactly_once import decision_log
from spark_kafka_sink.exactly_once.decision_log import DecisionLog, LogRecord
from spark_kafka_sink.records.decoder import DecodedBatch
from tests.exactly_once.interleaving import Stage
from tests.simulated_cluster import SimulatedCluster

_iterate_records, _end = decision_log._iterate_records, DecisionLog._end_offset


class LogReads:
    """The reads of a topic of one partition; other topics have no faults."""

    def __init__(self, cluster: SimulatedCluster, stage: Stage, topic: str) -> None:
        self._cluster = cluster
        self._stage = stage
        self._topic = topic
        self._first_stored: dict[bytes, int] = {}
        """Offset of the first record that compaction has kept, by record key."""
        self._stale: dict[str, tuple[int, int]] = {}
        """Number of batches that are missing at the end, and number of reads affected, by actor."""

    def state(self) -> int:
        return hash((tuple(sorted(self._first_stored.items())), tuple(sorted(self._stale.items()))))

    def compact(self) -> None:
        """Hide the records that Kafka's log cleaner would remove if it cleaned all committed records."""
        rows = self._cluster.table(self._topic, 0, committed=True)
        self._first_stored = dict(zip(rows.column("key").to_pylist(), rows.column("offset").to_pylist(), strict=True))

    def ask_stale_leader(self, actor: str, batches: int, reads: int) -> None:
        """Let the log end this number of batches too early in the actor's next reads."""
        self._stale[actor] = batches, reads

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as patches:
            patches.enter_context(patch.object(decision_log, "_iterate_records", self._read))
            patches.enter_context(
                patch.object(DecisionLog, "_end_offset", lambda log, partition: self._end(log, partition))
            )
            yield

    def _read(self, batch: DecodedBatch, key: bytes | None) -> Iterator[tuple[bytes, LogRecord]]:
        for row_key, record in _iterate_records(batch, key):
            if record.offset >= self._first_stored.get(row_key, -1):
                yield row_key, record

    def _end(self, log: DecisionLog, partition: int) -> int:
        end = _end(log, partition)
        actor = "" if self._stage.current is None else self._stage.current.name
        batches, reads = self._stale.get(actor, (0, 0))
        if not reads:
            return end
        self._stale[actor] = batches, reads - 1
        starts = [each.base_offset for each in self._cluster.log(self._topic, partition)._batches]
        return starts[-batches] if batches <= len(starts) else 0
