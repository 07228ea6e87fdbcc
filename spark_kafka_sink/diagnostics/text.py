"""Text formatting for errors, logs and reports: text from peers, masked secrets, partitions, counts and byte sizes."""

from __future__ import annotations

from collections.abc import Iterable

MAX_CHARACTERS = 300
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB")


def sanitize(text: str | None, max_characters: int = MAX_CHARACTERS) -> str:
    """Make text from a peer safe to show. Return "" for None.

    Return a single line of at most `max_characters`, followed by `...` if the text is longer. Control characters, which
    a terminal would execute, and invisible characters become spaces or question marks.
    """
    if not text:
        return ""
    safe_text = "".join(
        character if character.isprintable() else " " if character.isspace() else "?"
        for character in text[:max_characters]
    )
    return safe_text + "..." if len(text) > max_characters else safe_text


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets with asterisks in text from a server, which may quote the request."""
    # Replace longer secrets first, because a longer secret may contain a shorter one.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def format_partition(topic: str, partition: int | None = None) -> str:
    """Format a topic or a topic-partition, for example as "topic orders, partition 3".

    The topic is sanitized because its name may come from a broker.
    """
    name = f"topic {sanitize(topic)}"
    return name if partition is None else f"{name}, partition {partition}"


def format_count(number: int, noun: str) -> str:
    """Format a number with a noun, for example as "1 row" or "2,000 rows". The plural must be the noun with an `s`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(byte_count: float) -> str:
    """Format a number of bytes in decimal units, for example as "2.0 KB"."""
    value = byte_count
    unit_index = 0
    while value >= 1000 and unit_index < len(_BYTE_UNITS) - 1:
        value /= 1000
        unit_index += 1
    unit = _BYTE_UNITS[unit_index]
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
