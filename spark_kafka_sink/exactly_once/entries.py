"""What is decided under a prefix: an entry of the decision log (entry_json.py says how it is written).

    OPEN       a driver has begun; nothing is decided yet
    DECIDED    the transactions of a batch are to be committed, and may be so already
    DONE       they are

The newest record of a prefix says everything, so that a compacted topic keeps what is needed. The keys of jobs and the
drivers are the last few of them; everything else is about the last batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

KEYS_MAX = 100
DRIVERS_MAX = 100
"""An older driver that stood still is known as one until it has had this number of successors."""
_DIGEST_MARK, _DIGEST_CHARACTERS = "#", 8
_BEGINNING_MARK = "+"
GENERATION_MAX = 2**31 - 1


class EntryState(Enum):
    OPEN = "open"
    DECIDED = "decided"
    DONE = "done"


class WriterKind(Enum):
    """The kind of writer that owns a prefix: the micro-batches of one stream, or batch jobs."""

    STREAM = "stream"
    JOB = "job"


@dataclass(frozen=True)
class Batch:
    """What is committed together: a micro-batch of a query, or a whole job, perhaps with a key for its reruns."""

    query: str | None = None
    number: int | None = None
    key: str | None = None
    scope: str = ""
    """The topic that the job names for all rows: a key identifies a job within it. Empty where rows name their
    topics."""

    @property
    def is_known_to_reruns(self) -> bool:
        """Return whether another run of the batch finds its decision, and writes nothing. A job without a key does
        not."""
        return self.query is not None or self.key is not None

    def __str__(self) -> str:
        if self.query is not None:
            return f"batch {self.number} of query {self.query}"
        return "the job" if self.key is None else f"the job with the idempotencyKey {self.key!r}"


@dataclass(frozen=True)
class KeyedJob:
    """A job that is committed. `scope` and `content` are None if an earlier version has noted it."""

    key: str
    scope: str | None = None
    content: Content | None = None
    unproven: bool = False

    def is_of(self, batch: Batch) -> bool:
        return self.key == batch.key and self.scope in (None, batch.scope)


@dataclass(frozen=True)
class Entry:
    prefix: str
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    content: Content | None = None
    """Of the batch; None if an earlier version has decided it."""
    unproven: bool = False
    """It is not known whether a driver of the prefix has decided the batch: see `as_unproven`."""
    transactions: tuple[TransactionIdentity, ...] = ()
    """Of tasks, which have filled them and left them open for the driver to end."""
    generation: int = 0
    """How many claims there were: of drivers, of aborts, and of people."""
    drivers: tuple[str, ...] = ()
    """The last ones, the newest at the end; digests of the names of the others."""
    checkpoint: str = ""
    timeout_ms: int = 0
    """The timeout of the tasks' transactions; 0 if it is unknown."""
    keys: tuple[KeyedJob, ...] = ()
    """Jobs that are committed, the newest at the end."""
    claimed: ProducerIdAndEpoch = NO_PRODUCER_ID
    """Producer id and epoch under which the newest driver took over."""
    writer: WriterKind | None = None
    """None if the last claim is an earlier version's, or if its driver did not say it: see `owner_kind`."""
    driver_number: int = FIRST_DRIVER
    """Number of the driver's transactional id under which the next record is written."""
    written_by: ProducerIdAndEpoch = field(default=NO_PRODUCER_ID, compare=False)
    """Producer id and epoch in the header of the batch that the entry was read from."""
    offset: int = field(default=-1, compare=False)
    """Offset of the newest record that was read of the prefix, also if that one does not count; -1 if there is none."""

    @property
    def driver(self) -> str:
        """The newest driver's name; empty if there was none."""
        return self.drivers[-1] if self.drivers else ""

    @property
    def last_decided(self) -> Batch | None:
        return None if self.state is EntryState.OPEN else self.batch

    @property
    def owner_kind(self) -> WriterKind | None:
        """Whether the prefix belongs to a stream or to batch jobs; None if that cannot be seen from the entry."""
        if self.writer is not None:
            return self.writer
        if self.checkpoint or self.batch.query is not None:
            return WriterKind.STREAM
        return WriterKind.JOB if self.keys or self.last_decided is not None else None

    def begun(
        self,
        driver: str,
        checkpoint: str,
        timeout_ms: int,
        claimed: ProducerIdAndEpoch = NO_PRODUCER_ID,
        writer: WriterKind | None = None,
    ) -> Entry:
        """A new driver has the prefix. `writer`: None leaves it as it is."""
        others = [each for each in map(_digest, self.drivers) if each != _digest(driver)]
        return dataclasses.replace(
            self,
            generation=self.generation % GENERATION_MAX + 1,  # a stranger may have written the greatest number
            drivers=(*others, driver)[-DRIVERS_MAX:],
            checkpoint=checkpoint or self.checkpoint,
            timeout_ms=timeout_ms,
            claimed=claimed,
            writer=writer or self.writer,
        )

    def claimed_again(self, claimed: ProducerIdAndEpoch) -> Entry:
        """Its driver has the prefix still, under another epoch."""
        return dataclasses.replace(self, claimed=claimed)

    def under_driver_id(self, number: int) -> Entry:
        """Return the entry with another number of the driver's transactional id."""
        return self if number == self.driver_number else dataclasses.replace(self, driver_number=number)

    def is_of_one_driver_with(self, other: Entry) -> bool:
        """Do both say the same, but for the identity under which their driver has claimed the prefix?"""
        return self == other.claimed_again(self.claimed).under_driver_id(self.driver_number)

    def decided(self, batch: Batch, content: Content, transactions: tuple[TransactionIdentity, ...]) -> Entry:
        return dataclasses.replace(
            self,
            state=EntryState.DECIDED,
            batch=batch,
            content=content,
            unproven=False,
            transactions=transactions,
        )

    def done(self) -> Entry:
        keys = self.keys
        if self.batch.key is not None and self._keyed(self.batch) is None:
            keys = (*keys, KeyedJob(self.batch.key, self.batch.scope, self.content, self.unproven))[-KEYS_MAX:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keys=keys)

    def as_unproven(self) -> Entry:
        """As it was read from a record of a producer id that no transactional id has which this user may see. What it
        says may stop a batch, but no batch is passed over because of it, also when a driver has written it again in its
        own name. Brokers know none of the driver's transactional ids that followed the first one."""
        keys = tuple(dataclasses.replace(job, unproven=True) for job in self.keys)
        return dataclasses.replace(self, unproven=True, keys=keys, driver_number=FIRST_DRIVER)

    def given_up(self) -> Entry:
        """Done, as a person says who has looked at the batch."""
        return dataclasses.replace(self, unproven=False).done()

    def has_committed(self, batch: Batch) -> bool:
        """Is a batch of this name decided? Then its rows must not be written again."""
        if batch.query is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (self._keyed(batch) is not None or self._is_decided_key(batch))

    def content_of(self, batch: Batch) -> Content | None:
        """What was committed as this batch. None if that was not noted."""
        decision = self._decision_of(batch)
        return None if decision is None else decision.content

    def is_proven(self, batch: Batch) -> bool:
        """Is it known that a driver of the prefix has decided this batch?"""
        decision = self._decision_of(batch)
        return decision is not None and not decision.unproven

    def has_superseded(self, driver: str) -> bool:
        """A newer driver has the prefix, of another start."""
        return _digest(driver) in map(_digest, self.drivers) and not self.is_of_start(driver)

    def is_of_start(self, driver: str) -> bool:
        """Is the newest driver of the same start of the query as this one?"""
        return bool(self.driver) and _start(self.driver) == _start(driver)

    def _decision_of(self, batch: Batch) -> Entry | KeyedJob | None:
        """What says how this batch was decided."""
        return self if batch.query is not None or self._is_decided_key(batch) else self._keyed(batch)

    def _keyed(self, batch: Batch) -> KeyedJob | None:
        return next((job for job in self.keys if job.is_of(batch)), None)

    def _is_decided_key(self, batch: Batch) -> bool:
        return self.state is not EntryState.OPEN and (batch.key, batch.scope) == (self.batch.key, self.batch.scope)


def beginning_of(start: str, number: str) -> str:
    """The name of a driver that is of one batch alone. Those of the same start succeed each other."""
    return f"{start}{_BEGINNING_MARK}{number}"


def _start(driver: str) -> str:
    return driver.partition(_BEGINNING_MARK)[0]


def _digest(driver: str) -> str:
    """What is kept of the name of a driver that has a successor: a digest of its start's name. A digest stays as it
    is."""
    if driver.startswith(_DIGEST_MARK):
        return driver
    return _DIGEST_MARK + hashlib.sha256(_start(driver).encode()).hexdigest()[:_DIGEST_CHARACTERS]
