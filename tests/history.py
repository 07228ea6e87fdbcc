"""One history of what was written, and one checker of what readers see of it, with the names that Jepsen gave them.

    lost                   what was committed is not seen
    duplicate              something is seen more than once
    aborted read           something is seen that was aborted, or whose commit was never asked for
    torn batch             a part is seen of what is committed together
    inconsistent offsets   the offsets of a consumer group are not those of what is seen
    out of order           what one writer wrote first is seen last

A `Write` is what one transaction holds, with what became of it. Writes of one `unit` are attempts of the same work: one
of them at most may be seen. Writes of one `batch` are committed together: all units of it are seen, or none.
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
    OPEN = "its commit was never asked for"
    UNKNOWN = "its commit was asked for, and has no outcome"


class Kind(Enum):
    LOST = "lost"
    DUPLICATE = "duplicate"
    ABORTED_READ = "aborted read"
    TORN_BATCH = "torn batch"
    INCONSISTENT_OFFSETS = "inconsistent offsets"
    OUT_OF_ORDER = "out of order"


@dataclass
class Write:
    name: str
    places: Sequence[Place]
    outcome: Outcome
    unit: object = None
    """None: there are no other attempts."""
    batch: object = None
    """None: it is committed by itself."""
    writer: object = None
    """Values of one writer in one partition are seen in the order in which it wrote them. None: in any order."""
    offset: int | None = None
    """Of the consumer group, which is part of the transaction."""


@dataclass(frozen=True)
class Anomaly:
    kind: Kind
    words: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.words}"


@dataclass
class History:
    writes: list[Write] = field(default_factory=list)
    units: dict[object, frozenset[object]] = field(default_factory=dict)
    """The units of each batch; those of its writes, where it is not said."""
    committed: frozenset[object] = frozenset()
    """Batches of which it is known that they are committed, and not always from which attempts."""

    def anomalies(self, seen: Mapping[int, Sequence[bytes]]) -> list[Anomaly]:
        """`seen`: by partition, in the order of their offsets, what a read_committed reader gets."""
        return list(self._anomalies(seen))

    def check(self, seen: Mapping[int, Sequence[bytes]]) -> None:
        found = self.anomalies(seen)
        assert not found, "; ".join(map(str, found))

    def _anomalies(self, seen: Mapping[int, Sequence[bytes]]) -> Iterator[Anomaly]:
        counts = Counter((partition, value) for partition, values in seen.items() for value in values)
        for place, count in counts.items():
            if count > 1:
                yield Anomaly(Kind.DUPLICATE, f"{place[1]!r} is seen {count} times in partition {place[0]}")
        known = {place for write in self.writes for place in write.places}
        for place in counts:
            if place not in known:
                yield Anomaly(Kind.ABORTED_READ, f"{place[1]!r} in partition {place[0]} was never written")
        for write in self.writes:
            yield from _of_write(write, counts)
        yield from self._of_units(counts)
        yield from self._of_batches(counts)
        yield from self._of_order(seen)

    def _of_units(self, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
        attempts: dict[object, list[Write]] = {}
        for write in self.writes:
            if write.unit is not None and _is_seen(write, counts):
                attempts.setdefault(write.unit, []).append(write)
        for unit, writes in attempts.items():
            if len(writes) > 1:
                names = " and ".join(write.name for write in writes)
                yield Anomaly(Kind.DUPLICATE, f"{unit} is seen {len(writes)} times: from {names}")

    def _of_batches(self, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
        batches: dict[object, list[Write]] = {}
        for write in self.writes:
            if write.batch is not None:
                batches.setdefault(write.batch, []).append(write)
        for batch, writes in batches.items():
            there = {write.unit for write in writes if _is_seen(write, counts)}
            missing = self.units.get(batch, frozenset(write.unit for write in writes)) - there
            if there and missing:
                words = f"{batch}: {sorted(map(str, there))} is seen without {sorted(map(str, missing))}"
                yield Anomaly(Kind.TORN_BATCH, words)
            if batch in self.committed and not there:
                yield Anomaly(Kind.LOST, f"nothing of {batch} is seen, and it was committed")
        for batch in self.committed - batches.keys():
            yield Anomaly(Kind.LOST, f"{batch} was committed, and no attempt to write it is known")

    def _of_order(self, seen: Mapping[int, Sequence[bytes]]) -> Iterator[Anomaly]:
        for partition, values in seen.items():
            position = {value: index for index, value in enumerate(values)}
            newest: dict[object, tuple[int, bytes]] = {}
            for write in self.writes:
                for at, value in write.places if write.writer is not None else ():
                    if at != partition or value not in position:
                        continue
                    before = newest.get(write.writer)
                    if before is not None and position[value] < before[0]:
                        yield Anomaly(
                            Kind.OUT_OF_ORDER, f"partition {partition}: {value!r} stands before {before[1]!r}"
                        )
                    newest[write.writer] = position[value], value


def check_batches(batches: Mapping[str, Sequence[bytes]], seen: Iterable[bytes]) -> None:
    """These batches were committed, and nothing else: each is seen once and whole, wherever its rows are."""
    writes = [Write(name, [(0, value) for value in values], Outcome.COMMITTED) for name, values in batches.items()]
    History(writes).check({0: list(seen)})


def offsets_anomalies(writes: Sequence[Write], places: set[Place], group_offset: int | None) -> list[Anomaly]:
    """`writes` of one group, in their order. The group's offset is that of the last of them that is seen; one without
    any record, whose commit has no outcome, may be seen or not."""
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
    return [Anomaly(Kind.INCONSISTENT_OFFSETS, f"the group is at {group_offset}, and should be at {allowed}")]


def _is_seen(write: Write, counts: Mapping[Place, int]) -> bool:
    return any(place in counts for place in write.places)


def _of_write(write: Write, counts: Mapping[Place, int]) -> Iterator[Anomaly]:
    there = [value for partition, value in write.places if (partition, value) in counts]
    missing = [value for partition, value in write.places if (partition, value) not in counts]
    if there and write.outcome in (Outcome.ABORTED, Outcome.OPEN):
        yield Anomaly(Kind.ABORTED_READ, f"{there} of {write.name} is seen, and {_words(write)}")
    if there and missing:
        yield Anomaly(Kind.TORN_BATCH, f"{there} of {write.name} is seen without {missing}")
    elif missing and write.outcome is Outcome.COMMITTED:
        yield Anomaly(Kind.LOST, f"{missing} of {write.name} is not seen, and {_words(write)}")


def _words(write: Write) -> str:
    said = str(write.outcome.value)
    return f"it was {said}" if write.outcome in (Outcome.COMMITTED, Outcome.ABORTED) else said
