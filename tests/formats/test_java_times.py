"""Text of dates and times, compared with that of Spark's to_json, in several time zones."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.formats.java_times import format_dates, format_times
from tests.formats.time_reference import ZONES, format_micros, reference_timestamp

MICROS = st.integers(-62_100_000_000_000_000, 253_370_000_000_000_000)


@given(st.sampled_from(ZONES), st.lists(MICROS, max_size=5))
def test_timestamp_is_local_time_with_offset(zone: str, micros: list[int]) -> None:
    assert format_micros(zone, *micros) == [reference_timestamp(zone, value) for value in micros]


def test_years_beyond_four_digits_have_a_sign() -> None:
    array = pa.array([-721_000, 0, 3_000_000, None], pa.int32()).view(pa.date32())
    assert format_dates(array).to_pylist() == [b"-0005-12-21", b"1970-01-01", b"+10183-09-21", None]
    assert format_micros("UTC", 10**18) == ["+33658-09-27T01:46:40.000Z"]
    assert format_micros(None, -62_198_755_200_000_000) == ["-0001-01-01T00:00:00.000"]


@given(st.lists(st.none() | st.dates(), max_size=6))
def test_formats_dates_like_isoformat(dates: list[dt.date | None]) -> None:
    expected = [None if date is None else date.isoformat().encode() for date in dates]
    assert format_dates(pa.array(dates, pa.date32())).to_pylist() == expected


def test_fractions_of_milliseconds_are_rounded_down() -> None:
    assert format_micros("UTC", 1_999, -1, None) == ["1970-01-01T00:00:00.001Z", "1969-12-31T23:59:59.999Z", None]


def test_time_of_day_has_no_trailing_zeros() -> None:
    array = pa.array([0, 45_296_789_000_000, 500_000_000, 36_000_000_000_000, None]).view(pa.time64("ns"))
    assert format_times(array).to_pylist() == [b"00:00:00", b"12:34:56.789", b"00:00:00.5", b"10:00:00", None]
