"""Search for anomalies in the records of a stream of numbered rows, whose batches have the same size."""

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


def find_row_anomalies(stored: Sequence[Row], batches: int, rows_per_batch: int) -> list[Anomaly]:
    """Find lost, duplicate, partial and reordered rows.

    `stored`: the records of a read_committed reader. Their values are the row numbers, and the rows of each key must be
    in ascending order. `batches`: the number of batches that are known to be committed. Rows of later batches may be
    present, but only complete batches.
    """
    values_by_key: dict[bytes, list[bytes]] = {}
    partitions = {record.value: record.partition for record in stored}
    values_by_partition: dict[int, list[bytes]] = {}
    for record in stored:
        values_by_partition.setdefault(record.partition, []).append(record.value or b"")
        values_by_key.setdefault(record.key or b"", []).append(record.value or b"")
    history = History()
    stored_batches = max((int(value or b"") for value in partitions), default=-1) // rows_per_batch + 1
    for batch in range(max(batches, stored_batches)):
        values = [b"%d" % number for number in range(batch * rows_per_batch, (batch + 1) * rows_per_batch)]
        # The partition of a missing row is unknown. Any partition will do, since the row is missing everywhere.
        rows = [(partitions.get(value, 0), value) for value in values]
        outcome = Outcome.COMMITTED if batch < batches else Outcome.UNKNOWN
        history.writes.append(Write(f"batch {batch}", rows, outcome))
    return history.anomalies(values_by_partition) + _find_reordered_rows(values_by_key)


def _find_reordered_rows(values_by_key: dict[bytes, list[bytes]]) -> list[Anomaly]:
    """Find keys whose rows are not in ascending order. All rows of a key are in the same partition."""
    anomalies: list[Anomaly] = []
    for key, values in values_by_key.items():
        distinct_values = list(dict.fromkeys(values))
        expected_rows = [(0, value) for value in sorted(distinct_values, key=int)]
        history = History([Write(f"key {key!r}", expected_rows, Outcome.UNKNOWN, writer=key)])
        anomalies += history.anomalies({0: distinct_values})
    return anomalies
