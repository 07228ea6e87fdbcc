"""Where records go that no broker takes, when the user asked for that instead of a failed task.

A dead letter is the record's key, value and headers, with headers added that say where it was going and why it did not
arrive there. Its own timestamp goes into a header too, since a timestamp may be what the broker had refused. A record
that is too large for its topic is often too large for the dead-letter topic as well: then key and value are cut, and a
header has the size of the value. All of it works on columns, since one bad job may have millions of bad rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.records.columns import RecordColumns, combine_chunks
from spark_kafka_sink.records.header_column import read_header_column

MAX_TRUNCATED_BYTES = 64 * 1024
_MESSAGE_CHARACTERS_MAX = 1_000

TOPIC = "pykafka.topic"
PARTITION = "pykafka.partition"
TIMESTAMP = "pykafka.timestamp"
ERROR = "pykafka.error"
MESSAGE = "pykafka.message"
BATCH = "pykafka.batch"
VALUE_BYTES = "pykafka.value.bytes"


def build_dead_letters(
    columns: RecordColumns, *, topic: str | None, partition: int | pa.Array | None, error: KafkaSinkError, batch: str
) -> RecordColumns:
    """The refused `columns` as they go to the dead-letter topic. `partition`: one for all rows, or one for each."""
    rows = columns.num_rows
    reasons: dict[str, pa.Array] = {
        TOPIC: _same(topic, rows),
        PARTITION: _numbers(partition) if isinstance(partition, pa.Array) else _same(partition, rows),
        ERROR: _same(error.name if isinstance(error, BrokerError) else type(error).__name__, rows),
        MESSAGE: _same(str(error)[:_MESSAGE_CHARACTERS_MAX], rows),
        BATCH: _same(batch, rows),
    }
    if columns.timestamp is not None:
        reasons[TIMESTAMP] = _numbers(combine_chunks(columns.timestamp))
    return RecordColumns(value=columns.value, key=columns.key, headers=_with_headers(columns.headers, reasons, rows))


def truncate(letters: RecordColumns) -> RecordColumns:
    """Cut each dead letter's key and value to at most CUT_BYTES."""
    value = combine_chunks(letters.value).cast(pa.large_binary())
    size = _numbers(pc.binary_length(value))
    key = None if letters.key is None else _first_bytes(combine_chunks(letters.key).cast(pa.large_binary()))
    headers = _with_headers(letters.headers, {VALUE_BYTES: size}, letters.num_rows)
    return RecordColumns(value=_first_bytes(value), key=key, headers=headers)


def _first_bytes(column: pa.Array) -> pa.Array:
    return pc.binary_slice(column, 0, MAX_TRUNCATED_BYTES)


def _same(value: str | int | None, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(None if value is None else str(value).encode(), pa.binary()), rows)


def _numbers(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()).cast(pa.binary())


def _with_headers(headers: pa.Array | pa.ChunkedArray | None, added: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """list<struct<key, value>> of each row's own headers, followed by one for each entry of `added`."""
    starts = np.zeros(rows + 1, np.int64)
    keys, values = pa.array([], pa.string()), pa.array([], pa.binary())
    if headers is not None:
        own = read_header_column(combine_chunks(headers))
        # A header without a key may be the fault for which the record comes here.
        starts, keys, values = own.starts, own.keys.cast(pa.string()).fill_null(""), own.values.cast(pa.binary())
    own_count, added_count = len(keys), len(added)
    ends = starts + added_count * np.arange(rows + 1)

    # Where each header of the result is taken from: its own ones come first, then column after column of the added.
    source = np.empty(int(ends[-1]), np.int64)
    is_own = np.ones(len(source), np.bool_)
    for position in range(added_count):
        at = ends[1:] - added_count + position
        source[at] = own_count + position * rows + np.arange(rows)
        is_own[at] = False
    source[is_own] = np.arange(own_count)
    indices = pa.array(source)
    all_keys = pa.concat_arrays([keys, *(pa.repeat(pa.scalar(name, pa.string()), rows) for name in added)])
    all_values = pa.concat_arrays([values, *added.values()])
    structs = pa.StructArray.from_arrays([all_keys.take(indices), all_values.take(indices)], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs)
