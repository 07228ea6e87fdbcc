"""Columns side by side in one buffer: fields of numbers and tables of bytes, row after row.

A table has the bytes of one column, of one width, a row for each record; one of a single row is the same for all. What
has one width is stored as items of that size: numpy copies such a column by one loop in C. Where the places of the rows
are in equal steps the target is a view, elsewhere the items are stored at an array of places, which costs a few
nanoseconds more for each.

Fields whose widths differ from row to row are stored as whole words. What a word has too much is overwritten a moment
later by what follows it, so the order of the assignments counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.records.varint import U64, Field, bits_of, merge, total_width

Positions: TypeAlias = "NDArray[np.int64]"
Table: TypeAlias = "NDArray[np.uint8]"
_BINARY = pa.binary()
SEGMENT_POOL = pa.jemalloc_memory_pool() if "jemalloc" in pa.supported_memory_backends() else pa.system_memory_pool()
"""Where encoded records lie. They are written on one thread and freed on another, the sender's. mimalloc, Arrow's usual
allocator, keeps memory apart for each thread, and held 20 to 30 MB more; the system's mixes them with what lives for a
moment only, and held 15 MB more."""
SPARE_BYTES = 32
"""How much longer than its contents a buffer must be that words are stored into or read from."""
_RUN_ROWS = 1_500
"""Shorter runs of rows of one width are not worth the calls."""


@lru_cache(maxsize=1024)
def item_type(width: int) -> np.dtype[Any]:
    """An item of so many bytes. Sizes that are those of a number are copied faster as numbers."""
    return np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))


def items(table: Table) -> NDArray[Any]:
    """The rows of a table as items of one size, which numpy copies at once; a view."""
    return table.view(item_type(table.shape[1]))[:, 0]


def anywhere(data: NDArray[np.uint8], item: np.dtype[Any]) -> NDArray[Any]:
    """`data` as items that begin at every byte."""
    return np.ndarray((len(data) - item.itemsize + 1,), item, data, strides=(1,))


def store(data: NDArray[np.uint8], rows: Table, at: Positions) -> None:
    """Row i to data[at[i]:], all rows of one size and to the byte; a single row goes to every place."""
    rows = items(rows)
    anywhere(data, rows.dtype)[at] = rows


def fill(target: Table, tables: Sequence[Table]) -> None:
    """The tables side by side; together they are as wide as the target."""
    end = 0
    for table in tables:
        width = table.shape[1]
        if width:
            items(target[:, end : end + width])[:] = items(table)
        end += width


def table_of(field: Field) -> Table:
    """A field of one width as a table; it has a single row if it is the same in all rows."""
    return np.atleast_1d(np.asarray(field.word, np.uint64)).view(np.uint8).reshape(-1, 8)[:, : field.width_max]


def positions(widths: NDArray[np.int64] | int, count: int) -> Positions:
    """Where each of `count` pieces begins, and where the last one ends."""
    at = np.empty(count + 1, np.int64)
    at[0] = 0
    if isinstance(widths, np.ndarray):
        np.cumsum(widths, out=at[1:])
    else:
        np.multiply(np.arange(1, count + 1), widths, out=at[1:])
    return at


def pack(fields: list[Field], rows: int) -> tuple[NDArray[np.uint8], Positions]:
    """The fields of each row one after the other: all bytes (and some to spare), and rows + 1 positions."""
    merged = merge(fields)
    if len(merged) == 1 and merged[0].width_max == 1:
        data = np.empty(rows + SPARE_BYTES, np.uint8)
        data[:rows] = merged[0].word
        return data, np.arange(rows + 1)
    at = positions(total_width(merged), rows)
    data = np.empty(int(at[-1]) + SPARE_BYTES, np.uint8)
    _scatter(data, merged, at[:-1])
    return data, at


def pack_before(fields: list[Field], tables: list[Table], rows: int) -> tuple[NDArray[np.uint8], Positions]:
    """As `pack`, with tables after the fields of each row."""
    merged = merge(fields)
    width = total_width(merged)
    tables = [table for table in tables if table.shape[1]]
    tail = sum(table.shape[1] for table in tables)
    at = positions(width + tail, rows)
    data = new_buffer(int(at[-1]) + SPARE_BYTES)
    runs = runs_of(width, rows) if len(merged) <= 2 and rows >= 2 * _RUN_ROWS else None
    if runs is not None and len(runs) * _RUN_ROWS <= rows:
        words = words_of(merged, rows)
        for start, stop, lead in runs:
            run = data[at[start] : at[stop]].reshape(stop - start, -1)
            fill(run, [words[start:stop, :lead], *(rows_of(table, slice(start, stop)) for table in tables)])
        return data, at
    _scatter(data, merged, at[:-1])
    place = at[:-1] + width
    for table in tables:
        store(data, table, place)
        place = place + table.shape[1]
    return data, at


def packed_array(data: NDArray[np.uint8], at: Positions, last: bytes | None = None) -> pa.Array:
    """A binary array of what was packed, with a row `last` at its end; `data` has the room for it."""
    rows = len(at) - 1
    offsets = np.empty(rows + (1 if last is None else 2), np.int32)
    offsets[: rows + 1] = at
    if last is not None:
        end = int(at[-1])
        offsets[-1] = end + len(last)
        data[end : end + len(last)] = memoryview(last)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(_BINARY, len(offsets) - 1, buffers, null_count=0)


def new_buffer(size: int) -> NDArray[np.uint8]:
    """For encoded records."""
    return np.frombuffer(pa.allocate_buffer(size, memory_pool=SEGMENT_POOL), np.uint8)


def rows_of(table: Table, which: Any) -> Table:
    """These rows of a table; a single row stands for all."""
    return table[which] if len(table) > 1 else table


def runs_of(width: NDArray[np.int64] | int, rows: int) -> list[tuple[int, int, int]]:
    """Runs of rows with one width: the first row, the row after the last, the width."""
    if not isinstance(width, np.ndarray):
        return [(0, rows, width)]
    edges = [0, *(np.flatnonzero(width[1:] != width[:-1]) + 1).tolist(), rows]
    return [(start, stop, int(width[start])) for start, stop in pairwise(edges)]


def rows_by_width(width: NDArray[np.int64] | int, rows: int) -> list[tuple[Any, int]]:
    """For each width the rows that have it, as something to index with."""
    if not isinstance(width, np.ndarray):
        return [(slice(0, rows), width)]
    if np.count_nonzero(width[1:] != width[:-1]) * _RUN_ROWS <= rows:
        return [(slice(start, stop), found) for start, stop, found in runs_of(width, rows)]
    found = range(int(width.min()), int(width.max()) + 1)
    classes = [(np.flatnonzero(width == one), one) for one in found]
    return [(which, one) for which, one in classes if len(which)]


def _scatter(data: NDArray[np.uint8], fields: list[Field], at: Positions) -> None:
    """Store the fields of row i at data[at[i]:], one after the other; `at` ascends.

    Fields are stored as whole words of 8 or 16 bytes, in the order of the bytes: what a word has too much lies where
    the next one is stored a moment later. One assignment to a view with a stride of one byte does that for a column.
    The bytes after each row's fields are spoilt; whoever owns them writes them afterwards.
    """
    if not len(at):
        return
    if len(fields) <= 2:
        words = items(words_of(fields, len(at)))
        anywhere(data, words.dtype)[at] = words
        return
    word = np.empty((len(at), len(fields)), np.uint64)
    place = np.empty((len(at), len(fields)), np.int64)
    for index, field in enumerate(fields):
        word[:, index] = field.word
        place[:, index] = at if index == 0 else place[:, index - 1] + fields[index - 1].width
    anywhere(data, word.dtype)[place.reshape(-1)] = word.reshape(-1)


def words_of(fields: list[Field], rows: int) -> Table:
    """The fields of each row (merged) as a row of bytes, of which those count that the fields have."""
    if len(fields) > 2:
        data, at = pack(fields, rows)
        width = sum(field.width_max for field in fields)
        taken: Table = anywhere(data, item_type(width))[at[:-1]].view(np.uint8).reshape(rows, width)
        return taken
    words = np.empty((rows, len(fields)), np.uint64)
    words[:, 0] = fields[0].word
    if len(fields) == 2:
        second = words[:, 1]
        second[:] = fields[1].word
        bits = bits_of(fields[0].width)
        words[:, 0] |= second << bits
        second >>= U64(64) - bits
    return words.view(np.uint8)
