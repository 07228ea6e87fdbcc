"""Entry: the state of a prefix in the decision log (entry_json.py converts it to and from JSON).

    OPEN       a driver has claimed the prefix, and its first batch is not decided yet
    DECIDED    the transactions of a batch must be committed; some or all of them may be committed already
    DONE       all transactions of the batch are committed

The newest record of a prefix contains its whole state, so compaction of the topic loses nothing. An entry lists the
last few keyed jobs and drivers; all other fields describe the last batch.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

MAX_KEYED_JOBS = 100
MAX_DRIVER_NAMES = 100
"""A driver that was suspended is recognized as superseded until it has had this number of successors."""
_DIGEST_MARK, _DIGEST_CHARACTERS = "#", 8
_BATCH_SUFFIX_SEPARATOR = "+"
MAX_GENERATION = 2**31 - 1


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
    """The unit that is committed: a micro-batch of a query, or a whole job, which may have an idempotency key."""

    query_id: str | None = None
    batch_id: int | None = None
    key: str | None = None
    scope: str = ""
    """The topic that the job sets for all rows, within which a key identifies a job. Empty if the rows name their
    topics."""

    @property
    def is_idempotent(self) -> bool:
        """Return whether a rerun finds the decision of this batch and writes nothing.

        This is true for micro-batches and for jobs with a key.
        """
        return self.query_id is not None or self.key is not None

    def __str__(self) -> str:
        if self.query_id is not None:
            return f"batch {self.batch_id} of query {self.query_id}"
        return "the job" if self.key is None else f"the job with the idempotencyKey {self.key!r}"


@dataclass(frozen=True)
class KeyedJob:
    """A committed job with an idempotency key. `scope` and `content` are None if an earlier version recorded it."""

    key: str
    scope: str | None = None
    content: BatchContent | None = None
    is_unproven: bool = False

    def matches(self, batch: Batch) -> bool:
        return self.key == batch.key and self.scope in (None, batch.scope)


@dataclass(frozen=True)
class Entry:
    """The state of a prefix. Immutable; the `with_` and `as_` methods return changed copies."""

    prefix: str
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    content: BatchContent | None = None
    """The content of the batch; None if an earlier version decided it."""
    is_unproven: bool = False
    """Whether it is unknown if a driver of the prefix decided the batch: see `as_unproven`."""
    transactions: tuple[TransactionIdentity, ...] = ()
    """The transactions that tasks have filled and left open for the driver to end."""
    generation: int = 0
    """Number of claims so far: by drivers, by aborts and by `pykafka transactions`."""
    driver_names: tuple[str, ...] = ()
    """The last drivers, newest last: the name of the newest one, and digests of the names of its predecessors."""
    checkpoint: str = ""
    timeout_ms: int = 0
    """The transaction timeout of the tasks; 0 if it is unknown."""
    keyed_jobs: tuple[KeyedJob, ...] = ()
    """The last committed jobs with a key, newest last."""
    claim_identity: ProducerIdAndEpoch = NO_PRODUCER_ID
    """Producer id and epoch under which the newest driver claimed the prefix."""
    writer_kind: WriterKind | None = None
    """The kind of writer that owns the prefix; None if the last claim does not contain the kind (see `owner_kind`).

    A claim by an earlier version contains no kind.
    """
    driver_number: int = FIRST_DRIVER_NUMBER
    """Number of the driver id under which the next record is written."""
    written_by: ProducerIdAndEpoch = field(default=NO_PRODUCER_ID, compare=False)
    """Producer id and epoch in the header of the record batch that the entry was read from."""
    offset: int = field(default=-1, compare=False)
    """Offset of the newest record read of the prefix, even if that record is invalid; -1 if there is none."""

    @property
    def driver_name(self) -> str:
        """The name of the newest driver; empty if the prefix had none."""
        return self.driver_names[-1] if self.driver_names else ""

    @property
    def last_decided_batch(self) -> Batch | None:
        return None if self.state is EntryState.OPEN else self.batch

    @property
    def owner_kind(self) -> WriterKind | None:
        """Whether the prefix belongs to a stream or to batch jobs; None if the entry does not show it."""
        if self.writer_kind is not None:
            return self.writer_kind
        if self.checkpoint or self.batch.query_id is not None:
            return WriterKind.STREAM
        return WriterKind.JOB if self.keyed_jobs or self.last_decided_batch is not None else None

    def with_claim(
        self,
        driver_name: str,
        checkpoint: str,
        timeout_ms: int,
        claim_identity: ProducerIdAndEpoch = NO_PRODUCER_ID,
        writer_kind: WriterKind | None = None,
    ) -> Entry:
        """Return the entry with a new driver that claims the prefix. A `writer_kind` of None keeps the current one."""
        name_digest = _digest_driver_name(driver_name)
        predecessors = [digest for digest in map(_digest_driver_name, self.driver_names) if digest != name_digest]
        return dataclasses.replace(
            self,
            generation=self.generation % MAX_GENERATION + 1,  # another program may have written the greatest number
            driver_names=(*predecessors, driver_name)[-MAX_DRIVER_NAMES:],
            checkpoint=checkpoint or self.checkpoint,
            timeout_ms=timeout_ms,
            claim_identity=claim_identity,
            writer_kind=writer_kind or self.writer_kind,
        )

    def with_claim_identity(self, claim_identity: ProducerIdAndEpoch) -> Entry:
        """Return the entry with the claim of the same driver renewed under another producer id or epoch."""
        return dataclasses.replace(self, claim_identity=claim_identity)

    def with_driver_number(self, number: int) -> Entry:
        """Return the entry with another number of the driver id."""
        return self if number == self.driver_number else dataclasses.replace(self, driver_number=number)

    def is_same_except_identity(self, other: Entry) -> bool:
        """Return whether the entries are equal except for the claim identity and the driver number."""
        return self == other.with_claim_identity(self.claim_identity).with_driver_number(self.driver_number)

    def with_decision(
        self, batch: Batch, content: BatchContent, transactions: tuple[TransactionIdentity, ...]
    ) -> Entry:
        return dataclasses.replace(
            self,
            state=EntryState.DECIDED,
            batch=batch,
            content=content,
            is_unproven=False,
            transactions=transactions,
        )

    def as_done(self) -> Entry:
        """Return the entry with all transactions of its batch committed. Add a job with a key to `keyed_jobs`."""
        keyed_jobs = self.keyed_jobs
        if self.batch.key is not None and self._find_keyed_job(self.batch) is None:
            job = KeyedJob(self.batch.key, self.batch.scope, self.content, self.is_unproven)
            keyed_jobs = (*keyed_jobs, job)[-MAX_KEYED_JOBS:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keyed_jobs=keyed_jobs)

    def as_unproven(self) -> Entry:
        """Return the entry marked as written by an unknown producer.

        No transactional id that this user may see has the producer id of the entry's record. Its content may stop a
        batch, but never lets a batch be skipped, and this remains so when a driver writes the entry again under its own
        producer id. Brokers know none of the driver ids after the first one.
        """
        keyed_jobs = tuple(dataclasses.replace(job, is_unproven=True) for job in self.keyed_jobs)
        return dataclasses.replace(self, is_unproven=True, keyed_jobs=keyed_jobs, driver_number=FIRST_DRIVER_NUMBER)

    def as_given_up(self) -> Entry:
        """Return the entry as done and proven, because a user has checked the batch and given it up."""
        return dataclasses.replace(self, is_unproven=False).as_done()

    def has_decided(self, batch: Batch) -> bool:
        """Return whether a batch of this name is decided, so that its rows must not be written again."""
        if batch.query_id is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (self._find_keyed_job(batch) is not None or self._is_last_keyed_job(batch))

    def find_content(self, batch: Batch) -> BatchContent | None:
        """Return the content that was decided for this batch; None if the log does not contain it."""
        decision = self._find_decision(batch)
        return None if decision is None else decision.content

    def is_proven(self, batch: Batch) -> bool:
        """Return whether it is certain that a driver of the prefix decided this batch."""
        decision = self._find_decision(batch)
        return decision is not None and not decision.is_unproven

    def has_superseded(self, driver_name: str) -> bool:
        """Return whether a driver of a later start has claimed the prefix since the driver with this name did."""
        is_listed = _digest_driver_name(driver_name) in map(_digest_driver_name, self.driver_names)
        return is_listed and not self.is_same_start(driver_name)

    def is_same_start(self, driver_name: str) -> bool:
        """Return whether the newest driver belongs to the same start of the query as the driver with this name."""
        return bool(self.driver_name) and _start_name(self.driver_name) == _start_name(driver_name)

    def _find_decision(self, batch: Batch) -> Entry | KeyedJob | None:
        is_last = batch.query_id is not None or self._is_last_keyed_job(batch)
        return self if is_last else self._find_keyed_job(batch)

    def _find_keyed_job(self, batch: Batch) -> KeyedJob | None:
        return next((job for job in self.keyed_jobs if job.matches(batch)), None)

    def _is_last_keyed_job(self, batch: Batch) -> bool:
        return self.state is not EntryState.OPEN and (batch.key, batch.scope) == (self.batch.key, self.batch.scope)


def build_batch_driver_name(start_name: str, batch_suffix: str) -> str:
    """Return the name of a driver that serves a single batch. Drivers of the same start may succeed each other."""
    return f"{start_name}{_BATCH_SUFFIX_SEPARATOR}{batch_suffix}"


def _start_name(driver_name: str) -> str:
    return driver_name.partition(_BATCH_SUFFIX_SEPARATOR)[0]


def _digest_driver_name(driver_name: str) -> str:
    """Return a digest of the name of a driver's start, as stored for superseded drivers, or a digest unchanged."""
    if driver_name.startswith(_DIGEST_MARK):
        return driver_name
    return _DIGEST_MARK + hashlib.sha256(_start_name(driver_name).encode()).hexdigest()[:_DIGEST_CHARACTERS]
