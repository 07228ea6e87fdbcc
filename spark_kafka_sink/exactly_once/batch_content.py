"""BatchContent: the row count of each topic in a batch. Together with the batch's name, it identifies the batch.

A batch is named after its batch id or idempotency key, but the name alone does not identify the rows. A checkpoint may
have been restored or copied, a source may return different rows when it is read again, or two jobs may use the same
key. The decision log therefore stores the content along with the name, and a batch is skipped only if both match.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_LISTED_TOPICS = 20
"""The number of topics whose row counts the decision log stores, to show them in messages."""
_DIGEST_CHARACTERS = 32
"""The length of stored digests. If it changes, rerun batches no longer match those that are already committed."""


@dataclass(frozen=True)
class BatchContent:
    """The number of rows in a batch, in total and by topic, and their size."""

    rows: int
    """The number of rows in all topics."""
    payload_bytes: int
    """The total size of keys and values, shown in messages.

    It is never compared, because a row may have a different length when it is written again, for example if its value
    contains the current time.
    """
    topics: tuple[tuple[str, int], ...]
    """The names and row counts of the first MAX_LISTED_TOPICS topics, sorted by name."""
    digest: str
    """A hash over the names and row counts of all topics, by which two contents are compared."""

    @classmethod
    def from_row_counts(cls, row_counts: Mapping[str, int], payload_bytes: int) -> BatchContent:
        """Create the content from each topic's number of rows. Topics without rows do not affect it."""
        topics = sorted((topic, count) for topic, count in row_counts.items() if count)
        hasher = hashlib.sha256("\n".join(f"{topic} {count}" for topic, count in topics).encode())
        return cls(
            sum(count for _, count in topics),
            payload_bytes,
            tuple(topics[:MAX_LISTED_TOPICS]),
            hasher.hexdigest()[:_DIGEST_CHARACTERS],
        )

    def has_same_row_counts(self, other: BatchContent) -> bool:
        """Return whether both batches have the same number of rows in each topic."""
        return self.digest == other.digest

    def __str__(self) -> str:
        topics = ", ".join(f"{topic}: {count}" for topic, count in self.topics)
        return f"{self.rows} rows with {self.payload_bytes} bytes in total ({topics or 'no topic'})"


def sum_contents(task_contents: Iterable[tuple[Mapping[str, int], int]]) -> BatchContent:
    """Return the content of a batch from those of its tasks: pairs of row counts by topic and payload bytes."""
    total_counts: dict[str, int] = {}
    total_bytes = 0
    for row_counts, payload_bytes in task_contents:
        total_bytes += payload_bytes
        for topic, count in row_counts.items():
            total_counts[topic] = total_counts.get(topic, 0) + count
    return BatchContent.from_row_counts(total_counts, total_bytes)
