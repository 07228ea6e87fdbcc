"""Zigzag varints for whole columns.

Kafka writes the small numbers of a record as zigzag varints: z = (v << 1) ^ (v >> 63), then groups of 7 bits, lowest
first, the top bit of a byte saying that another follows. A column of such numbers is held here as a `Field`: the
encoded bytes of each row in the low bytes of a uint64 (little-endian, so the first byte is the lowest), and how many
of them count. A number that needs 9 or 10 bytes takes two fields, of 8 bytes and of the rest.

A number that is the same for all rows is a Field of ints: numpy broadcasts them, and no column is made of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

U64 = np.uint64
Positions: TypeAlias = "NDArray[np.int64]"
SPARE_BYTES = 16
"""How much longer than its contents a buffer must be that `scatter` stores words into."""
_TABLE_BITS = 16
_RUN_ROWS = 1_500
"""Shorter runs of rows of one width are not worth the calls."""
_LARGEST_8_BYTES = 1 << 56


_ITEMS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
"""Sizes that are those of a number are copied faster as numbers."""


class Field(NamedTuple):
    """Bytes of a column. Arrays have one element per row; an int stands for all rows."""

    word: NDArray[np.uint64] | int
    width: NDArray[np.int64] | int
    width_max: int


def constant(data: bytes) -> Field:
    """The same bytes (at most 8) in every row."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def encode_varint(value: int) -> bytes:
    """One number that stands for a whole column."""
    rest = zigzag(value)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def varint_fields(values: NDArray[np.int64] | int) -> list[Field]:
    """A column as one field, or as two if some number needs more than 8 bytes."""
    if isinstance(values, int):
        data = encode_varint(values)
        return [constant(data[:8])] if len(data) <= 8 else [constant(data[:8]), constant(data[8:])]
    low, high = (int(np.minimum.reduce(values)), int(np.maximum.reduce(values))) if len(values) else (0, 0)
    if low == high:
        return varint_fields(low)
    if low >= 0:
        coded = (values << 1).view(np.uint64) if high < 1 << 62 else _zigzag_column(values)
    else:
        coded = _zigzag_column(values)
    top = max(zigzag(low), zigzag(high))
    if top < 1 << _TABLE_BITS:
        places, width_max = coded.view(np.int64), int(_WIDTHS[top])
        if low >= 0 and _WIDTHS[zigzag(low)] == width_max:
            return [Field(_WORDS.take(places), width_max, width_max)]
        return [Field(_WORDS.take(places), _WIDTHS.take(places), width_max)]
    if top < _LARGEST_8_BYTES:
        return [_spread(coded, top)]
    return _spread_wide(coded)


def varint_widths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each number takes."""
    coded = _zigzag_column(values)
    if not len(coded):
        return np.zeros(0, np.int64)
    top = int(coded.max())
    if top < 1 << _TABLE_BITS:
        return _WIDTHS.take(coded.view(np.int64))
    return _widths(coded, top)


def _zigzag_column(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _widths(coded: NDArray[np.uint64], top: int) -> NDArray[np.int64]:
    width = np.ones(len(coded), np.int64)
    bits = 7
    while top >> bits:
        width += coded >= U64(1 << bits)
        bits += 7
    return width


def _spread(coded: NDArray[np.uint64], top: int) -> Field:
    """Groups of 7 bits to bytes, with the top bit set wherever another byte follows. At most 8 bytes."""
    word = coded & U64(0x7F)
    width = np.ones(len(coded), np.int64)
    group = 1
    while top >> (7 * group):
        more = coded >= U64(1 << (7 * group))
        width += more
        word |= ((coded >> U64(7 * group)) & U64(0x7F)) << U64(8 * group)
        word |= more.astype(np.uint64) << U64(8 * group - 1)
        group += 1
    return Field(word, width, group)


def _spread_wide(coded: NDArray[np.uint64]) -> list[Field]:
    """As `_spread`, for numbers of up to 10 bytes: the first 8 bytes, then the others."""
    low_word, low_width, _ = _spread(coded & U64(_LARGEST_8_BYTES - 1), _LARGEST_8_BYTES - 1)
    rest = coded >> U64(56)
    longer = rest > U64(0)
    # A number that goes on has all of its first 8 bytes, each saying that another follows.
    low_word = np.where(longer, low_word | U64(0x8080808080808080), low_word)
    low_width = np.where(longer, 8, low_width)
    ninth = rest & U64(0x7F)
    tenth = rest >> U64(7)
    high_word = np.where(tenth > U64(0), ninth | U64(0x80) | (tenth << U64(8)), ninth)
    high_width = longer.astype(np.int64) + (tenth > U64(0))
    return [Field(low_word, low_width, 8), Field(high_word, high_width, 2)]


def _table() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    field = _spread(np.arange(1 << _TABLE_BITS, dtype=np.uint64), (1 << _TABLE_BITS) - 1)
    return np.asarray(field.word), np.asarray(field.width)


_WORDS, _WIDTHS = _table()
"""All varints up to 65,535: a look-up is cheaper than the arithmetic. Read only."""


def pack(fields: list[Field], rows: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The fields of each row one after the other: all bytes (and some to spare), and rows + 1 positions."""
    merged = merge(fields)
    if len(merged) == 1 and merged[0].width_max == 1:
        data = np.empty(rows + SPARE_BYTES, np.uint8)
        data[:rows] = merged[0].word
        return data, np.arange(rows + 1)
    at = positions(total_width(merged), rows)
    data = np.empty(int(at[-1]) + SPARE_BYTES, np.uint8)
    scatter(data, merged, at[:-1])
    return data, at


def pack_before(fields: list[Field], tables: list[NDArray[np.uint8]], rows: int) -> tuple[NDArray[np.uint8], Positions]:
    """As `pack`, with tables of bytes after the fields of each row. A table of a single row is the same in all rows."""
    merged = merge(fields)
    width = total_width(merged)
    tables = [table for table in tables if table.shape[1]]
    tail = sum(table.shape[1] for table in tables)
    at = positions(width + tail, rows)
    # Arrow's allocator keeps what was freed; so much memory from the system would have to be mapped anew each time.
    data = np.frombuffer(pa.allocate_buffer(int(at[-1]) + SPARE_BYTES), np.uint8)
    edges = _edges(width, rows) if len(merged) <= 2 and rows >= 2 * _RUN_ROWS else []
    if edges and len(edges) * _RUN_ROWS <= rows:
        full = [table if len(table) == rows else np.repeat(items(table), rows).view(np.uint8) for table in tables]
        columns = [_words(merged, rows), *(table.reshape(rows, -1) for table in full)]
        _store_runs(data, columns, at[edges].tolist(), edges, tail)
        return data, at
    scatter(data, merged, at[:-1])
    place = at[:-1] + width
    for table in tables:
        store(data, table, place)
        place = place + table.shape[1]
    return data, at


def _edges(width: NDArray[np.int64] | int, rows: int) -> list[int]:
    """Where a run of rows with one width begins, and where the last one ends."""
    if not isinstance(width, np.ndarray):
        return [0, rows]
    return [0, *(np.flatnonzero(width[1:] != width[:-1]) + 1).tolist(), rows]


def _store_runs(
    data: NDArray[np.uint8], tables: list[NDArray[np.uint8]], at: list[int], edges: list[int], tail: int
) -> None:
    """Rows of one width are a table: each column of it is copied in equal steps, with no look at its places."""
    for (start, stop), (first, last) in zip(pairwise(edges), pairwise(at), strict=True):
        run = data[first:last].reshape(stop - start, -1)
        end = 0
        for index, table in enumerate(tables):
            width = table.shape[1] if index else run.shape[1] - tail
            items(run[:, end : end + width])[:] = items(table[start:stop, :width])
            end += width


def total_width(fields: list[Field]) -> NDArray[np.int64] | int:
    width = fields[0].width
    for field in fields[1:]:
        width = width + field.width
    return width


def scatter(data: NDArray[np.uint8], fields: list[Field], at: NDArray[np.int64]) -> None:
    """Store the fields of row i at data[at[i]:], one after the other; `at` ascends.

    Fields are stored as whole words of 8 or 16 bytes, in the order of the bytes: what a word has too much lies where
    the next one is stored a moment later. One assignment to a view with a stride of one byte does that for a column.
    The bytes after each row's fields are spoilt; whoever owns them writes them afterwards.
    """
    if not len(at):
        return
    if len(fields) <= 2:
        words = items(_words(fields, len(at)))
        anywhere(data, words.dtype)[at] = words
        return
    word = np.empty((len(at), len(fields)), np.uint64)
    place = np.empty((len(at), len(fields)), np.int64)
    for index, field in enumerate(fields):
        word[:, index] = field.word
        place[:, index] = at if index == 0 else place[:, index - 1] + fields[index - 1].width
    anywhere(data, word.dtype)[place.reshape(-1)] = word.reshape(-1)


def _words(fields: list[Field], rows: int) -> NDArray[np.uint8]:
    """One or two fields as a table of 8 or 16 bytes, of which those count that the fields have."""
    words = np.empty((rows, len(fields)), np.uint64)
    words[:, 0] = fields[0].word
    if len(fields) == 2:
        second = words[:, 1]
        second[:] = fields[1].word
        bits = _bits(fields[0].width)
        words[:, 0] |= second << bits
        second >>= U64(64) - bits
    return words.view(np.uint8)


def anywhere(data: NDArray[np.uint8], item: np.dtype[Any]) -> NDArray[Any]:
    """`data` as items that begin at every byte."""
    return np.ndarray((len(data) - item.itemsize + 1,), item, data, strides=(1,))


def store(data: NDArray[np.uint8], rows: NDArray[np.uint8], at: NDArray[np.int64]) -> None:
    """Row i to data[at[i]:], all rows of one size and to the byte; a single row goes to every place."""
    rows = items(rows)
    anywhere(data, rows.dtype)[at] = rows


def items(table: NDArray[np.uint8]) -> NDArray[Any]:
    """The rows of a table as items of one size, which numpy copies at once; a view."""
    width = table.shape[1]
    return table.view(_ITEMS.get(width) or np.dtype((np.void, width)))[:, 0]


def table_of(field: Field) -> NDArray[np.uint8]:
    """A field of one width as a table; it has a single row if it is the same in all rows."""
    return np.atleast_1d(np.asarray(field.word, np.uint64)).view(np.uint8).reshape(-1, 8)[:, : field.width_max]


def merge(fields: list[Field]) -> list[Field]:
    """Neighbours that always fit into 8 bytes become one field."""
    merged = [fields[0]]
    for field in fields[1:]:
        last = merged[-1]
        if last.width_max + field.width_max > 8:
            merged.append(field)
            continue
        merged[-1] = Field(_after(last, field), last.width + field.width, last.width_max + field.width_max)
    return merged


def _after(first: Field, second: Field) -> NDArray[np.uint64] | int:
    """The words of two fields, the second one behind the first."""
    word: Any = second.word
    if isinstance(word, int):
        if word == 0:
            return first.word
        if not isinstance(first.width, int):
            word = U64(word)
    bits: Any = 8 * first.width if isinstance(word, int) else _bits(first.width)
    behind: NDArray[np.uint64] | int = first.word | (word << bits)
    return behind


def _bits(width: NDArray[np.int64] | int) -> Any:
    return U64(8 * width) if isinstance(width, int) else (width << 3).view(np.uint64)


def positions(widths: NDArray[np.int64] | int, count: int) -> NDArray[np.int64]:
    """Where each of `count` pieces begins, and where the last one ends."""
    at = np.empty(count + 1, np.int64)
    at[0] = 0
    if isinstance(widths, np.ndarray):
        np.cumsum(widths, out=at[1:])
    else:
        np.multiply(np.arange(1, count + 1), widths, out=at[1:])
    return at
