"""Texts of timestamps as this package and Python format them."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pyarrow as pa

from spark_kafka_sink.formats.java_times import format_timestamps

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
