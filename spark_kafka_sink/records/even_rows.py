"""Records whose keys have one length, whose values have one length, and likewise their headers.

The numbers of a record follow from the lengths, from its place in the batch and from the batch's timestamps. So there
are two ways that compute nothing for the single row:

- few shapes of batches: the widths of the numbers change at a few places only (64, 8,192, ...). Between two of these a
  batch is a table, with one column for each part of a record, and each column is copied by one assignment in equal
  steps. Batches of one shape that follow each other are stored by the same assignments: they lie in equal steps too.
- many shapes: the numbers are worked out once for every place that some batch has, and looked up for each row. The rows
  lie wherever the lengths that were looked up put them.

Where timestamps differ within a batch, or a few rows are spread over very many places, the numbers are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.packing import (
    Positions,
    Table,
    anywhere,
    fill,
    item_type,
    items,
    new_buffer,
    pack_before,
    positions,
    store,
    table_of,
)
from spark_kafka_sink.records.record_fields import ZERO, Rows, check_total, record_fields
from spark_kafka_sink.records.varint import U64, counting_words, encode_varint

_BORDERS = (1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 31)
"""Where an offset delta gets a byte longer."""
_GROUPS_MIN = 4
_ROWS_PER_GROUP = 1_000
"""Smaller groups of batches are not worth the calls."""
_PLACES_MIN = 1_000
"""So many places may be worked out even for fewer rows."""
_PLACES_STEP = 64
"""Places are worked out in such steps: the next batches find them ready."""
_NUMBERS_BYTES = (16, 32, 64, 128)
"""What is looked up for a row, the key's place in it included. numpy takes items of the first two sizes faster."""


class Batches(NamedTuple):
    """The batches of a chunk: for each its first row, its rows, and its first offset delta."""

    starts: NDArray[np.int64]
    counts: list[int]
    first_offset_deltas: Sequence[int]


class BatchShape(NamedTuple):
    """What the numbers of a batch's records follow from, besides the lengths of key, value and headers."""

    rows: int
    first_offset_delta: int
    timestamp_delta: int


class Lengths(NamedTuple):
    """Of keys and values in Kafka's way, -1 for null; of headers with their count, 0 if there are none to copy."""

    key: int
    value: int
    headers: int


class EvenColumns(NamedTuple):
    """Key, value and headers as tables; each row of theirs has these lengths."""

    key: Table
    value: Table
    headers: Table | None
    lengths: Lengths


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
    layouts = _layouts([shape for shape, _ in groups], columns.lengths)
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


def look_up_rows(
    batches: Batches, timestamp_deltas: list[int], columns: EvenColumns
) -> tuple[memoryview, Positions] | None:
    """All records, and where each begins and the last one ends.

    None if too many places would have to be worked out.
    """
    looked_up = _look_up(batches, timestamp_deltas, columns.lengths)
    if looked_up is None:
        return None
    numbers, sizes = looked_up
    at = positions(sizes, len(sizes))
    total = int(at[-1])
    check_total(total, len(sizes))
    data = new_buffer(total + numbers.itemsize)
    anywhere(data, numbers.dtype)[at[:-1]] = numbers
    place = at[1:]
    for part, before in ((columns.headers, 0), (columns.value, 0), (columns.key, _bytes_before_value(columns.lengths))):
        if part is not None and part.shape[1]:
            place = place - (part.shape[1] + before)
            store(data, part, place)
    if columns.headers is not None:
        return data.data, at
    data[total] = 0
    return data.data[1:], at


def store_rows(rows: Rows, columns: EvenColumns) -> tuple[memoryview, NDArray[np.int64]]:
    """All records, and where each begins and the last one ends; for rows whose numbers differ without a rule."""
    lengths = columns.lengths
    prefix, middle = record_fields(rows, lengths.key, lengths.value, lengths.headers or 1)
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


def _look_up(
    batches: Batches, timestamp_deltas: list[int], lengths: Lengths
) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """For each row what stands before its key, with bytes to spare, and the length of its record."""
    firsts = np.array(batches.first_offset_deltas, np.int64)
    low = int(firsts.min()) // _PLACES_STEP * _PLACES_STEP
    high = -(-int((firsts + batches.counts).max()) // _PLACES_STEP) * _PLACES_STEP
    rows, kinds = sum(batches.counts), {delta: kind for kind, delta in enumerate(set(timestamp_deltas))}
    width = max([_bytes_before_key(high, delta, lengths) for delta in kinds]) + max(0, lengths.key)
    width += _bytes_before_value(lengths)
    if len(kinds) * (high - low) > max(rows, _PLACES_MIN) or width > _NUMBERS_BYTES[-1]:
        return None
    size = next(size for size in _NUMBERS_BYTES if size >= width)
    numbers, sizes = zip(*[_numbers((low, high), delta, lengths, size) for delta in kinds], strict=True)
    before = firsts - low - batches.starts
    if len(kinds) > 1:
        before += np.array([kinds[delta] for delta in timestamp_deltas], np.int64) * (high - low)
        numbers, sizes = (np.concatenate(numbers),), (np.concatenate(sizes),)
    places = np.repeat(before, batches.counts)
    places += np.arange(rows)
    return numbers[0].take(places), sizes[0].take(places)


@lru_cache(maxsize=16)
def _numbers(
    places: tuple[int, int], timestamp_delta: int, lengths: Lengths, size: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """For these places of a batch what stands before the value, without the key in it, in items of `size` bytes; and
    the length of the record."""
    low, high = places
    numbers = np.zeros((high - low, size), np.uint8)
    sizes = np.empty(high - low, np.int64)
    for start, stop in _stretches(BatchShape(high - low, low, timestamp_delta)):
        layout = _layout(start, stop - start, timestamp_delta, lengths)
        key = np.zeros((1, max(0, lengths.key)), np.uint8)
        fill(numbers[start - low : stop - low], [*layout.before_key, key, *layout.before_value])
        sizes[start - low : stop - low] = layout.record_bytes
    return items(numbers), sizes


def _bytes_before_key(high: int, timestamp_delta: int, lengths: Lengths) -> int:
    """The count of headers, the record's length, attributes, both deltas, the key's length; at most."""
    deltas = len(encode_varint(timestamp_delta)) + len(encode_varint(high))
    record = lengths.key + lengths.value + lengths.headers + _NUMBERS_BYTES[-1]
    return 1 + len(encode_varint(record)) + 1 + deltas + len(encode_varint(lengths.key))


def _bytes_before_value(lengths: Lengths) -> int:
    return len(encode_varint(lengths.value))


def _layouts(shapes: list[BatchShape], lengths: Lengths) -> dict[tuple[int, int], _Layout]:
    """By the first offset delta and the delta of the timestamps: for as many records as any batch has there."""
    rows: dict[tuple[int, int], int] = {}
    for shape in shapes:
        for start, stop in _stretches(shape):
            place = (start, shape.timestamp_delta)
            rows[place] = max(rows.get(place, 0), stop - start)
    return {(start, delta): _layout(start, count, delta, lengths) for (start, delta), count in rows.items()}


def _layout(first: int, rows: int, timestamp_delta: int, lengths: Lengths) -> _Layout:
    offset_delta = counting_words(first, rows)
    offset_bytes = len(encode_varint(first))
    timestamp, key_length, value_length = map(encode_varint, (timestamp_delta, lengths.key, lengths.value))
    body = 1 + len(timestamp) + offset_bytes + len(key_length) + max(0, lengths.key)
    body += len(value_length) + max(0, lengths.value) + (lengths.headers or 1)
    # Without headers, the count of each record stands in front of the next one.
    length = encode_varint(body)
    lead = (b"" if lengths.headers else b"\0") + length + b"\0" + timestamp
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
