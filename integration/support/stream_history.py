"""The history of a stream of numbered rows, in batches of the same size, for tests/history.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.history import Anomaly, History, Outcome, Write


class Row(Protocol):
    @property
    def partition(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


def anomalies_of_rows(stored: Sequence[Row], batches: int, rows_per_batch: int) -> list[Anomaly]:
    """`stored`: what a read_committed reader got, whose values are the numbers of the rows, whose keys each have their
    rows in the order of their numbers. `batches`: how many were committed. One more may be seen, but whole.
    """
    rows_of: dict[bytes, list[bytes]] = {}
    partitions = {record.value: record.partition for record in stored}
    seen: dict[int, list[bytes]] = {}
    for record in stored:
        seen.setdefault(record.partition, []).append(record.value or b"")
        rows_of.setdefault(record.key or b"", []).append(record.value or b"")
    history = History()
    last = max((int(value or b"") for value in partitions), default=-1) // rows_per_batch + 1
    for batch in range(max(batches, last)):
        values = [b"%d" % number for number in range(batch * rows_per_batch, (batch + 1) * rows_per_batch)]
        # A row that is missing has no partition; it is missing in any.
        places = [(partitions.get(value, 0), value) for value in values]
        outcome = Outcome.COMMITTED if batch < batches else Outcome.UNKNOWN
        history.writes.append(Write(f"batch {batch}", places, outcome))
    return history.anomalies(seen) + _out_of_order(rows_of)


def _out_of_order(rows_of: dict[bytes, list[bytes]]) -> list[Anomaly]:
    """The rows of a key are in one partition."""
    found: list[Anomaly] = []
    for key, values in rows_of.items():
        distinct = list(dict.fromkeys(values))
        order = sorted(distinct, key=int)
        history = History([Write(f"key {key!r}", [(0, value) for value in order], Outcome.UNKNOWN, writer=key)])
        found += history.anomalies({0: distinct})
    return found
