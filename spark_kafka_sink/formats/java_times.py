"""Dates and times as text, in the formats that Spark's `to_json` uses.

date         2024-03-10
timestamp    2024-03-10T12:30:00.123-04:00, in the session's time zone, which Spark gives with the column's type; `Z` if
             that is UTC, and seconds in the offset where it has some (before standard time)
timestamp_ntz 2024-03-10T12:30:00.123
time         12:34:56.789, without zeros at its end

Years of other than four digits have a sign: `+12024`, `-0005`. Fractions of a millisecond are cut off.
All digits of a column are computed at once and stored in a table of bytes, as every row has as many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.formats.binary_arrays import chosen, constant, fixed_rows, join, with_nulls_of
from spark_kafka_sink.formats.time_zones import utc_offsets
from spark_kafka_sink.records.arrays import integers_to_numpy

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400


def date_text(array: pa.Array) -> pa.Array:
    days = integers_to_numpy(array.view(pa.int32())).astype(np.int64)
    table = np.empty((len(array), 10), np.uint8)
    return with_nulls_of(_with_year(table, _date_digits(table, days)), array)


def timestamp_text(array: pa.Array) -> pa.Array:
    ticks = integers_to_numpy(array.view(pa.int64()))
    per_second = _PER_SECOND[array.type.unit]
    seconds, fraction = np.divmod(ticks, per_second)
    offset = 0 if array.type.tz is None else utc_offsets(seconds, array.type.tz)
    days, second = np.divmod(seconds + offset, _DAY)
    table = np.empty((len(array), 23), np.uint8)
    years = _date_digits(table, days)
    _time_digits(table[:, 11:19], second)
    table[:, 10], table[:, 19] = ord("T"), ord(".")
    _digits(table[:, 20:23], fraction * 1_000 // per_second)
    text = _with_year(table, years)
    if array.type.tz is not None:
        text = join(text, _zone_text(offset))
    return with_nulls_of(text, array)


def time_text(array: pa.Array) -> pa.Array:
    ticks = integers_to_numpy(array.view(pa.int64()))
    per_second = _PER_SECOND[array.type.unit]
    table = np.empty((len(array), 18), np.uint8)
    _time_digits(table, ticks // per_second)
    table[:, 8] = ord(".")
    _digits(table[:, 9:], ticks % per_second * (_PER_SECOND["ns"] // per_second))
    text = pc.ascii_rtrim(pc.ascii_rtrim(fixed_rows(table).view(pa.string()), "0"), ".")
    return with_nulls_of(text.view(pa.binary()), array)


def _date_digits(table: NDArray[np.uint8], days: NDArray[np.int64]) -> NDArray[np.int64]:
    """`YYYY-MM-DD` into the first ten columns, and the years. The days are since 1970, the calendar is Gregorian."""
    # Years of 365.2425 days that begin in March, in cycles of 400, so that the leap day is the last of a year.
    cycle, day = np.divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month += np.where(month < 10, 3, -9)
    year += 400 * cycle + (month <= 2)
    _digits(table[:, 0:4], np.abs(year) % 10_000)
    _digits(table[:, 5:7], month)
    _digits(table[:, 8:10], day)
    table[:, 4] = table[:, 7] = ord("-")
    years: NDArray[np.int64] = year
    return years


def _time_digits(table: NDArray[np.uint8], second: NDArray[np.int64]) -> None:
    """`HH:MM:SS` into the first eight columns."""
    minute, second = np.divmod(second, 60)
    hour, minute = np.divmod(minute, 60)
    _digits(table[:, 0:2], hour)
    _digits(table[:, 3:5], minute)
    _digits(table[:, 6:8], second)
    table[:, 2] = table[:, 5] = ord(":")


def _digits(table: NDArray[np.uint8], numbers: NDArray[Any]) -> None:
    """Write each number into its row of the table, with one digit in each column."""
    numbers = numbers.astype(np.int32)
    for column in range(table.shape[1] - 1, -1, -1):
        rest = numbers // 10
        table[:, column] = numbers - 10 * rest + ord("0")
        numbers = rest


def _with_year(table: NDArray[np.uint8], years: NDArray[np.int64]) -> pa.Array:
    """The table as an array, with signs and more digits where a year needs them."""
    if not len(years) or (years.min() >= 0 and years.max() <= 9_999):
        return fixed_rows(table)
    distinct, which = np.unique(years, return_inverse=True)
    signed = [b"+%d" % year if year > 9_999 else b"%05d" % year if year < 0 else b"%04d" % year for year in distinct]
    return join(chosen(which, signed), fixed_rows(table[:, 4:]))


def _zone_text(offset: NDArray[np.int64] | int) -> Any:
    if isinstance(offset, int):
        return constant(_offset_text(offset))
    distinct, which = np.unique(offset, return_inverse=True)
    return chosen(which, [_offset_text(int(one)) for one in distinct])


def _offset_text(offset: int) -> bytes:
    if offset == 0:
        return b"Z"
    minute, second = divmod(abs(offset), 60)
    hour, minute = divmod(minute, 60)
    text = b"%c%02d:%02d" % (b"-" if offset < 0 else b"+", hour, minute)
    return text + b":%02d" % second if second else text
