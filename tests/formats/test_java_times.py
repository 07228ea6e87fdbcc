"""Text of dates and times, compared with that of Spark's to_json, in several time zones."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.java_times import format_dates, format_times, format_timestamps

ZONES = (
    "America/New_York",
    "Europe/London",
    "Asia/Kolkata",
    "Africa/Casablanca",
    "Australia/Lord_Howe",
    "Asia/Pyongyang",
)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def format_micros(zone: str | None, *micros: int | None) -> list[str | None]:
    texts = format_timestamps(pa.array(micros, pa.int64()).view(pa.timestamp("us", zone))).to_pylist()
    return [None if text is None else text.decode() for text in texts]


def reference_timestamp(zone: str, micros: int) -> str:
    local = (EPOCH + dt.timedelta(microseconds=micros)).astimezone(ZoneInfo(zone))
    offset = local.utcoffset()
    assert offset is not None
    text = local.isoformat(timespec="milliseconds")
    return text[:-6] + "Z" if not offset else text


MICROS = st.integers(-62_100_000_000_000_000, 253_370_000_000_000_000)


@given(st.sampled_from(ZONES), st.lists(MICROS, max_size=5))
def test_timestamp_is_local_time_with_offset(zone: str, micros: list[int]) -> None:
    assert format_micros(zone, *micros) == [reference_timestamp(zone, value) for value in micros]


@pytest.mark.parametrize("zone", ZONES)
def test_offset_changes_at_the_right_second(zone: str) -> None:
    zone_info = ZoneInfo(zone)
    for year in (1883, 2024, 2399):
        hours = [dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(hours=hour) for hour in range(366 * 24)]
        offsets = [time.astimezone(zone_info).utcoffset() for time in hours]
        change_indices = [i for i in range(1, len(hours)) if offsets[i] != offsets[i - 1]]
        micros_near_changes = [
            round((hours[i] - EPOCH).total_seconds() + second) * 1_000_000
            for i in change_indices
            for second in (-3600, -3599, -1801, -1800, -1, 0, 1)
        ]
        expected = [reference_timestamp(zone, micros) for micros in micros_near_changes]
        assert format_micros(zone, *micros_near_changes) == expected


def test_years_beyond_four_digits_have_a_sign() -> None:
    array = pa.array([-721_000, 0, 3_000_000, None], pa.int32()).view(pa.date32())
    assert format_dates(array).to_pylist() == [b"-0005-12-21", b"1970-01-01", b"+10183-09-21", None]
    assert format_micros("UTC", 10**18) == ["+33658-09-27T01:46:40.000Z"]
    assert format_micros(None, -62_198_755_200_000_000) == ["-0001-01-01T00:00:00.000"]


@given(st.lists(st.none() | st.dates(), max_size=6))
def test_formats_dates_like_isoformat(dates: list[dt.date | None]) -> None:
    expected = [None if date is None else date.isoformat().encode() for date in dates]
    assert format_dates(pa.array(dates, pa.date32())).to_pylist() == expected


def test_time_zone_rules_repeat_after_last_computed_year() -> None:
    for year in (2400, 2799, 2800, 2803, 3603, 9998):
        for month in range(1, 13):
            time = dt.datetime(year, month, 4, tzinfo=dt.timezone.utc)
            micros = round((time - EPOCH).total_seconds()) * 1_000_000
            assert format_micros("America/New_York", micros) == [reference_timestamp("America/New_York", micros)]


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("UTC", "1970-01-01T00:00:00.000Z"),
        ("+05:30", "1970-01-01T05:30:00.000+05:30"),
        ("GMT-8", "1969-12-31T16:00:00.000-08:00"),
        ("UTC+01:00", "1970-01-01T01:00:00.000+01:00"),
    ],
)
def test_zone_can_be_a_fixed_offset(zone: str, text: str) -> None:
    array = pa.array([0]).view(pa.timestamp("us", zone))
    assert format_timestamps(array).to_pylist() == [text.encode()]


def test_fractions_of_milliseconds_are_rounded_down() -> None:
    assert format_micros("UTC", 1_999, -1, None) == ["1970-01-01T00:00:00.001Z", "1969-12-31T23:59:59.999Z", None]


def test_error_names_unknown_zone_and_setting() -> None:
    with pytest.raises(SchemaError, match=r"'Mars/Olympus' of a timestamp column is unknown .* spark\.sql\.session"):
        format_micros("Mars/Olympus", 0)


def test_time_of_day_has_no_trailing_zeros() -> None:
    array = pa.array([0, 45_296_789_000_000, 500_000_000, 36_000_000_000_000, None]).view(pa.time64("ns"))
    assert format_times(array).to_pylist() == [b"00:00:00", b"12:34:56.789", b"00:00:00.5", b"10:00:00", None]
