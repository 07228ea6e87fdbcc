"""Text for errors, logs and reports: foreign text made safe to show, and names and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

CHARACTERS_MAX = 300
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


def sanitize(text: str | None, characters_max: int = CHARACTERS_MAX) -> str:
    """Return text from the other end of a connection on one line, shortened, and without characters that a terminal
    acts on or a reader cannot see.
    """
    if not text:
        return ""
    shown = "".join(
        character if character.isprintable() else " " if character.isspace() else "?"
        for character in text[:characters_max]
    )
    return shown + "..." if len(text) > characters_max else shown


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace the secrets in text of a server that repeats what it was sent."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def format_partition(topic: str, partition: int | None = None) -> str:
    """topic orders, partition 3; sanitized, since the name may come from a broker"""
    name = f"topic {sanitize(topic)}"
    return name if partition is None else f"{name}, partition {partition}"


def format_count(number: int, noun: str) -> str:
    """1 row, 2,000 rows"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(count: float) -> str:
    """2.0 KB"""
    units = iter(_BYTE_UNITS)
    unit = next(units)
    while count >= 1000 and (larger := next(units, None)):
        count, unit = count / 1000, larger
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
