"""BatchSummary: the number of rows that a batch has in each topic, to compare a rerun of the batch with the first run.

A batch that was committed is skipped when it is run again. It is recognized by its batch id or idempotency key, but the
rows may be different ones: a checkpoint may have been restored or copied, a source may return different rows when it is
read again, or two jobs may use the same key. The decision log therefore also stores the row counts, and
`BatchStart.check_skipped_batch` compares them with the row counts of the rerun.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_kafka_sink.diagnostics.text import format_count

MAX_LISTED_TOPICS = 20
"""The number of topics whose row counts are stored one by one, to show them in messages."""
_DIGEST_CHARACTERS = 32
"""The length of stored digests. If it changes, a rerun batch no longer matches the digest that is already stored."""


@dataclass(frozen=True)
class BatchSummary:
    """The number of rows in a batch, in total and by topic, and their size.

    The names of the fields are part of the record format (entry_json.py).
    """

    rows: int
    """The number of rows in all topics."""
    payload_bytes: int
    """The total size of keys and values. It is shown in messages, but never compared.

    A row may have a different length when it is written again, for example if its value contains the current time.
    """
    topics: tuple[tuple[str, int], ...]
    """The names and row counts of the first MAX_LISTED_TOPICS topics, sorted by name."""
    digest: str
    """A hash of the names and row counts of all topics. `has_same_row_counts` compares only this hash."""

    @classmethod
    def from_row_counts(cls, row_counts: Mapping[str, int], payload_bytes: int) -> BatchSummary:
        """Create a summary from the number of rows in each topic. Topics without rows are ignored."""
        sorted_counts = sorted((topic, count) for topic, count in row_counts.items() if count)
        hasher = hashlib.sha256("\n".join(f"{topic} {count}" for topic, count in sorted_counts).encode())
        return cls(
            sum(count for _, count in sorted_counts),
            payload_bytes,
            tuple(sorted_counts[:MAX_LISTED_TOPICS]),
            hasher.hexdigest()[:_DIGEST_CHARACTERS],
        )

    def has_same_row_counts(self, other: BatchSummary) -> bool:
        """Return whether both batches have the same number of rows in each topic."""
        return self.digest == other.digest

    def __str__(self) -> str:
        topics = ", ".join(f"{topic}: {count}" for topic, count in self.topics)
        size = f"{format_count(self.rows, 'row')} with {format_count(self.payload_bytes, 'byte')}"
        return f"{size} in total ({topics or 'no topic'})"


def summarize_tasks(task_counts: Iterable[tuple[Mapping[str, int], int]]) -> BatchSummary:
    """Sum up the row counts and sizes of a batch's tasks.

    `task_counts`: for each task, its row counts by topic, and the total size of its keys and values in bytes.
    """
    total_counts: dict[str, int] = {}
    total_bytes = 0
    for row_counts, payload_bytes in task_counts:
        total_bytes += payload_bytes
        for topic, count in row_counts.items():
            total_counts[topic] = total_counts.get(topic, 0) + count
    return BatchSummary.from_row_counts(total_counts, total_bytes)
