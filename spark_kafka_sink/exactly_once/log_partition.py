"""LogPartitionState: what a process has read so far from one partition of the decision log.

A decision is a record that lists the transactions of a batch to commit. A claim is a record that names a query's
current driver. Each record belongs to a prefix, the name of a query or job.

For each prefix and each producer, the state keeps only the newest valid record. It keeps the producers apart because
the reader learns only later which of them are drivers of the prefix. decision_log.py then selects a prefix's record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.exactly_once.entry_json import decode_driver_number, decode_followed_offset
from spark_kafka_sink.exactly_once.transaction_names import build_claim_key, parse_record_key
from spark_kafka_sink.reader.fetched import StoredBatch, is_abort_marker
from spark_kafka_sink.records.decoder import DecodedBatch


@dataclass(frozen=True)
class LogRecord:
    """A decision, a claim, or a deletion of a prefix's entry."""

    offset: int
    writer_identity: ProducerIdAndEpoch
    """The producer id and epoch in the header of the record's batch."""
    value: bytes | None
    """The encoded entry, which is the state of the query or job; None if the record deletes it."""
    is_claim: bool = False
    last_invalid_offset: int = -1
    """The offset of the same producer's newest invalid record that follows this one; -1 if there is none."""

    @cached_property
    def driver_number(self) -> int | None:
        """The number of the driver id that the record names as the current one; None if it names none.

        A deletion and a record that cannot be read name none.
        """
        return None if self.value is None else decode_driver_number(self.value)


@dataclass
class LogPartitionState:
    """The records read so far from one partition, for one prefix or for all of them."""

    next_offset: int
    """The offset at which to continue reading."""
    newest_records: dict[bytes, dict[int, LogRecord]] = field(default_factory=dict)
    """The last valid record in a committed transaction, by prefix and producer id."""
    non_transactional_records: dict[bytes, LogRecord] = field(default_factory=dict)
    """The last record that was written outside of a transaction, by prefix."""
    open_transaction_records: dict[int, list[tuple[bytes, LogRecord]]] = field(default_factory=dict)
    """The records in transactions that are neither committed nor aborted yet, with their prefixes, by producer id."""
    unreadable_records: dict[int, tuple[LogRecord, DecodeError]] = field(default_factory=dict)
    """The last batch that could not be decoded, and the error, by producer id.

    The batch is represented by a LogRecord without a value, at the batch's first offset. A batch outside of a
    transaction is stored under NO_PRODUCER_ID, because any client can put any producer id into such a batch.
    """

    def add_batch(self, stored_batch: StoredBatch, encoded_prefix: bytes | None) -> None:
        """Add a record batch. Batches must be added in the order of their offsets.

        A control batch contains no records of a prefix: it commits or aborts its producer's transaction. A batch that
        cannot be decoded is added to `unreadable_records`.

        `encoded_prefix`: the prefix whose records to add; None to add the records of all prefixes.
        """
        header = stored_batch.header
        try:
            batch = stored_batch.decode()
        except DecodeError as error:
            # Brokers accept batches that the decoder rejects, such as one that decompresses to 1,000 times its size.
            writer_identity = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID.producer_id
            unreadable_record = LogRecord(header.base_offset, writer_identity, value=None)
            # Keep only the newest one per producer, which is enough to find out whether one follows the prefix's entry.
            # Older ones get no warning.
            self.unreadable_records[producer_id] = (unreadable_record, error)
            return
        if header.is_control:
            # The batch is empty if compaction has removed the marker.
            if batch.columns.num_rows:
                self._end_transaction(header.producer_id, aborted=is_abort_marker(batch))
            return
        for record_key, record in _iterate_records(batch, encoded_prefix):
            prefix, is_claim = parse_record_key(record_key)
            # A record with the key of claims but no value says nothing about the entry. It is the first of the two
            # records of a claim, or it deletes the claims of a prefix.
            if is_claim and record.value is None:
                continue
            record = replace(record, is_claim=is_claim)
            if header.is_transactional:
                self.open_transaction_records.setdefault(header.producer_id, []).append((prefix, record))
            else:
                self.non_transactional_records[prefix] = record

    def _end_transaction(self, producer_id: int, *, aborted: bool) -> None:
        """Move the records of the producer's open transaction to `newest_records`, or drop them if it was aborted."""
        records = self.open_transaction_records.pop(producer_id, ())
        if aborted:
            return
        for prefix, record in records:
            newest_records = self.newest_records.setdefault(prefix, {})
            previous_record = newest_records.get(producer_id)
            if previous_record is None or _is_valid(record, previous_record):
                newest_records[producer_id] = record
            else:
                newest_records[producer_id] = replace(previous_record, last_invalid_offset=record.offset)


def _is_valid(record: LogRecord, previous_record: LogRecord) -> bool:
    """Return whether a record in a committed transaction is valid, given the same producer's newest valid record.

    A claim is valid only if its driver had read `previous_record`, unless that record deletes the prefix's entry. Other
    records are always valid. A claim that cannot be decoded also counts as valid, because a newer version of the
    library may have written it. Reading the prefix's entry then raises an error.
    """
    if not record.is_claim or record.value is None or previous_record.value is None:
        return True
    followed_offset = decode_followed_offset(record.value)
    return followed_offset is None or previous_record.offset <= followed_offset


def _iterate_records(batch: DecodedBatch, encoded_prefix: bytes | None) -> Iterator[tuple[bytes, LogRecord]]:
    """Yield each record in a record batch, with its key. Records without a key belong to no prefix, and are omitted.

    `encoded_prefix`: the prefix whose records to yield; None for the records of all prefixes.
    """
    columns, header = batch.columns, batch.header
    writer_identity = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    keys = columns.column("key")
    if encoded_prefix is None:
        selection_mask = keys.is_valid()
    else:
        # The prefix itself is the key of its decisions.
        prefix_keys = pa.array([encoded_prefix, build_claim_key(encoded_prefix.decode())], keys.type)
        selection_mask = pc.is_in(keys, prefix_keys)
    rows = columns.filter(selection_mask)
    record_keys, values, offsets = (rows.column(name).to_pylist() for name in ("key", "value", "offset"))
    for record_key, value, offset in zip(record_keys, values, offsets, strict=True):
        yield record_key, LogRecord(offset, writer_identity, value)
