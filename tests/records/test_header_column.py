"""Headers of every shape and Arrow layout, compared with the reference encoder."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.header_column import append_headers, find_last_header_values, read_header_column
from tests.records.column_strategies import LIST_TYPES, NOW, header_array, sliced
from tests.records.large_arrays import build_behind_2_gib
from tests.records.reference_encoder import Row
from tests.records.slices import BatchSlice, encode_slices
from tests.records.test_encoder import assert_equal


@st.composite
def header_values(draw: st.DrawFn, rows: int) -> list[bytes | None]:
    """Draw the keys or values of the header at one position, one per record: equal, of varying lengths, or null."""
    kind = draw(st.sampled_from(["same", "one length", "short", "short with nulls", "two-byte lengths", "nulls"]))
    if kind == "same":
        return [draw(st.binary(max_size=20))] * rows
    if kind == "nulls":
        return [None] * rows
    low, high = {"one length": (9, 9), "two-byte lengths": (64, 127)}.get(kind, (0, 63))
    shortest = None if kind == "short with nulls" else b"x" * low
    seed = draw(st.integers(0, 1 << 30))
    lengths = [low + (seed * (i + 1) >> 7) % (high - low + 1) for i in range(rows)]
    return [shortest if length == low else (b"%03d" % (i % 999) * 43)[:length] for i, length in enumerate(lengths)]


@st.composite
def regular_rows(draw: st.DrawFn) -> list[Row]:
    count = draw(st.integers(1, 80))
    places = draw(st.integers(1, 4))
    same_keys = draw(st.booleans())
    keys = [[f"k{place}" if same_keys else f"k{place}{i % 10}" for place in range(places)] for i in range(count)]
    values = [draw(header_values(count)) for _ in range(places)]
    key = draw(st.sampled_from([None, b"key", "uneven"]))
    value = draw(st.sampled_from([None, b"value", "uneven", "around a border"]))
    step = draw(st.sampled_from([None, 0, 1, 70, 1 << 40, -(1 << 58)]))
    sizes = {"uneven": lambda i: i % 9, "around a border": lambda i: 61 + i % 5}
    return [
        Row(
            (b"%02d" % (i % 99) * 40)[: sizes[value](i)] if isinstance(value, str) else value,
            (b"%02d" % (i % 99) * 40)[: sizes[key](i)] if isinstance(key, str) else key,
            tuple((keys[i][place], values[place][i]) for place in range(places)),
            None if step is None else NOW + i * step % (1 << 60),
        )
        for i in range(count)
    ]


@given(st.data(), regular_rows())
@settings(max_examples=60, deadline=None)
def test_regular_headers_equal_the_reference_encoder(data: st.DataObject, rows: list[Row]) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=4)) | {0, len(rows)})
    plan = [BatchSlice(i, start, stop) for i, (start, stop) in enumerate(itertools.pairwise(cuts))]
    lay_out = data.draw(st.sampled_from([pa.array, sliced]))
    columns = RecordColumns(
        lay_out([row.value for row in rows], pa.binary()),
        lay_out([row.key for row in rows], pa.binary()),
        header_array([row.headers for row in rows], data.draw(st.sampled_from(LIST_TYPES)), lay_out),
        None if rows[0].timestamp is None else pa.array([row.timestamp for row in rows]),
    )
    assert_equal(encode_slices(columns, plan, NOW), rows, plan)


@pytest.mark.parametrize("count", [2, 64, 65, 300, 5_000])
@pytest.mark.parametrize("last", [b"end", None])
def test_long_runs_with_headers_equal_the_reference_encoder(count: int, last: bytes | None) -> None:
    """The counts cover all internal layouts of headers."""
    for trace in ([b"%016d" % i for i in range(count)], [b"%d" % (i * i) for i in range(count)]):
        rows = [Row(b"v" * (97 + i % 7), b"%05d" % i, (("id", trace[i]), ("to", last))) for i in range(count)]
        columns = RecordColumns(
            pa.array([row.value for row in rows]),
            pa.array([row.key for row in rows]),
            pa.array([row.headers for row in rows], pa.map_(pa.string(), pa.binary())),
        )
        plan = [BatchSlice(0, 0, count // 2), BatchSlice(1, count // 2, count)]
        assert_equal(encode_slices(columns, plan, NOW), rows, plan)


@pytest.mark.parametrize("names", [("key", "value"), ("Key", "Value"), ("KEY", "value")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_reads_struct_fields_in_any_case_and_order(names: tuple[str, str], is_reversed: bool) -> None:
    fields = [pa.field(names[0], pa.string()), pa.field(names[1], pa.binary())]
    struct = pa.struct(fields[::-1] if is_reversed else fields)
    array = pa.array([[{names[0]: "a", names[1]: b"1"}], None], pa.list_(struct))
    headers = read_header_column(RecordColumns(pa.array(["x", "y"]), headers=array).headers)
    assert (headers.keys.to_pylist(), headers.values.to_pylist()) == (["a"], [b"1"])


def test_finds_and_extends_headers_behind_2_gib() -> None:
    keys = build_behind_2_gib([b"a", b"b", b"a"], pa.large_string())
    values = build_behind_2_gib([b"1", b"2", None], pa.large_binary())
    headers = read_header_column(pa.MapArray.from_arrays(pa.array([0, 2, 3], pa.int32()), keys, values))
    assert find_last_header_values(headers, "a").to_pylist() == [b"1", None]
    for key_type in (pa.string(), pa.binary()):
        extended_headers = append_headers(headers, {"c": pa.array([b"3", None])}, 2, key_type=key_type, skip_nulls=True)
        entry_type = pa.struct([("key", key_type), ("value", pa.binary())])
        assert extended_headers.equals(
            pa.array([[("a", b"1"), ("b", b"2"), ("c", b"3")], [("a", None)]], pa.list_(entry_type))
        )
