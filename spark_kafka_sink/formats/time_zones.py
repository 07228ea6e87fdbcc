"""UTC offsets of timestamp columns.

Python's zoneinfo computes the offset of only one time per call, which would be slow for a column. Instead, this module
finds the zone's transitions (changes of its offset) in the years that occur in the column, and caches them. A binary
search then finds the last transition before each row. Arrow's kernels are not used, because they apply no rules to
years after 2037.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import SchemaError

# Spark accepts minutes of one digit after a colon.
_FIXED_OFFSET_PATTERN = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}|(?<=:)\d))?(?::?(\d{2}))?")
_UTC_NAMES = ("UTC", "Z", "GMT", "UT", "Etc/UTC")
_JAVA_SHORT_IDS = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Short names of zones that Spark accepts, because it passes `ZoneId.SHORT_IDS` to Java's `ZoneId.of`.

The names and zones are those of Java 17. Java 25 maps EST, HST and MST to Panama, Honolulu and Phoenix instead, as does
the time zone database of some machines. The offsets of these regions differ from the fixed offsets only before 1968.
"""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MEAN_YEAR_SECONDS = 31_556_952
"""Mean length of a year in the Gregorian calendar: 365.2425 days."""
_CYCLE_YEARS = 400
"""Years after which the dates and weekdays of the Gregorian calendar repeat, and with them the zones' rules."""
_FIRST_YEAR, _LAST_YEAR = 1800, 2800
"""No zone has a transition before _FIRST_YEAR. The transitions of the 400 years before _LAST_YEAR repeat after it."""
_SEARCH_STEP = timedelta(days=5)
"""A time within which no zone has two transitions."""


class _Transition(NamedTuple):
    """A change of a zone's UTC offset."""

    time_s: int
    """Seconds since 1970 in UTC."""
    offset_s: int
    """The UTC offset in seconds from this time on."""


def compute_utc_offsets(seconds: NDArray[np.int64], zone: str) -> NDArray[np.int64] | int:
    """Return the UTC offset in seconds of each time, or a single number if the offset is fixed or there are no times.

    Raise SchemaError if the zone is unknown.

    `seconds`: seconds since 1970 in UTC.
    `zone`: the name of a region, such as `Europe/Paris`, one of Java's short names, such as `PST`, or a fixed offset,
    such as `+01:00`.
    """
    fixed_offset = _parse_fixed_offset(zone)
    if fixed_offset is not None:
        return fixed_offset
    if not len(seconds):
        return 0
    seconds = _move_before_last_year(seconds)
    # The mean year length gives approximate years, so the years before and after are included.
    years = np.unique(np.clip(seconds // _MEAN_YEAR_SECONDS + 1970, _FIRST_YEAR, _LAST_YEAR))
    year_range = np.unique(np.concatenate([years - 1, years, years + 1]))
    transitions = [transition for year in year_range for transition in _find_transitions(zone, int(year))]
    transition_times = np.array([transition.time_s for transition in transitions], np.int64)
    # A time that comes after i transitions has the offset offsets[i]. Before all transitions, the first offset applies.
    offsets = np.array([transitions[0].offset_s, *(transition.offset_s for transition in transitions)], np.int64)
    row_offsets: NDArray[np.int64] = offsets[np.searchsorted(transition_times, seconds, side="right")]
    return row_offsets


def _move_before_last_year(seconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move times from _LAST_YEAR on back by whole cycles. The transitions repeat, so the offsets stay the same."""
    cycle_seconds = _CYCLE_YEARS * _MEAN_YEAR_SECONDS
    last_seconds = (_LAST_YEAR - 1970) * _MEAN_YEAR_SECONDS
    moved_seconds = last_seconds - cycle_seconds + (seconds - last_seconds) % cycle_seconds
    return np.where(seconds >= last_seconds, moved_seconds, seconds)


def _parse_fixed_offset(zone: str) -> int | None:
    """Return the zone's offset in seconds, or None if its name is not a fixed offset."""
    if zone in _UTC_NAMES:
        return 0
    match = _FIXED_OFFSET_PATTERN.fullmatch(_JAVA_SHORT_IDS.get(zone, zone))
    if match is None:
        return None
    sign = -1 if match[1] == "-" else 1
    return sign * (3600 * int(match[2]) + 60 * int(match[3] or 0) + int(match[4] or 0))


@lru_cache(maxsize=4096)
def _find_transitions(zone: str, year: int) -> list[_Transition]:
    """Return the transitions of one year in order. The first element is the start of the year with its offset.

    Raise SchemaError if the zone is unknown.
    """
    zone_info = _load_zone(zone)
    time = datetime(year, 1, 1, tzinfo=timezone.utc)
    year_end = datetime(year + 1, 1, 1, tzinfo=timezone.utc)
    transitions = [_Transition(_to_epoch_seconds(time), _find_utc_offset(zone_info, time))]
    while time < year_end:
        next_time = min(time + _SEARCH_STEP, year_end)
        next_offset_s = _find_utc_offset(zone_info, next_time)
        if next_offset_s != transitions[-1].offset_s:
            time_s = _find_transition_time(zone_info, _to_epoch_seconds(time), _to_epoch_seconds(next_time))
            transitions.append(_Transition(time_s, next_offset_s))
        time = next_time
    return transitions


def _find_transition_time(zone: tzinfo, start_s: int, end_s: int) -> int:
    """Return the time of the only transition after `start_s` and no later than `end_s`, in seconds since 1970."""
    new_offset = _find_utc_offset(zone, _EPOCH + timedelta(seconds=end_s))
    while end_s - start_s > 1:
        middle_s = (start_s + end_s) // 2
        if _find_utc_offset(zone, _EPOCH + timedelta(seconds=middle_s)) == new_offset:
            end_s = middle_s
        else:
            start_s = middle_s
    return end_s


def _to_epoch_seconds(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(seconds=1)


def _find_utc_offset(zone: tzinfo, time: datetime) -> int:
    """Return the offset in seconds."""
    offset: Any = time.astimezone(zone).utcoffset()
    return int(offset.total_seconds())


@lru_cache(maxsize=64)
def _load_zone(name: str) -> tzinfo:
    """Load the rules of a zone. Raise SchemaError if this machine does not know the zone."""
    try:
        return ZoneInfo(_JAVA_SHORT_IDS.get(name, name))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SchemaError(
            f"The time zone {name!r} of a timestamp column is unknown on this machine. Use a region such as "
            "'Europe/Paris' or an offset such as '+01:00'. In Spark, set spark.sql.session.timeZone; in an Arrow "
            "table, set the time zone of the column's type. If the machine has no time zone database, install the "
            "package tzdata."
        ) from error
