"""Rows by their positions: whatever the column, the same as Arrow's own take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records.taking import take_rows

POSITIONS = np.array([3, 0, 2, 1], np.int64)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(["ab", "cd", "ef", "gh"], id="equally long"),
        pytest.param(["ab", "c", "", "ghi"], id="of any length"),
        pytest.param(["ab", None, "ef", "gh"], id="equally long but for a null"),
        pytest.param(["", "", "", ""], id="empty"),
        pytest.param([None, None, None, None], id="nulls"),
    ],
)
def test_rows_are_taken_as_arrow_takes_them(kind: pa.DataType, values: list[str | None]) -> None:
    whole = pa.array(["before", *values, "after"], pa.string()).cast(kind)
    for array in (pa.array(values, pa.string()).cast(kind), whole.slice(1, 4)):
        taken = take_rows(array, POSITIONS)
        taken.validate(full=True)
        assert taken.equals(array.take(pa.array(POSITIONS)))


def test_a_column_without_rows_has_none_to_take() -> None:
    assert len(take_rows(pa.array([], pa.binary()), np.zeros(0, np.int64))) == 0


def test_a_row_may_be_taken_more_often_than_it_is_there() -> None:
    assert take_rows(pa.array([b"ab", b"cd"]), np.array([1, 1, 0])).to_pylist() == [b"cd", b"cd", b"ab"]


def test_numbers_and_lists_are_taken_too() -> None:
    for array in (pa.array([1, None, 3, 4]), pa.array([[b"a"], [], None, [b"b", b"c"]])):
        assert take_rows(array, POSITIONS).equals(array.take(pa.array(POSITIONS)))
