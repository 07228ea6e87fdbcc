"""Offsets of time zones: their changes, fixed offsets, and years after the last computed one."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.java_times import format_timestamps
from spark_kafka_sink.formats.time_zones import compute_utc_offsets
from tests.formats.time_reference import EPOCH, ZONES, format_micros, reference_timestamp


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
        ("+1:5", "1970-01-01T01:05:00.000+01:05"),
    ],
)
def test_zone_can_be_a_fixed_offset(zone: str, text: str) -> None:
    array = pa.array([0]).view(pa.timestamp("us", zone))
    assert format_timestamps(array).to_pylist() == [text.encode()]


@pytest.mark.parametrize(
    ("short_id", "region"),
    [("PST", "America/Los_Angeles"), ("BST", "Asia/Dhaka"), ("AST", "America/Anchorage"), ("IST", "Asia/Kolkata")],
)
def test_zone_can_be_a_short_id_of_java(short_id: str, region: str) -> None:
    january, july = 1_704_067_200_000_000, 1_719_792_000_000_000
    assert format_micros(short_id, january, july) == format_micros(region, january, july)


@pytest.mark.parametrize(("short_id", "hours"), [("EST", -5), ("MST", -7), ("HST", -10)])
def test_short_id_of_java_can_be_a_fixed_offset(short_id: str, hours: int) -> None:
    """Depending on the machine, the time zone database has other offsets for these names before 1968."""
    seconds = [dt.datetime(year, 7, 1, tzinfo=dt.timezone.utc).timestamp() for year in (1900, 1943, 1967, 2024)]
    offset = compute_utc_offsets(np.array(seconds, np.int64), short_id)
    assert isinstance(offset, int), "the offset does not depend on the database"
    assert offset == hours * 3600


def test_every_short_id_of_java_is_known() -> None:
    names = "ACT AET AGT ART AST BET BST CAT CNT CST CTT EAT ECT EST HST "
    names += "IET IST JST MIT MST NET NST PLT PNT PRT PST SST VST"
    for name in names.split():
        assert format_micros(name, 0)


def test_error_names_unknown_zone_and_setting() -> None:
    with pytest.raises(SchemaError, match=r"'Mars/Olympus' of a timestamp column is unknown .* spark\.sql\.session"):
        format_micros("Mars/Olympus", 0)
