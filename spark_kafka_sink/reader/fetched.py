"""Fetched record batches, decoded to the rows that a consumer may see, without any I/O.

A consumer does not see these records:

    control batches, which mark the end of a transaction
    batches of aborted transactions, at isolation level read_committed
    records outside the requested offsets, which are fetched because brokers return whole batches

At read_committed, a broker lists the aborted transactions in the fetched range, each with its producer id and first
offset. From that offset on, the producer's transactional batches are hidden until its abort marker.

Because a few kilobytes of fetched data can contain gigabytes of rows, batches are decoded one at a time, each within
MAX_BATCH_BYTES, and rows are returned in chunks of about CHUNK_BYTES.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.messages.fetch import AbortedTransaction, FetchResponsePartitionData
from spark_kafka_sink.records.decoder import HEADERS_TYPE, DecodedBatch, decode_records, iterate_batches
from spark_kafka_sink.records.header import HEADER_BYTES, BatchHeader

ROWS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""The schema of Spark's Kafka source.

`headers` is null if the record has none. `timestampType` is 0 for CreateTime and 1 for LogAppendTime.
"""

MAX_BATCH_BYTES = 128 << 20
"""Memory limit for decoding one batch. By default, brokers accept batches of up to 1 MiB, after compression."""

CHUNK_BYTES = 16 << 20
"""A chunk of rows is returned once it has at least this size."""

TIMESTAMP_RANGE_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""The range of Python's and Spark's timestamps: the first millisecond of year 1 and the last one of year 9999."""

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_ABORT_MARKER = 0


class StoredBatch(NamedTuple):
    """A batch as stored in the log, not yet decoded except for its header."""

    header: BatchHeader
    data: memoryview

    def decode(self, *, preserve_header_keys: bool = False) -> DecodedBatch:
        """Decode the batch. Raise DecodeError if it is malformed or would need more than MAX_BATCH_BYTES."""
        body = self.data[HEADER_BYTES:]
        columns = decode_records(
            self.header, body, max_bytes=MAX_BATCH_BYTES, preserve_header_keys=preserve_header_keys
        )
        return DecodedBatch(self.header, columns)


@dataclass(frozen=True)
class FetchedRows:
    """A chunk of visible rows, and the offset from which to continue."""

    rows: pa.Table
    next_offset: int
    """The offset after the last decoded batch, even if that batch has no visible rows."""


def iterate_visible_rows(  # noqa: PLR0913 - the range of a partition, and how to decode it
    records: memoryview | bytes | None,
    aborted_transactions: Sequence[AbortedTransaction] | None,
    *,
    topic: str,
    partition: int,
    start: int,
    stop: int,
    preserve_header_keys: bool = False,
) -> Iterator[FetchedRows]:
    """Yield the visible rows with start <= offset < stop, in chunks.

    The last chunk may be empty, but its `next_offset` is valid.

    `aborted_transactions`: the aborted transactions in the response, or None to yield the rows of all transactions.
    `preserve_header_keys`: see decode_records().
    """
    abort_filter = _AbortFilter(aborted_transactions or ())
    tables: list[pa.Table] = []
    chunk_bytes = 0
    next_offset = start
    for stored_batch in iterate_stored_batches(records):
        batch = stored_batch.decode(preserve_header_keys=preserve_header_keys)
        next_offset = max(next_offset, batch.header.last_offset + 1)
        if not abort_filter.should_hide(batch):
            tables.append(_to_rows(batch, topic, partition, start, stop))
            chunk_bytes += tables[-1].nbytes
        del batch  # free its memory before decoding the next batch
        if chunk_bytes >= CHUNK_BYTES:
            yield FetchedRows(pa.concat_tables(tables), next_offset)
            chunk_bytes = 0
            tables.clear()
    yield FetchedRows(pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table(), next_offset)


class _AbortFilter:
    """Finds control batches and the batches of aborted transactions, which must be hidden from consumers."""

    def __init__(self, aborted_transactions: Sequence[AbortedTransaction]) -> None:
        # A heap of (first offset, producer id), so that the transaction that begins next is at index 0.
        self._pending_aborts = [
            (transaction.first_offset, transaction.producer_id) for transaction in aborted_transactions
        ]
        heapq.heapify(self._pending_aborts)
        self._hidden_producer_ids: set[int] = set()

    def should_hide(self, batch: DecodedBatch) -> bool:
        """Return whether the next batch must be hidden from consumers. Call this for every batch, in order."""
        header = batch.header
        while self._pending_aborts and self._pending_aborts[0][0] <= header.last_offset:
            _, producer_id = heapq.heappop(self._pending_aborts)
            self._hidden_producer_ids.add(producer_id)
        if header.is_control:
            if is_abort_marker(batch):
                self._hidden_producer_ids.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._hidden_producer_ids


def get_records(data: FetchResponsePartitionData) -> memoryview | bytes | None:
    """Return a partition's fetched batches in one piece; None if there are none."""
    assert not isinstance(data.records, list | tuple)
    return data.records  # type: ignore[return-value]  # A list of segments is for writing only.


def iterate_stored_batches(records: memoryview | bytes | None) -> Iterator[StoredBatch]:
    """Yield all batches, including control batches and those of open or aborted transactions."""
    return starmap(StoredBatch, iterate_batches(records if records is not None else b""))


def is_abort_marker(batch: DecodedBatch) -> bool:
    """Return whether a control batch aborts, rather than commits, its producer's transaction."""
    keys = batch.columns.column("key")
    # The batch has no record if compaction has removed the marker.
    key = keys[0].as_py() if len(keys) else None
    if key is None:
        return False
    if len(key) < _CONTROL_KEY.size:
        raise DecodeError(f"the control record at offset {batch.header.base_offset} has a key of {len(key)} bytes")
    _, control_type = _CONTROL_KEY.unpack_from(key)
    return bool(control_type == _ABORT_MARKER)


def _convert_timestamps(timestamps: pa.Array) -> pa.Array:
    """Convert milliseconds since the epoch to timestamps in UTC.

    Values outside of TIMESTAMP_RANGE_MS are clamped, because a producer may write any number.
    """
    min_ms, max_ms = TIMESTAMP_RANGE_MS
    clamped_timestamps = pc.min_element_wise(pc.max_element_wise(timestamps, min_ms), max_ms)
    return clamped_timestamps.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _to_rows(batch: DecodedBatch, topic: str, partition: int, start: int, stop: int) -> pa.Table:
    """Convert the records with start <= offset < stop to rows in ROWS_SCHEMA."""
    header, columns = batch
    if header.base_offset < start or header.last_offset >= stop:
        offsets = columns.column("offset")
        is_in_range = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, stop))
        columns = columns.filter(is_in_range)
    row_count = columns.num_rows
    headers = columns.column("headers")
    has_no_headers = pc.equal(pc.list_value_length(headers), 0)
    return pa.table(
        [
            columns.column("key"),
            columns.column("value"),
            pa.repeat(pa.scalar(topic, pa.string()), row_count),
            pa.repeat(pa.scalar(partition, pa.int32()), row_count),
            columns.column("offset"),
            _convert_timestamps(columns.column("timestamp")),
            pa.repeat(pa.scalar(int(header.has_log_append_time), pa.int32()), row_count),
            pc.if_else(has_no_headers, pa.scalar(None, HEADERS_TYPE), headers),
        ],
        schema=ROWS_SCHEMA,
    )
