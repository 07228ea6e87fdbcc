"""How far the clocks of a zone are from UTC, for columns of times.

Python's zoneinfo answers for one time only. So the changes of a zone's clock are looked up year by year, for the years
that a column has, and kept; the rows are then placed between them by a binary search. Arrow's own kernels are not used:
they know no rule for the years after 2037.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import SchemaError

_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_UTC = ("UTC", "Z", "GMT", "UT", "Etc/UTC")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_YEAR_SECONDS = 31_556_952
"""A year of the Gregorian calendar on average: 365.2425 days."""
_CYCLE_YEARS = 400
_FIRST_YEAR, _LAST_YEAR = 1800, 2800
"""Before the first no zone had changed its clocks. What comes after the last repeats the 400 years before it."""
_STEP = timedelta(days=5)
"""No zone changes its clocks twice within this time."""


def utc_offsets(seconds: NDArray[np.int64], zone: str) -> NDArray[np.int64] | int:
    """Seconds to be added to these seconds since 1970 in UTC; one number if it is the same at all times."""
    fixed = _fixed_offset(zone)
    if fixed is not None:
        return fixed
    if not len(seconds):
        return 0
    cycle = _CYCLE_YEARS * _YEAR_SECONDS
    last = (_LAST_YEAR - 1970) * _YEAR_SECONDS
    seconds = np.where(seconds >= last, last - cycle + (seconds - last) % cycle, seconds)
    # A year early and late, as years of average length are not those of the calendar.
    years = np.unique(np.clip(seconds // _YEAR_SECONDS + 1970, _FIRST_YEAR, _LAST_YEAR))
    wanted = np.unique(np.concatenate([years - 1, years, years + 1]))
    changes = [change for year in wanted for change in _changes(zone, int(year))]
    at = np.array([time for time, _ in changes], np.int64)
    offsets = np.array([changes[0][1], *(offset for _, offset in changes)], np.int64)
    found: NDArray[np.int64] = offsets[np.searchsorted(at, seconds, side="right")]
    return found


def _fixed_offset(zone: str) -> int | None:
    if zone in _UTC:
        return 0
    match = _FIXED.fullmatch(zone)
    if match is None:
        return None
    sign = -1 if match[1] == "-" else 1
    return sign * (3600 * int(match[2]) + 60 * int(match[3] or 0) + int(match[4] or 0))


@lru_cache(maxsize=4096)
def _changes(zone: str, year: int) -> list[tuple[int, int]]:
    """The second at which a year begins, and those at which it changes its clocks, with the offset from there on."""
    known = _zone(zone)
    begin, end = datetime(year, 1, 1, tzinfo=timezone.utc), datetime(year + 1, 1, 1, tzinfo=timezone.utc)
    changes = [(_seconds(begin), _offset(known, begin))]
    while begin < end:
        then = min(begin + _STEP, end)
        if _offset(known, then) != changes[-1][1]:
            change = _change_between(known, _seconds(begin), _seconds(then))
            changes.append((change, _offset(known, then)))
        begin = then
    return changes


def _change_between(zone: tzinfo, before: int, after: int) -> int:
    """The first second with the offset that holds at `after`."""
    final = _offset(zone, _EPOCH + timedelta(seconds=after))
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, _EPOCH + timedelta(seconds=middle)) == final:
            after = middle
        else:
            before = middle
    return after


def _seconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(seconds=1)


def _offset(zone: tzinfo, time: datetime) -> int:
    offset: Any = time.astimezone(zone).utcoffset()
    return int(offset.total_seconds())


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SchemaError(
            f"The time zone {name!r} of a timestamp column is unknown on this machine. Use a region such as "
            "'Europe/Paris' or an offset such as '+01:00': Spark takes it from spark.sql.session.timeZone, and an "
            "Arrow table has it in the column's type. If the machine has no time zone database, install "
            "the package tzdata."
        ) from error
