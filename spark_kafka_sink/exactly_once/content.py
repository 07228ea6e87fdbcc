"""What a batch contains, as far as it identifies the batch: the rows of each topic.

A number or a key names a batch, but other rows can have the same name: a checkpoint that was restored or copied, a
source that gives other rows when it is read again, one key for two jobs. So the decision log keeps the content with
the name, and a batch is passed over only if both are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TOPICS_SHOWN_MAX = 20
_DIGEST_CHARACTERS = 32


@dataclass(frozen=True)
class Content:
    rows: int
    payload_bytes: int
    """Of keys and values. For people: a time in a value may honestly have another length when it is written again."""
    topics: tuple[tuple[str, int], ...]
    """Topics with their rows, by name; the first of them where there are many."""
    digest: str
    """Of all topics and rows: two contents are the same if these are."""

    @classmethod
    def of(cls, rows: Mapping[str, int], payload_bytes: int) -> Content:
        """`rows`: by topic."""
        topics = sorted((topic, count) for topic, count in rows.items() if count)
        hashed = hashlib.sha256("\n".join(f"{topic} {count}" for topic, count in topics).encode())
        return cls(
            sum(count for _, count in topics),
            payload_bytes,
            tuple(topics[:TOPICS_SHOWN_MAX]),
            hashed.hexdigest()[:_DIGEST_CHARACTERS],
        )

    def is_same(self, other: Content) -> bool:
        return self.digest == other.digest

    def __str__(self) -> str:
        topics = ", ".join(f"{topic}: {count}" for topic, count in self.topics)
        return f"{self.rows} rows of {self.payload_bytes} bytes ({topics or 'no topic'})"


def added_up(parts: Iterable[tuple[Mapping[str, int], int]]) -> Content:
    """The content of a batch from (rows by topic, payload bytes) of its tasks."""
    rows: dict[str, int] = {}
    payload_bytes = 0
    for of_task, size in parts:
        payload_bytes += size
        for topic, count in of_task.items():
            rows[topic] = rows.get(topic, 0) + count
    return Content.of(rows, payload_bytes)
