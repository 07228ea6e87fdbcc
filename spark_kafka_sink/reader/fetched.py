"""From the bytes of a fetch to the rows that a consumer may see, a part of them at a time: pure.

Three things in a log are hidden from readers: control batches, which mark the end of a transaction; for read_committed
the batches of transactions that were aborted; and rows outside of what was asked for, because brokers send whole
batches. For read_committed a broker sends, with the batches, the aborted transactions among them: producer id and
first offset. From that offset on, the producer's transactional batches are hidden until its abort marker.

A fetch of some kilobytes can be gigabytes of rows. So batches are decoded one by one, each within BATCH_BYTES_MAX, and
rows are handed out as soon as PART_BYTES of them are there.
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
from spark_kafka_sink.protocol.messages.fetch import AbortedTransaction
from spark_kafka_sink.records.decoder import HEADERS_TYPE, DecodedBatch, batches_in, decode_body
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
"""The columns of Spark's Kafka source. As there, a record without headers has a null, and 0 in timestampType is
CreateTime, 1 LogAppendTime."""

BATCH_BYTES_MAX = 128 << 20
"""What decoding one batch may take. Brokers take batches of a megabyte by default, mostly compressed."""

PART_BYTES = 16 << 20

TIMES_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""The first millisecond of the year 1 and the last of the year 9999: no other time can be shown."""

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_ABORT_MARKER = 0


class StoredBatch(NamedTuple):
    """As it lies in the log: its records may be anything that a broker has taken."""

    header: BatchHeader
    data: memoryview

    def decoded(self) -> DecodedBatch:
        return DecodedBatch(self.header, decode_body(self.header, self.data[HEADER_BYTES:], bytes_max=BATCH_BYTES_MAX))


@dataclass(frozen=True)
class FetchedRows:
    rows: pa.Table
    next_offset: int
    """Where to go on: after the last batch so far, whether its rows were visible or not."""


def visible_rows(
    records: memoryview | bytes | None,
    aborted: Sequence[AbortedTransaction] | None,
    *,
    topic: str,
    partition: int,
    start: int,
    stop: int,
) -> Iterator[FetchedRows]:
    """The visible rows with start <= offset < stop. `aborted` is what came with the records; None: show all.

    The last part may have no rows; its `next_offset` counts all the same.
    """
    hidden: set[int] = set()
    to_hide = [(transaction.first_offset, transaction.producer_id) for transaction in aborted or ()]
    heapq.heapify(to_hide)
    tables: list[pa.Table] = []
    size, next_offset = 0, start
    for batch in map(StoredBatch.decoded, stored_batches(records)):
        header = batch.header
        next_offset = max(next_offset, header.last_offset + 1)
        while to_hide and to_hide[0][0] <= header.last_offset:
            hidden.add(heapq.heappop(to_hide)[1])
        if header.control:
            if is_abort_marker(batch):
                hidden.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in hidden):
            tables.append(_rows(batch, topic, partition, start, stop))
            size += tables[-1].nbytes
        del batch  # or it stays while the next one is decoded
        if size >= PART_BYTES:
            yield FetchedRows(pa.concat_tables(tables), next_offset)
            size = 0
            tables.clear()
    yield FetchedRows(pa.concat_tables(tables) if tables else ROWS_SCHEMA.empty_table(), next_offset)


def stored_batches(records: memoryview | bytes | None) -> Iterator[StoredBatch]:
    """All batches as they are stored: control batches, and those of transactions that are open or were aborted, too."""
    return starmap(StoredBatch, batches_in(records if records is not None else b""))


def is_abort_marker(batch: DecodedBatch) -> bool:
    """Whether a control batch says that its producer's transaction was aborted; else it was committed."""
    keys = batch.columns.column("key")
    # A control batch may have lost its marker to compaction.
    key = keys[0].as_py() if len(keys) else None
    if key is None:
        return False
    if len(key) < _CONTROL_KEY.size:
        raise DecodeError(f"the control record at offset {batch.header.base_offset} has a key of {len(key)} bytes")
    _, kind = _CONTROL_KEY.unpack_from(key)
    return bool(kind == _ABORT_MARKER)


def _times(timestamps: pa.Array) -> pa.Array:
    """A producer may have written any number: one that is no time becomes the nearest one that is."""
    within = pc.min_element_wise(pc.max_element_wise(timestamps, TIMES_MS[0]), TIMES_MS[1])
    return within.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _rows(batch: DecodedBatch, topic: str, partition: int, start: int, stop: int) -> pa.Table:
    header, columns = batch
    if header.base_offset < start or header.last_offset >= stop:
        offset = columns.column("offset")
        columns = columns.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, stop)))
    count = columns.num_rows
    headers = columns.column("headers")
    without = pc.equal(pc.list_value_length(headers), 0)
    return pa.table(
        [
            columns.column("key"),
            columns.column("value"),
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            columns.column("offset"),
            _times(columns.column("timestamp")),
            pa.repeat(pa.scalar(int(header.log_append_time), pa.int32()), count),
            pc.if_else(without, pa.scalar(None, HEADERS_TYPE), headers),
        ],
        schema=ROWS_SCHEMA,
    )
