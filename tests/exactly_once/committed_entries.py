"""The committed entries of a simulation in the decision log, read without a client."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from spark_kafka_sink.broker.log import AbortedRange, PartitionLog
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import decode_entry
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.exactly_once.transaction_names import parse_record_key
from spark_kafka_sink.records.decoder import decode_batches
from tests.exactly_once.workloads import PREFIX
from tests.simulated_cluster import SimulatedCluster


class CommittedEntries:
    """The committed entries in a log with one partition. They are decoded again only if the log has changed."""

    def __init__(self, cluster: SimulatedCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._entries: list[Entry] = []
        self._decoded_end = (-1, -1)  # log end offset and last stable offset

    def read(self) -> list[Entry]:
        """Return all entries, oldest first. An entry of generation 0 shows that the entry of its prefix was deleted."""
        log = self._cluster.log(self._topic, 0)
        end = log.log_end_offset, log.last_stable_offset
        if self._decoded_end != end:
            self._decoded_end, self._entries = end, list(_iterate_entries(log))
        return self._entries


def find_batch_number(entry: Entry) -> int | None:
    """Return the number of the entry's batch, or None if no batch was decided.

    For a job without an idempotency key, the driver name in its decision contains the number. Return None for any other
    entry of such a job.
    """
    batch = entry.batch
    if batch.is_idempotent or entry.state is EntryState.OPEN:
        return batch.batch_id if batch.key is None else int(batch.key)
    return int(entry.claimant_name.rpartition(" ")[2]) if entry.state is EntryState.DECIDED else None


def _iterate_entries(log: PartitionLog) -> Iterator[Entry]:
    for key, value in _iterate_committed_records(log):
        encoded_prefix, is_claim = parse_record_key(key or b"")
        prefix = encoded_prefix.decode()
        if prefix != PREFIX and not is_generated_job_prefix(prefix):
            continue
        if value is not None:
            with contextlib.suppress(DecodeError):  # The value of a foreign record is not an entry.
                yield decode_entry(encoded_prefix, value)
        elif is_generated_job_prefix(prefix) and not is_claim:
            yield Entry(prefix)


def _iterate_committed_records(log: PartitionLog) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield the key and the value of each committed record.

    Open transactions hide no records after them, because drivers do not wait for the transactions of other prefixes.
    """
    open_ranges = [
        AbortedRange(producer_id, producer.transaction_first_offset, sys.maxsize)
        for producer_id, producer in log._producers.items()
        if producer.transaction_first_offset is not None
    ]
    for batch in log.read(log.log_start_offset, sys.maxsize).batches:
        for header, columns in decode_batches(batch):
            is_uncommitted = any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in (*log._aborted_ranges, *open_ranges)
            )
            if not header.is_control and not is_uncommitted:
                yield from zip(columns.column("key").to_pylist(), columns.column("value").to_pylist(), strict=True)
