"""Hypothesis strategies for Arrow record batches with scalar and nested types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALAR_COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=7)),
]
Column = tuple[pa.DataType, st.SearchStrategy[Any]]
NAMES = st.lists(st.text(st.sampled_from('abcé"\\'), min_size=1, max_size=3), min_size=1, max_size=4, unique=True)


def _list(column: Column) -> Column:
    data_type, values = column
    return pa.list_(data_type), st.lists(st.none() | values, max_size=3)


def _map(column: Column) -> Column:
    data_type, values = column
    return pa.map_(pa.string(), data_type), st.dictionaries(TEXT, st.none() | values, max_size=3).map(
        lambda entries: list(entries.items())
    )


@st.composite
def _struct(draw: st.DrawFn, columns: st.SearchStrategy[Column], names: st.SearchStrategy[list[str]]) -> Column:
    fields = {name: draw(columns) for name in draw(names)}
    values = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in fields.items()})
    return pa.struct([(name, data_type) for name, (data_type, _) in fields.items()]), values


@st.composite
def fixed_structs(draw: st.DrawFn, columns: st.SearchStrategy[Column], names: st.SearchStrategy[list[str]]) -> Column:
    """Build a struct type with these columns, and a strategy for its values."""
    struct_column: Column = draw(_struct(columns, names))
    return struct_column


def columns(
    scalars: list[Column] = SCALAR_COLUMNS, names: st.SearchStrategy[list[str]] = NAMES
) -> st.SearchStrategy[Column]:
    """Build the strategy that draws a type together with a strategy for its values."""
    return st.recursive(
        st.sampled_from(scalars),
        lambda inner: st.one_of(inner.map(_list), inner.map(_map), _struct(inner, names)),
        max_leaves=4,
    )


@st.composite
def batches(
    draw: st.DrawFn, scalars: list[Column] = SCALAR_COLUMNS, names: st.SearchStrategy[list[str]] = NAMES
) -> pa.RecordBatch:
    """Record batches, some of which are slices whose arrays begin at an offset in their buffers."""
    rows = draw(st.integers(0, 5))
    arrays, fields = [], []
    for name in draw(names):
        data_type, values = draw(columns(scalars, names))
        column = draw(st.lists(values if draw(st.booleans()) else st.none() | values, min_size=rows, max_size=rows))
        arrays.append(pa.array(column, data_type))
        fields.append(pa.field(name, data_type))
    start = draw(st.integers(0, rows))
    return pa.record_batch(arrays, schema=pa.schema(fields)).slice(start)
