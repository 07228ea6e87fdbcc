"""Hypothesis strategies for rows of every shape and their layouts in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from spark_kafka_sink.records.columns import RecordColumns
from tests.records.reference_encoder import Row

NOW = 1_790_000_000_000

payloads = st.one_of(
    st.none(),
    st.just(b""),
    st.binary(max_size=12),
    st.text(max_size=8).map(str.encode),
    st.sampled_from([1, 62, 63, 64, 65, 127, 128, 8191, 8192]).map(lambda size: b"v" * size),
)
header_lists = st.one_of(
    st.none(),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=4).map(tuple),
)
timestamps = st.one_of(
    st.none(),
    st.integers(NOW - 100, NOW + 100),
    st.integers(-1, 1 << 42),
    st.sampled_from([-1, 0, NOW - 64, NOW + 63, NOW + 64, (1 << 62) + NOW, (1 << 63) - 2]),
)
mixed_rows = st.lists(st.builds(Row, payloads, payloads, header_lists, timestamps), min_size=1, max_size=40)


@st.composite
def equal_size_rows(draw: st.DrawFn) -> list[Row]:
    """Draw rows whose keys, values and headers have equal sizes, which the encoder handles in its strided path."""
    count = draw(st.integers(1, 150))
    key = draw(st.none() | st.binary(max_size=20))
    value = draw(st.none() | st.binary(max_size=140))
    times = draw(st.one_of(st.none(), st.lists(timestamps, min_size=count, max_size=count)))
    same_headers = draw(header_lists)
    headers = draw(st.sampled_from([None, same_headers]))
    return [Row(value, key, headers, times[i] if times else None) for i in range(count)]


BYTE_TYPES: list[pa.DataType] = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES: list[pa.DataType] = [pa.string(), pa.large_string(), pa.string_view()]
LIST_TYPES: list[pa.DataType] = [
    make(pa.struct([("key", key), ("value", value)]))
    for make, key, value in [
        (pa.list_, pa.string(), pa.binary()),
        (pa.large_list, pa.large_string(), pa.large_binary()),
        (pa.list_, pa.binary(), pa.binary()),
    ]
] + [pa.map_(pa.string(), pa.binary())]


def is_text(data: Sequence[bytes | None]) -> bool:
    try:
        return all(item is None or item.decode() is not None for item in data)
    except UnicodeDecodeError:
        return False


@st.composite
def arrow_columns(draw: st.DrawFn, rows: Sequence[Row]) -> RecordColumns:
    """Draw columns for the rows: any suitable types, as plain, sliced or chunked arrays."""
    layout = draw(st.sampled_from(["plain", "sliced", "chunked"]))
    lay_out: Callable[[list[Any], pa.DataType], Any] = {"plain": pa.array, "sliced": sliced, "chunked": chunked}[layout]

    def read_byte_column(data: list[bytes | None]) -> Any:
        kinds = BYTE_TYPES + (TEXT_TYPES if is_text(data) else [])
        return lay_out(list(data), draw(st.sampled_from(kinds)))

    keys, headers = [row.key for row in rows], [row.headers for row in rows]
    times = [row.timestamp for row in rows]
    return RecordColumns(
        read_byte_column([row.value for row in rows]),
        None if not any(key is not None for key in keys) and draw(st.booleans()) else read_byte_column(keys),
        header_array(headers, draw(st.sampled_from(LIST_TYPES)), lay_out) if any(headers) else None,
        None if not any(time is not None for time in times) and draw(st.booleans()) else lay_out(times, pa.int64()),
    )


def header_array(headers: Sequence[Any], kind: pa.DataType, lay_out: Callable[[list[Any], pa.DataType], Any]) -> Any:
    if pa.types.is_map(kind):
        return lay_out([None if row is None else list(row) for row in headers], kind)
    return lay_out([None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers], kind)


def sliced(data: list[Any], kind: pa.DataType) -> pa.Array:
    """Build a slice of a longer array, so that the offsets do not begin at 0."""
    return pa.array([data[-1], *data, data[0]], kind).slice(1, len(data))


def chunked(data: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    middle = len(data) // 2
    parts = [data[:middle], [], data[middle:]]
    return pa.chunked_array([sliced(part, kind) if part else pa.array(part, kind) for part in parts], kind)
