"""Dates and times as text, formatted like Spark's `to_json`.

date           2024-03-10
timestamp      2024-03-10T12:30:00.123-04:00
timestamp_ntz  2024-03-10T12:30:00.123
time           12:34:56.789

Timestamps are truncated to milliseconds, and always have three decimals. Those of type `timestamp` are written in the
session's time zone, which is part of the column's type. An offset of 0 is written as `Z`. The offset includes seconds
if it is not a whole number of minutes, as before the introduction of standard time. The fraction of a `time` has no
trailing zeros. Negative years and years with more than four digits have a sign: `-0005`, `+12024`.

All values of an array are first written with the same width, into a byte table: a two-dimensional array of ASCII
characters with one row for each value and one column for each character. After that, years that need a sign are
replaced, and trailing zeros are removed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import (
    build_binary_scalar,
    choose_by_index,
    copy_nulls_from,
    from_byte_table,
    join,
)
from spark_kafka_sink.formats.time_zones import compute_utc_offsets
from spark_kafka_sink.records.arrays import integers_to_numpy

_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second by the unit of an Arrow type. The numbers in a column of times are ticks."""
_SECONDS_PER_DAY = 86_400
# Widths of the byte tables, and the columns of some of their parts. The columns must match the sample texts.
_DATE_WIDTH = len("2026-11-28")
_TIMESTAMP_WIDTH = len("2026-11-28T12:34:56.789")
_TIMESTAMP_TIME_COLUMNS, _TIMESTAMP_POINT_COLUMN, _TIMESTAMP_MILLIS_COLUMNS = slice(11, 19), 19, slice(20, 23)
_TIME_WIDTH = len("12:34:56.789012345")
_TIME_POINT_COLUMN, _TIME_NANOS_COLUMNS = 8, slice(9, 18)
_MAX_UNSIGNED_YEAR = 9_999
"""The last year without a sign. Later years have five digits or more, and a sign, as in Java."""


def format_dates(array: pa.Array) -> pa.Array:
    """Format dates. Nulls stay null."""
    days = integers_to_numpy(array.view(pa.int32())).astype(np.int64)
    table = np.empty((len(array), _DATE_WIDTH), np.uint8)
    return copy_nulls_from(_to_text_with_years(table, _write_dates(table, days)), array)


def format_timestamps(array: pa.Array) -> pa.Array:
    """Format timestamps with the offset of the time zone in the column's type, or without one if it has no time zone.

    Nulls stay null. Raise SchemaError if the time zone is unknown.
    """
    ticks = integers_to_numpy(array.view(pa.int64()))
    ticks_per_second = _TICKS_PER_SECOND[array.type.unit]
    seconds, fraction = np.divmod(ticks, ticks_per_second)
    offsets = 0 if array.type.tz is None else compute_utc_offsets(seconds, array.type.tz)
    days, day_seconds = np.divmod(seconds + offsets, _SECONDS_PER_DAY)
    table = np.empty((len(array), _TIMESTAMP_WIDTH), np.uint8)
    years = _write_dates(table, days)
    table[:, _DATE_WIDTH] = ord("T")
    _write_times(table[:, _TIMESTAMP_TIME_COLUMNS], day_seconds)
    table[:, _TIMESTAMP_POINT_COLUMN] = ord(".")
    _write_digits(table[:, _TIMESTAMP_MILLIS_COLUMNS], fraction * 1_000 // ticks_per_second)
    text = _to_text_with_years(table, years)
    if array.type.tz is not None:
        text = join(text, _format_offsets(offsets))
    return copy_nulls_from(text, array)


def format_times(array: pa.Array) -> pa.Array:
    """Format times of day, without trailing zeros of the fraction. Nulls stay null."""
    ticks = integers_to_numpy(array.view(pa.int64()))
    ticks_per_second = _TICKS_PER_SECOND[array.type.unit]
    table = np.empty((len(array), _TIME_WIDTH), np.uint8)
    _write_times(table, ticks // ticks_per_second)
    table[:, _TIME_POINT_COLUMN] = ord(".")
    _write_digits(
        table[:, _TIME_NANOS_COLUMNS], ticks % ticks_per_second * (_TICKS_PER_SECOND["ns"] // ticks_per_second)
    )
    text = pc.ascii_rtrim(pc.ascii_rtrim(from_byte_table(table).view(pa.string()), "0"), ".")
    return copy_nulls_from(text.view(pa.binary()), array)


def _write_dates(table: NDArray[np.uint8], days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Write `YYYY-MM-DD` to the first ten columns of the table, and return the years.

    Only the last four digits of a year are written, without a sign. `_to_text_with_years` replaces the years that need
    a sign.

    `days`: days since 1970 in the proleptic Gregorian calendar.
    """
    # The algorithm is `civil_from_days` of https://howardhinnant.github.io/date_algorithms.html. Days are counted from
    # 1 March of the year 0, which is 719,468 days before 1970. Years begin in March, so that the leap day is the last
    # day of a year, and 400 years are a cycle of 146,097 days. Four years have 1,461 days and a century has 36,524.
    cycle, day = np.divmod(days + 719_468, 146_097)
    # The terms remove the leap days before `day`: one in four years, but only one in four centuries.
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153  # 0 for March: from March on, five months have 153 days (31, 30, 31, 30, 31)
    day -= (153 * month + 2) // 5 - 1  # the days of the preceding months; the days of a month count from 1
    month += np.where(month < 10, 3, -9)
    year += 400 * cycle + (month <= 2)  # January and February belong to the calendar year that follows
    _write_digits(table[:, 0:4], np.abs(year) % 10_000)
    _write_digits(table[:, 5:7], month)
    _write_digits(table[:, 8:10], day)
    table[:, 4] = table[:, 7] = ord("-")
    years: NDArray[np.int64] = year
    return years


def _write_times(table: NDArray[np.uint8], day_seconds: NDArray[np.int64]) -> None:
    """Write `HH:MM:SS` to the first eight columns of the table.

    `day_seconds`: seconds since midnight.
    """
    minute, second = np.divmod(day_seconds, 60)
    hour, minute = np.divmod(minute, 60)
    _write_digits(table[:, 0:2], hour)
    _write_digits(table[:, 3:5], minute)
    _write_digits(table[:, 6:8], second)
    table[:, 2] = table[:, 5] = ord(":")


def _write_digits(table: NDArray[np.uint8], numbers: NDArray[Any]) -> None:
    """Write the decimal digits of each number to its row, with leading zeros."""
    numbers = numbers.astype(np.int32)
    for column in range(table.shape[1] - 1, -1, -1):
        quotient = numbers // 10
        table[:, column] = numbers - 10 * quotient + ord("0")
        numbers = quotient


def _to_text_with_years(table: NDArray[np.uint8], years: NDArray[np.int64]) -> pa.Array:
    """Convert a byte table to an array. If any year needs a sign, replace the first four columns with the years.

    `years`: the year of each row.
    """
    is_every_year_unsigned = not len(years) or (years.min() >= 0 and years.max() <= _MAX_UNSIGNED_YEAR)
    if is_every_year_unsigned:
        return from_byte_table(table)
    distinct_years, year_indices = np.unique(years, return_inverse=True)
    signed_years = [
        b"+%d" % year if year > _MAX_UNSIGNED_YEAR else b"%05d" % year if year < 0 else b"%04d" % year
        for year in distinct_years
    ]
    return join(choose_by_index(year_indices, signed_years), from_byte_table(table[:, 4:]))


def _format_offsets(offsets: NDArray[np.int64] | int) -> Any:
    """Format UTC offsets in seconds. Return an array, or a scalar if `offsets` is a single number for all rows."""
    if isinstance(offsets, int):
        return build_binary_scalar(_format_offset(offsets))
    distinct_offsets, offset_indices = np.unique(offsets, return_inverse=True)
    return choose_by_index(offset_indices, [_format_offset(int(offset)) for offset in distinct_offsets])


def _format_offset(offset_seconds: int) -> bytes:
    if offset_seconds == 0:
        return b"Z"
    minute, second = divmod(abs(offset_seconds), 60)
    hour, minute = divmod(minute, 60)
    text = b"%c%02d:%02d" % (b"-" if offset_seconds < 0 else b"+", hour, minute)
    return text + b":%02d" % second if second else text
