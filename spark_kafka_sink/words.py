"""Words that come from the other end of a connection, on their way into a log or an error; and numbers in words."""

from __future__ import annotations

from collections.abc import Iterable

CHARACTERS_MAX = 300
HOST_CHARACTERS_MAX = 255
"""The longest host name that the DNS allows."""
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


def cleaned(words: str | None, characters_max: int = CHARACTERS_MAX) -> str:
    """On one line, of bounded length, and without characters that a terminal would act on or a reader not see."""
    if not words:
        return ""
    shown = "".join(
        character if character.isprintable() else " " if character.isspace() else "?"
        for character in words[:characters_max]
    )
    return shown + "..." if len(words) > characters_max else shown


def masked(words: str, secrets: Iterable[str]) -> str:
    """Without the secrets, where the other end repeats what it was sent."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        words = words.replace(secret, "***")
    return words


def placed(topic: str, partition: int | None = None) -> str:
    """The words for a place, `topic orders, partition 3`, where its name may have come from a broker."""
    name = f"topic {cleaned(topic)}"
    return name if partition is None else f"{name}, partition {partition}"


def host_fault(host: str) -> str | None:
    """Why this is no name of a host, if it is none."""
    if not host:
        return "it is empty"
    if len(host) > HOST_CHARACTERS_MAX:
        return f"it has {len(host)} characters, and at most {HOST_CHARACTERS_MAX} are possible"
    return None if host.isprintable() and " " not in host else "it has characters that no name has"


def counted(number: int, noun: str) -> str:
    """1 row, 2,000 rows"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sized(count: float) -> str:
    """2.0 KB"""
    units = iter(_BYTE_UNITS)
    unit = next(units)
    while count >= 1000 and (larger := next(units, None)):
        count, unit = count / 1000, larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
