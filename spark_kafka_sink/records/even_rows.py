"""Records whose keys have one length, whose values have one length, and likewise their headers.

Nothing is computed for the single row here. The numbers of a record follow from the lengths and from its place in the
batch, and their widths change at a few places only (64, 8,192, ...). Between two of these a batch is a table, with one
column for each part of a record, and each column is copied by one assignment in equal steps. Batches of one shape that
follow each other are stored by the same assignments: they lie in equal steps as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.packing import Table, item_type, items, new_buffer, pack_before, table_of
from spark_kafka_sink.records.record_fields import ZERO, Rows, check_total, record_fields
from spark_kafka_sink.records.varint import U64, counting_words, encode_varint

_BORDERS = (1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 31)
"""Where an offset delta gets a byte longer."""
_GROUPS_MIN = 4
_ROWS_PER_GROUP = 1_000
"""Smaller groups of batches are not worth the calls."""


class BatchShape(NamedTuple):
    """What the numbers of a batch's records follow from, besides the lengths of key, value and headers."""

    rows: int
    first_offset_delta: int
    timestamp_delta: int


class EvenColumns(NamedTuple):
    """Key, value and headers as tables, and the lengths of keys and values in Kafka's way: -1 for null."""

    key: Table
    key_length: int
    value: Table
    value_length: int
    headers: Table | None


class _Layout(NamedTuple):
    """Neighbours in a batch that are equally long: their length, and the numbers before key and value."""

    record_bytes: int
    before_key: list[Table]
    before_value: list[Table]


def store_batches(
    groups: Sequence[tuple[BatchShape, int]], columns: EvenColumns
) -> tuple[memoryview, list[int]] | None:
    """All records, and where each batch begins and the last one ends. A group is so many batches of one shape.

    None if there are too many groups: then it would cost less to look at each row.
    """
    rows = sum(shape.rows * repeats for shape, repeats in groups)
    if len(groups) > _GROUPS_MIN + rows // _ROWS_PER_GROUP:
        return None
    layouts = _layouts([shape for shape, _ in groups], columns)
    parts = [
        [(stop - start, layouts[start, shape.timestamp_delta]) for start, stop in _stretches(shape)]
        for shape, _ in groups
    ]
    sizes = [sum(count * layout.record_bytes for count, layout in batch) for batch in parts]
    total = sum(size * repeats for size, (_, repeats) in zip(sizes, groups, strict=True))
    check_total(total, rows)
    skip = 1 if columns.headers is None else 0
    data = new_buffer(total + skip)
    edges: list[int] = []
    at = row = 0
    for (shape, repeats), batch, size in zip(groups, parts, sizes, strict=True):
        edges += range(at, at + repeats * size, size)
        place, source = at, row
        for count, layout in batch:
            _store(data, (place, size, layout.record_bytes), (source, shape.rows), (repeats, count), layout, columns)
            place += count * layout.record_bytes
            source += count
        at += repeats * size
        row += repeats * shape.rows
    if skip:
        data[at] = 0
    return data.data[skip:], [*edges, at]


def store_rows(rows: Rows, columns: EvenColumns) -> tuple[memoryview, NDArray[np.int64]]:
    """All records, and where each begins and the last one ends; for rows whose numbers differ without a rule."""
    header_bytes = 1 if columns.headers is None else columns.headers.shape[1]
    prefix, middle = record_fields(rows, columns.key_length, columns.value_length, header_bytes)
    tables = [columns.key, *map(table_of, middle), columns.value]
    if columns.headers is not None:
        data, at = pack_before(prefix, [*tables, columns.headers], rows.total)
        return data.data, at
    data, at = pack_before([ZERO, *prefix], tables, rows.total)
    data[at[-1]] = 0
    return data.data[1:], at


def _stretches(shape: BatchShape) -> list[tuple[int, int]]:
    """The batch's offset deltas, cut where they get longer."""
    first, stop = shape.first_offset_delta, shape.first_offset_delta + shape.rows
    cuts = [first, *(border for border in _BORDERS if first < border < stop), stop]
    return list(pairwise(cuts))


def _layouts(shapes: list[BatchShape], columns: EvenColumns) -> dict[tuple[int, int], _Layout]:
    """By the first offset delta and the delta of the timestamps: for as many records as any batch has there."""
    rows: dict[tuple[int, int], int] = {}
    for shape in shapes:
        for start, stop in _stretches(shape):
            place = (start, shape.timestamp_delta)
            rows[place] = max(rows.get(place, 0), stop - start)
    return {(start, delta): _layout(start, count, delta, columns) for (start, delta), count in rows.items()}


def _layout(first: int, rows: int, timestamp_delta: int, columns: EvenColumns) -> _Layout:
    offset_delta = counting_words(first, rows)
    offset_bytes = len(encode_varint(first))
    timestamp, key_length, value_length = map(
        encode_varint, (timestamp_delta, columns.key_length, columns.value_length)
    )
    body = 1 + len(timestamp) + offset_bytes + len(key_length) + columns.key.shape[1]
    body += len(value_length) + columns.value.shape[1]
    body += 1 if columns.headers is None else columns.headers.shape[1]
    # Without headers, the count of each record stands in front of the next one.
    length = encode_varint(body)
    lead = (b"\0" if columns.headers is None else b"") + length + b"\0" + timestamp
    if len(lead) + offset_bytes + len(key_length) <= 8:
        words = offset_delta << U64(8 * len(lead))
        words |= U64(int.from_bytes(lead + bytes(offset_bytes) + key_length, "little"))
        numbers = [_first_bytes(words, len(lead) + offset_bytes + len(key_length))]
    else:
        numbers = [_single(lead), _first_bytes(offset_delta, offset_bytes), _single(key_length)]
    return _Layout(len(length) + body, numbers, [_single(value_length)])


def _single(data: bytes) -> Table:
    return np.frombuffer(data, np.uint8)[None]


def _first_bytes(words: NDArray[np.uint64], width: int) -> Table:
    return np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8)[:, :width]


def _store(
    data: Table,
    target: tuple[int, int, int],
    source: tuple[int, int],
    extent: tuple[int, int],
    layout: _Layout,
    columns: EvenColumns,
) -> None:
    """Every part of so many records of so many batches.

    `target`: the place of the first, and the steps to the next batch and to the next record; `source`: its row, and
    the step to that of the next batch.
    """
    place, *steps = target
    for part in (*layout.before_key, columns.key, *layout.before_value, columns.value, columns.headers):
        if part is None or not part.shape[1]:
            continue
        width = part.shape[1]
        kind = item_type(width)
        if part is columns.key or part is columns.value or part is columns.headers:
            found = np.ndarray(extent, kind, part, source[0] * width, (source[1] * width, width))
        else:
            found = items(part)[: extent[1]]
        np.ndarray(extent, kind, data, place, steps)[:] = found
        place += width
