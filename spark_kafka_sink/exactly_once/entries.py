"""Entry: the state of a prefix in the decision log. entry_json.py converts it to and from JSON.

    OPEN       a driver has claimed the prefix, but no batch has been decided under it yet
    DECIDED    the batch's transactions must be committed; some or all of them may already be committed
    DONE       all of the batch's transactions are committed

A prefix's newest record contains the prefix's whole state, so compacting the topic loses nothing. An entry lists the
most recent keyed jobs and drivers; all other fields describe the last batch.
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
"""A suspended driver is recognized as superseded as long as it has had fewer successors than this."""
_DIGEST_MARK = "#"
_DIGEST_CHARACTERS = 8
_BATCH_SUFFIX_SEPARATOR = "+"
MAX_GENERATION = 2**31 - 1


class EntryState(Enum):
    OPEN = "open"
    DECIDED = "decided"
    DONE = "done"


class WriterKind(Enum):
    """The kind of writer that owns a prefix: either one stream (its micro-batches) or batch jobs."""

    STREAM = "stream"
    JOB = "job"


@dataclass(frozen=True)
class Batch:
    """The unit of commit: a query's micro-batch, or a whole job, which may have an idempotency key."""

    query_id: str | None = None
    batch_id: int | None = None
    key: str | None = None
    scope: str = ""
    """The topic that the job sets for all rows; empty if the rows name their topics. Keys are unique within a scope."""

    @property
    def is_idempotent(self) -> bool:
        """Return whether a rerun finds this batch's decision and therefore writes nothing.

        This is the case for micro-batches and for jobs with a key.
        """
        return self.query_id is not None or self.key is not None

    def __str__(self) -> str:
        if self.query_id is not None:
            return f"batch {self.batch_id} of query {self.query_id}"
        return "the job" if self.key is None else f"the job with idempotencyKey {self.key!r}"


@dataclass(frozen=True)
class KeyedJob:
    """A committed job that has an idempotency key."""

    key: str
    scope: str
    content: BatchContent
    is_unproven: bool = False

    def matches(self, batch: Batch) -> bool:
        """Return whether this job has written the batch, according to its key and scope."""
        return (self.key, self.scope) == (batch.key, batch.scope)


@dataclass(frozen=True)
class Entry:
    """The state of a prefix. Immutable; the `with_` and `as_` methods return modified copies."""

    prefix: str
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    content: BatchContent | None = None
    """The content of the batch; None if the state is OPEN."""
    is_unproven: bool = False
    """Whether the batch may have been decided by someone other than a driver of the prefix. See `as_unproven`."""
    transactions: tuple[TransactionIdentity, ...] = ()
    """The transactions that tasks have written and left open for the driver to end."""
    generation: int = 0
    """The number of claims so far, whether by drivers, by aborts or by `pykafka transactions`."""
    driver_names: tuple[str, ...] = ()
    """The most recent drivers, newest last: digests of the earlier drivers' names, then the newest driver's name."""
    checkpoint: str = ""
    timeout_ms: int = 0
    """The tasks' transaction timeout; 0 if it is unknown."""
    keyed_jobs: tuple[KeyedJob, ...] = ()
    """The most recently committed jobs that have a key, newest last."""
    claim_identity: ProducerIdAndEpoch = NO_PRODUCER_ID
    """The producer id and epoch under which the newest driver claimed the prefix."""
    writer_kind: WriterKind | None = None
    """The kind of writer that owns the prefix; None until a driver has claimed it."""
    driver_number: int = FIRST_DRIVER_NUMBER
    """The number of the driver id under which the next record is written."""
    writer_identity: ProducerIdAndEpoch = field(default=NO_PRODUCER_ID, compare=False)
    """The producer id and epoch in the header of the record batch from which the entry was read."""
    offset: int = field(default=-1, compare=False)
    """The offset of the prefix's newest record, even if that record is invalid; -1 if there is none."""

    @property
    def driver_name(self) -> str:
        """The name of the newest driver; empty if the prefix has had none."""
        return self.driver_names[-1] if self.driver_names else ""

    @property
    def last_decided_batch(self) -> Batch | None:
        """The batch that was decided last under the prefix; None if none has been decided."""
        return None if self.state is EntryState.OPEN else self.batch

    def with_claim(
        self,
        driver_name: str,
        checkpoint: str,
        timeout_ms: int,
        claim_identity: ProducerIdAndEpoch = NO_PRODUCER_ID,
        writer_kind: WriterKind | None = None,
    ) -> Entry:
        """Return the entry with a claim by this driver.

        If `checkpoint` is empty or `writer_kind` is None, the entry's own value is kept.
        """
        name_digest = _digest_driver_name(driver_name)
        predecessors = [digest for digest in map(_digest_driver_name, self.driver_names) if digest != name_digest]
        return dataclasses.replace(
            self,
            # The generation wraps around, because a program other than the sink may have written the maximum.
            generation=self.generation % MAX_GENERATION + 1,
            driver_names=(*predecessors, driver_name)[-MAX_DRIVER_NAMES:],
            checkpoint=checkpoint or self.checkpoint,
            timeout_ms=timeout_ms,
            claim_identity=claim_identity,
            writer_kind=writer_kind or self.writer_kind,
        )

    def with_claim_identity(self, claim_identity: ProducerIdAndEpoch) -> Entry:
        """Return the entry with the same driver's claim renewed under this producer id and epoch."""
        return dataclasses.replace(self, claim_identity=claim_identity)

    def with_driver_number(self, number: int) -> Entry:
        """Return the entry with this driver number."""
        return self if number == self.driver_number else dataclasses.replace(self, driver_number=number)

    def is_same_except_identity(self, other: Entry) -> bool:
        """Return whether the entries are equal except for the claim identity and the driver number."""
        return self == other.with_claim_identity(self.claim_identity).with_driver_number(self.driver_number)

    def with_decision(
        self, batch: Batch, content: BatchContent, transactions: tuple[TransactionIdentity, ...]
    ) -> Entry:
        """Return the entry with this batch as decided and proven. `transactions` must then be committed."""
        return dataclasses.replace(
            self,
            state=EntryState.DECIDED,
            batch=batch,
            content=content,
            is_unproven=False,
            transactions=transactions,
        )

    def as_done(self) -> Entry:
        """Return the entry with its batch recorded as done. A job with a key is added to `keyed_jobs`."""
        keyed_jobs = self.keyed_jobs
        if self.batch.key is not None and self._find_keyed_job(self.batch) is None:
            assert self.content is not None, "only a decided batch can be done"
            job = KeyedJob(self.batch.key, self.batch.scope, self.content, self.is_unproven)
            keyed_jobs = (*keyed_jobs, job)[-MAX_KEYED_JOBS:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keyed_jobs=keyed_jobs)

    def as_unproven(self) -> Entry:
        """Return the entry marked as written by an unknown producer.

        This is for an entry whose producer id belongs to no transactional id that this user may see. Such an entry may
        stop a batch, but never causes a batch to be skipped (test_record_of_forgotten_id_skips_no_batch). The mark is
        kept when a driver writes the entry again under its own producer id. The driver number is reset, because brokers
        know no driver id after the first one.
        """
        keyed_jobs = tuple(dataclasses.replace(job, is_unproven=True) for job in self.keyed_jobs)
        return dataclasses.replace(self, is_unproven=True, keyed_jobs=keyed_jobs, driver_number=FIRST_DRIVER_NUMBER)

    def as_given_up(self) -> Entry:
        """Return the entry as done and proven, because the user checks a batch before giving it up."""
        return dataclasses.replace(self, is_unproven=False).as_done()

    def has_decided(self, batch: Batch) -> bool:
        """Return whether a batch with this name is decided, in which case its rows must not be written again."""
        if batch.query_id is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (self._find_keyed_job(batch) is not None or self._is_last_keyed_job(batch))

    def find_content(self, batch: Batch) -> BatchContent | None:
        """Return the content that was decided for this batch, or None if the log does not contain it."""
        decision = self._find_decision(batch)
        return None if decision is None else decision.content

    def is_proven(self, batch: Batch) -> bool:
        """Return whether it is certain that a driver of the prefix decided this batch."""
        decision = self._find_decision(batch)
        return decision is not None and not decision.is_unproven

    def has_superseded(self, driver_name: str) -> bool:
        """Return whether a driver from a later start has claimed the prefix since the driver with this name did."""
        is_listed = _digest_driver_name(driver_name) in map(_digest_driver_name, self.driver_names)
        return is_listed and not self.is_same_start(driver_name)

    def is_same_start(self, driver_name: str) -> bool:
        """Return whether the newest driver and the driver with this name belong to the same start of the query."""
        return bool(self.driver_name) and _get_start_name(self.driver_name) == _get_start_name(driver_name)

    def _find_decision(self, batch: Batch) -> Entry | KeyedJob | None:
        """Return the record of a batch's decision: this entry, a keyed job, or None if there is none.

        For a micro-batch, return this entry without comparing: the caller has checked that it is the entry's batch.
        """
        is_last = batch.query_id is not None or self._is_last_keyed_job(batch)
        return self if is_last else self._find_keyed_job(batch)

    def _find_keyed_job(self, batch: Batch) -> KeyedJob | None:
        return next((job for job in self.keyed_jobs if job.matches(batch)), None)

    def _is_last_keyed_job(self, batch: Batch) -> bool:
        return self.state is not EntryState.OPEN and (batch.key, batch.scope) == (self.batch.key, self.batch.scope)


def build_batch_driver_name(start_name: str, batch_suffix: str) -> str:
    """Return the name of a driver that serves a single batch.

    Drivers whose names contain the same `start_name` may follow each other.
    """
    return f"{start_name}{_BATCH_SUFFIX_SEPARATOR}{batch_suffix}"


def _get_start_name(driver_name: str) -> str:
    return driver_name.partition(_BATCH_SUFFIX_SEPARATOR)[0]


def _digest_driver_name(driver_name: str) -> str:
    """Return the digest of a driver's start name, as stored for superseded drivers. A digest is returned as is."""
    if driver_name.startswith(_DIGEST_MARK):
        return driver_name
    return _DIGEST_MARK + hashlib.sha256(_get_start_name(driver_name).encode()).hexdigest()[:_DIGEST_CHARACTERS]
