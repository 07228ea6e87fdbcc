"""Staging: rows wait as they came until enough are there, then they are grouped by partition all at once.

Ten thousand rows over a thousand partitions are ten rows for each, and whatever is done for a piece of ten rows costs
as much as for a piece of a thousand. So rows are not sorted into their partitions when they arrive. They wait, as Arrow
columns beside a column of partition numbers, until about a batch for each partition that they hit has come together,
or linger.ms has passed, or memory is short. Then one stable sort finds the order in which the rows of a partition are
neighbours, as they were given, and one take lays them out in it.

Single records wait as tuples and become columns when they are grouped. A run is what one call staged (or many calls
with single records, back to back): it remembers for each row which row of which call it is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.row_origins import RowOwners
from spark_kafka_sink.records.arrays import bytes_array, number_array
from spark_kafka_sink.records.columns import RecordColumns

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_FEW_ROWS = 64

Headers = Sequence[tuple[str, "bytes | None"]]


class StagedRecord(NamedTuple):
    """One record of send(), serialized."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int
    partition: int
    size: int
    call: object


@dataclass(slots=True)
class Run:
    """Rows of one call, or of many calls with one record each (then `call` is the list of them)."""

    columns: RecordColumns  # gone once they are grouped
    sizes: NDArray[np.int64]
    partitions: NDArray[np.int32]
    rows: NDArray[np.int64]
    call: object
    counts: NDArray[np.int64] = field(init=False)  # of rows, for each partition up to the last one that has any

    def __post_init__(self) -> None:
        self.counts = np.bincount(self.partitions)


Staged = Run | list[StagedRecord]
"""What one call staged, or single records, back to back: they become columns when they are grouped, under no lock."""


class Stage:
    """What waits for one topic. Guarded by the accumulator's lock; who groups it holds `group_lock` as well."""

    __slots__ = (
        "bytes",
        "group_lock",
        "hit",
        "hit_below",
        "oldest_ms",
        "records",
        "reserved",
        "row_count",
        "runs",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.group_lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self.runs: list[Staged] = []
        self.records: list[StagedRecord] = []
        self.bytes = 0  # upper bound of the encoded form
        self.reserved = 0  # bytes taken from the pool
        self.row_count = 0
        self.hit: set[int] = set()  # partitions
        self.hit_below = 0  # all partitions below this one are hit: their rows need not be looked at again
        self.oldest_ms = 0.0

    def add_run(self, run: Run, size: int, reserved: int, now: float) -> None:
        hit = run.counts.nonzero()[0].tolist() if len(run.counts) > self.hit_below else ()
        self._close_records()
        if not self.row_count:
            self.oldest_ms = now
        self.runs.append(run)
        self.row_count += len(run.rows)
        self.bytes += size
        self.reserved += reserved
        self.hit.update(hit)
        while self.hit_below in self.hit:
            self.hit_below += 1

    def add_record(self, record: StagedRecord, reserved: int, now: float) -> None:
        """`now` counts for the first record of a stage only."""
        if not self.row_count:
            self.oldest_ms = now
        self.records.append(record)
        self.row_count += 1
        self.bytes += record.size
        self.reserved += reserved
        self.hit.add(record.partition)

    def take(self) -> Taken:
        """Everything that waits; the stage is empty afterwards."""
        self._close_records()
        taken = Taken(self.runs, self.reserved, self.oldest_ms)
        self.clear()
        return taken

    def _close_records(self) -> None:
        if self.records:
            self.runs.append(self.records)
            self.records = []


class Taken(NamedTuple):
    """The content of a stage."""

    runs: list[Staged]
    reserved: int
    oldest_ms: float


def chunks(sizes: NDArray[np.int64], rows_max: int, bytes_max: int) -> Iterator[tuple[int, int, int]]:
    """Cut a call into what is staged at a time: first row, row after the last, bytes. A larger row is a chunk alone."""
    row_count, total = len(sizes), int(np.add.reduce(sizes))
    if total <= bytes_max and row_count <= rows_max:
        yield 0, row_count, total
        return
    ends = np.cumsum(sizes)
    start = before = 0
    while start < row_count:
        stop = int(np.searchsorted(ends, before + bytes_max, "right"))
        stop = min(max(stop, start + 1), start + rows_max, row_count)
        end = int(ends[stop - 1])
        yield start, stop, end - before
        start, before = stop, end


def as_run(staged: Staged) -> Run:
    return staged if isinstance(staged, Run) else run_of_records(staged)


def whose_rows(staged: Staged) -> tuple[NDArray[np.int32], NDArray[np.int64], object]:
    """For rows that come to nothing: their partitions, their positions in the call, and the call."""
    if isinstance(staged, Run):
        return staged.partitions, staged.rows, staged.call
    partitions = np.array([record.partition for record in staged], np.int32)
    return partitions, np.arange(len(staged)), [record.call for record in staged]


def run_of_records(records: Sequence[StagedRecord]) -> Run:
    """Single records as columns."""
    keys, values, headers, timestamps, partitions, sizes, calls = zip(*records, strict=True)
    count = len(records)
    columns = RecordColumns(
        value=bytes_array(values),
        key=None if all(key is None for key in keys) else bytes_array(keys),
        headers=_header_column(headers) if any(headers) else None,
        timestamp=number_array(np.fromiter(timestamps, np.int64, count)),
    )
    return Run(
        columns,
        np.fromiter(sizes, np.int64, count),
        np.fromiter(partitions, np.int32, count),
        np.arange(count, dtype=np.int64),
        list(calls),
    )


def _header_column(headers: Sequence[Headers | None]) -> pa.Array:
    pairs = [pair for some in headers for pair in some or ()]
    keys = bytes_array([key.encode() for key, _ in pairs], pa.string())
    values = bytes_array([value for _, value in pairs], pa.binary())
    structs = pa.StructArray.from_arrays([keys, values], fields=[*HEADERS_TYPE.value_type])
    ends = np.cumsum([0, *(len(some or ()) for some in headers)], dtype=np.int32)
    return pa.ListArray.from_arrays(number_array(ends), structs, type=HEADERS_TYPE)


@dataclass(frozen=True, slots=True)
class Grouped:
    """Rows in the order of their partitions: partitions[i] has the rows [starts[i], starts[i + 1])."""

    columns: RecordColumns
    sizes: NDArray[np.int64]
    partitions: list[int]
    starts: list[int]
    owners: RowOwners


def compatible(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Runs that can become one grouping, in order: their headers must be of one type, the rest is made alike."""
    together: list[Run] = []
    kind: Any = None
    for run in runs:
        own = None if run.columns.headers is None else run.columns.headers.type
        if together and own is not None and kind is not None and own != kind:
            yield together
            together, kind = [], None
        kind = kind if own is None else own
        together.append(run)
    if together:
        yield together


def group(runs: Sequence[Run]) -> Grouped:
    """Order the rows of all runs by partition; rows of one partition keep their order."""
    columns = RecordColumns.concat([run.columns for run in runs])
    for run in runs:
        # The copy that was just made, and the ordered one of it, take the place that is paid for in buffer.memory.
        del run.columns
    sizes, partitions, rows = (
        _joined([getattr(run, name) for run in runs]) for name in ("sizes", "partitions", "rows")
    )
    counts = runs[0].counts if len(runs) == 1 else np.bincount(partitions)
    hit = counts.nonzero()[0]
    starts = [0, *counts[hit].cumsum().tolist()]
    lengths = [len(run.rows) for run in runs]
    run_of = np.repeat(np.arange(len(runs)), lengths) if len(runs) > 1 else None
    if len(hit) > 1 and not _in_order(partitions):
        order = _narrow(partitions, len(counts)).argsort(kind="stable")
        columns, sizes, rows = columns.take(order), sizes[order], rows[order]
        run_of = run_of[order] if run_of is not None else None
    return Grouped(columns, sizes, hit.tolist(), starts, _owners(runs, rows, run_of))


def _owners(runs: Sequence[Run], rows: NDArray[np.int64], run_of: NDArray[np.int64] | None) -> RowOwners:
    """`run_of` is the run of each row; None if there is only one."""
    if run_of is None:
        return RowOwners(rows, [runs[0].call])
    changes = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(run_of[1:] != run_of[:-1]) + 1])
    return RowOwners(rows, [runs[run].call for run in run_of[changes].tolist()], changes.tolist())


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _in_order(partitions: NDArray[np.int32]) -> bool:
    """A few rows mostly show that they are not."""
    return not any((rows[1:] < rows[:-1]).any() for rows in (partitions[:_FEW_ROWS], partitions))


def _narrow(partitions: NDArray[np.int32], stop: int) -> NDArray[Any]:
    """Few bytes per number make the stable sort a radix sort. All are below `stop`."""
    return partitions.astype(np.uint8 if stop <= 1 << 8 else np.uint16 if stop <= 1 << 16 else np.int32)
