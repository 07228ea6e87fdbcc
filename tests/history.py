"""Histories of transactional writes, and a checker for anomalies in what a consumer reads, named as in Jepsen.

    lost                   a committed value is not read
    duplicate              a value is read more than once
    aborted read           a value is read that was aborted, or whose commit was never requested
    torn batch             only a part of the values that are committed together is read
    inconsistent offsets   the offsets of a consumer group do not match the values that are read
    out of order           values of one writer are read in a different order than they were written

A `Write` is the content and the outcome of one transaction. Writes with the same `unit` are attempts of the same work:
at most one of them may be read. Writes with the same `batch` are committed together: either all units of the batch are
read or none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[int, bytes]
"""(partition, value)"""


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "its commit was never requested"
    UNKNOWN = "its commit was requested, and its outcome is unknown"


class Kind(Enum):
    LOST = "lost"
    DUPLICATE = "duplicate"
    ABORTED_READ = "aborted read"
    TORN_BATCH = "torn batch"
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    OUT_OF_ORDER = "out of order"


@dataclass
class Write:
    """A transaction with its values and its outcome."""

    name: str
    places: Sequence[Place]
    outcome: Outcome
    unit: object = None
    """Identifies attempts of the same work. None: there are no other attempts."""
    batch: object = None
    """Identifies writes that are committed together. None: the write is committed by itself."""
    writer: object = None
    """Values of one writer in one partition are read in the order in which they were written. None: in any order."""
    offset: int | None = None
    """Offset of a consumer group that is committed with the transaction."""


@dataclass(frozen=True)
class Anomaly:
    """A violation of exactly-once delivery."""

    kind: Kind
    message: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"


@dataclass
class History:
    """All writes of a test, and the batches that are known to be committed."""

    writes: list[Write] = field(default_factory=list)
    units: dict[object, frozenset[object]] = field(default_factory=dict)
    """The units of each batch; by default those of its writes."""
    committed: frozenset[object] = frozenset()
    """Batches that are known to be committed, even if the committed attempts are unknown."""

    def anomalies(self, visible_values: Mapping[int, Sequence[bytes]]) -> list[Anomaly]:
        """Find the anomalies in the values that a read_committed consumer reads, by partition and in offset order."""
        return list(self._anomalies(visible_values))

    def check(self, visible_values: Mapping[int, Sequence[bytes]]) -> None:
        anomalies = self.anomalies(visible_values)
        assert not anomalies, "; ".join(map(str, anomalies))

    def _anomalies(self, visible_values: Mapping[int, Sequence[bytes]]) -> Iterator[Anomaly]:
        counts = Counter((partition, value) for partition, values in visible_values.items() for value in values)
        for place, count in counts.items():
            if count > 1:
                yield Anomaly(Kind.DUPLICATE, f"{place[1]!r} is read {count} times in partition {place[0]}")
        known = {place for write in self.writes for place in write.places}
        for place in counts:
            if place not in known:
                yield Anomaly(Kind.ABORTED_READ, f"{place[1]!r} in partition {place[0]} was never written")
        for write in self.writes:
            yield from _check_write(write, counts)
        yield from self._check_units(counts)
        yield from self._check_batches(counts)
        yield from self._check_order(visible_values)

    def _check_units(self, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
        attempts: dict[object, list[Write]] = {}
        for write in self.writes:
            if write.unit is not None and _is_read(write, counts):
                attempts.setdefault(write.unit, []).append(write)
        for unit, writes in attempts.items():
            if len(writes) > 1:
                names = " and ".join(write.name for write in writes)
                yield Anomaly(Kind.DUPLICATE, f"{unit} is read {len(writes)} times: from {names}")

    def _check_batches(self, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
        batches: dict[object, list[Write]] = {}
        for write in self.writes:
            if write.batch is not None:
                batches.setdefault(write.batch, []).append(write)
        for batch, writes in batches.items():
            read_units = {write.unit for write in writes if _is_read(write, counts)}
            missing = self.units.get(batch, frozenset(write.unit for write in writes)) - read_units
            if read_units and missing:
                message = f"{batch}: {sorted(map(str, read_units))} is read without {sorted(map(str, missing))}"
                yield Anomaly(Kind.TORN_BATCH, message)
            if batch in self.committed and not read_units:
                yield Anomaly(Kind.LOST, f"{batch} was committed, and nothing of it is read")
        for batch in self.committed - batches.keys():
            yield Anomaly(Kind.LOST, f"{batch} was committed, and its attempts are unknown")

    def _check_order(self, visible_values: Mapping[int, Sequence[bytes]]) -> Iterator[Anomaly]:
        for partition, values in visible_values.items():
            position = {value: index for index, value in enumerate(values)}
            latest: dict[object, tuple[int, bytes]] = {}
            for write in self.writes:
                for write_partition, value in write.places if write.writer is not None else ():
                    if write_partition != partition or value not in position:
                        continue
                    previous = latest.get(write.writer)
                    if previous is not None and position[value] < previous[0]:
                        yield Anomaly(
                            Kind.OUT_OF_ORDER, f"partition {partition}: {value!r} is read before {previous[1]!r}"
                        )
                    latest[write.writer] = position[value], value


def check_batches(batches: Mapping[str, Sequence[bytes]], visible_values: Iterable[bytes]) -> None:
    """Check that exactly these batches are read, each one completely and once, in any order and partition."""
    writes = [Write(name, [(0, value) for value in values], Outcome.COMMITTED) for name, values in batches.items()]
    History(writes).check({0: list(visible_values)})


def offsets_anomalies(writes: Sequence[Write], places: set[Place], group_offset: int | None) -> list[Anomaly]:
    """Check the offset of a consumer group against the writes that contain its offsets, in order.

    The offset must be that of the last write that is read. A write without records and with an unknown outcome may have
    been committed or not.
    """
    allowed: set[int | None] = {None}
    for write in writes:
        if write.offset is None or write.outcome in (Outcome.ABORTED, Outcome.OPEN):
            continue
        if write.outcome is Outcome.COMMITTED or any(place in places for place in write.places):
            allowed = {write.offset}
        elif not write.places:
            allowed.add(write.offset)
    if group_offset in allowed:
        return []
    return [Anomaly(Kind.INCONSISTENT_OFFSETS, f"the group's offset is {group_offset}, expected one of {allowed}")]


def _is_read(write: Write, counts: Mapping[Place, int]) -> bool:
    return any(place in counts for place in write.places)


def _check_write(write: Write, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
    read = [value for partition, value in write.places if (partition, value) in counts]
    missing = [value for partition, value in write.places if (partition, value) not in counts]
    if read and write.outcome in (Outcome.ABORTED, Outcome.OPEN):
        yield Anomaly(Kind.ABORTED_READ, f"{read} of {write.name} is read, and {_describe_outcome(write)}")
    if read and missing:
        yield Anomaly(Kind.TORN_BATCH, f"{read} of {write.name} is read without {missing}")
    elif missing and write.outcome is Outcome.COMMITTED:
        yield Anomaly(Kind.LOST, f"{missing} of {write.name} is not read, and {_describe_outcome(write)}")


def _describe_outcome(write: Write) -> str:
    outcome = str(write.outcome.value)
    return f"it was {outcome}" if write.outcome in (Outcome.COMMITTED, Outcome.ABORTED) else outcome
