"""Entry: the state of a query or job, as the decision log stores it. entry_json.py converts it to and from JSON.

A starting driver reads the entry to find out which batch was decided last, which transactions must still be committed,
and which driver is the current one. The entry belongs to a prefix: the name of the query or job, with which all of its
transactional ids begin.

Drivers never modify an entry in the log. They write a new one:

    a claim       names the driver that writes it as the current one
    a decision    lists the transactions of a batch. All of them must then be committed, by this driver or a later one
    "done"        records that all of these transactions are committed

Compaction keeps only the newest record of each key. Every record therefore contains a whole entry, including some
history: the most recent drivers, and the most recent jobs that have an idempotency key.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.transaction_names import FIRST_DRIVER_NUMBER
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

MAX_KEYED_JOBS = 100
"""The number of jobs with an idempotency key that an entry remembers. A rerun of an older job writes its rows again."""
MAX_DRIVER_NAMES = 100
"""The number of drivers that an entry remembers. A driver that resumes after more successors is taken for a new one."""
MAX_GENERATION = 2**31 - 1
"""The limit of `Entry.generation`. It is part of the record format: readers reject greater numbers."""

# These three are part of the record format, too: the driver names in stored entries were built with them.
_DIGEST_MARK = "#"
_DIGEST_CHARACTERS = 8
_BATCH_SUFFIX_SEPARATOR = "+"
_OPERATOR_NAME_START = "`pykafka transactions` on "


class EntryState(Enum):
    """The state of an entry's batch. The values are part of the record format."""

    OPEN = "open"
    """No batch has been decided under the prefix yet."""
    DECIDED = "decided"
    """The batch's transactions must be committed. Some or all of them may already be committed."""
    DONE = "done"
    """All of the batch's transactions are committed."""


class WriterKind(Enum):
    """The kind of writer that owns a prefix: a stream or a series of jobs. The values are part of the record format."""

    STREAM = "stream"
    JOB = "job"


@dataclass(frozen=True)
class Batch:
    """The name of what is committed as one unit: a micro-batch of a streaming query, or a whole job."""

    query_id: str | None = None
    """The id of the streaming query; None for a job."""
    batch_id: int | None = None
    """The number of the micro-batch.

    Once decided, a job without an idempotency key also has one: the generation of its driver. Later jobs with the same
    prefix have greater numbers. None for any other job.
    """
    key: str | None = None
    """The idempotency key of the job. A job whose key has already been committed writes nothing."""
    scope: str = ""
    """The topic that the job sets for all rows; empty if each row names its topic. Keys are unique within a scope."""

    @property
    def is_idempotent(self) -> bool:
        """Return whether the batch can be run again without writing duplicates.

        A rerun of a micro-batch, or of a job with an idempotency key, finds out from the entry that it is decided.
        """
        return self.query_id is not None or self.key is not None

    def __str__(self) -> str:
        if self.query_id is not None:
            return f"batch {self.batch_id} of query {self.query_id}"
        if self.key is not None:
            return f"the job with idempotencyKey {self.key!r}"
        return "the job" if self.batch_id is None else f"job number {self.batch_id}"


@dataclass(frozen=True)
class KeyedJob:
    """A committed job that has an idempotency key."""

    key: str
    scope: str
    summary: BatchSummary
    """The number of rows that the job wrote to each topic."""
    is_unproven: bool = False
    """Whether somebody other than a driver of the prefix may have recorded the job. See `Entry.as_unproven`."""

    def matches(self, batch: Batch) -> bool:
        """Return whether the batch is this job: whether it has the same key and scope."""
        return (self.key, self.scope) == (batch.key, batch.scope)


@dataclass(frozen=True)
class Entry:
    """The state of a query or job. Immutable; the `with_` and `as_` methods return modified copies."""

    prefix: str
    """The name of the query or job. All of its transactional ids begin with this name."""
    state: EntryState = EntryState.OPEN
    batch: Batch = Batch()
    """The last batch that was decided."""
    summary: BatchSummary | None = None
    """The number of rows in that batch, by topic; None if no batch has been decided."""
    is_unproven: bool = False
    """Whether the batch may have been decided by someone other than a driver of the prefix. See `as_unproven`."""
    transactions: tuple[TransactionIdentity, ...] = ()
    """The tasks' transactions that must be committed; empty unless the batch is decided and not done."""
    generation: int = 0
    """The number of claims so far; 0 for an empty entry.

    Claims of aborts and of `pykafka transactions` count. A claim by which a driver continues, after it was fenced or to
    hand over to the next driver id, does not.
    """
    driver_names: tuple[str, ...] = ()
    """The most recent drivers, newest last. Only the newest one has its full name; the others are short hashes.

    If `pykafka transactions` has claimed the prefix since, its name follows.
    """
    checkpoint: str = ""
    """The normalized location of the stream's checkpoint; empty if it is unknown or the prefix belongs to jobs."""
    timeout_ms: int = 0
    """The tasks' transaction timeout; 0 if it is unknown, or if the newest driver writes no batch."""
    keyed_jobs: tuple[KeyedJob, ...] = ()
    """The most recently committed jobs that have an idempotency key, newest last."""
    claim_identity: ProducerIdAndEpoch = NO_PRODUCER_ID
    """The producer id and epoch under which the newest driver claimed the prefix."""
    writer_kind: WriterKind | None = None
    """The kind of writer that owns the prefix; None until a driver has claimed it."""
    driver_number: int = FIRST_DRIVER_NUMBER
    """The number of the current driver id, which is the driver's transactional id: 2 for `<prefix>-driver-2`."""
    writer_identity: ProducerIdAndEpoch = field(default=NO_PRODUCER_ID, compare=False)
    """The producer id and epoch in the header of the record batch from which the entry was read."""
    offset: int = field(default=-1, compare=False)
    """The offset of the newest record by the producer that wrote this entry; -1 if there is none.

    It is greater than the entry's own offset if that producer has written an invalid claim since.
    """

    @property
    def claimant_name(self) -> str:
        """The name of the newest driver or, if `pykafka transactions` has claimed the prefix since, its name.

        Empty if nobody has claimed the prefix.
        """
        return self.driver_names[-1] if self.driver_names else ""

    @property
    def driver_name(self) -> str:
        """The name of the newest driver; empty if the prefix has had none."""
        return next(reversed(self._list_driver_names()), "")

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
        """Return a copy with a claim by the driver with this name, which makes it the current driver.

        `driver_name`: each start of a query and each job has its own name.
        `checkpoint`: the location of the stream's checkpoint; empty to keep the location in this entry.
        `timeout_ms`: the tasks' transaction timeout; 0 if the driver writes no batch.
        `claim_identity`: the producer id and epoch under which the driver claims the prefix.
        `writer_kind`: whether the driver belongs to a stream or a job; None to keep the kind in this entry.
        """
        drivers = self._list_driver_names()
        digests = [_digest_driver_name(name) for name in drivers]
        if _is_operator_name(driver_name):
            predecessors = [*digests[:-1], *drivers[-1:]]
        else:
            predecessors = [digest for digest in digests if digest != _digest_driver_name(driver_name)]
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
        """Return a copy in which the current driver has claimed the prefix under this producer id and epoch."""
        return dataclasses.replace(self, claim_identity=claim_identity)

    def with_driver_number(self, number: int) -> Entry:
        """Return a copy with this number of the current driver id: 2 stands for `<prefix>-driver-2`."""
        return self if number == self.driver_number else dataclasses.replace(self, driver_number=number)

    def is_same_apart_from_reclaim(self, other: Entry) -> bool:
        """Return whether the entries are equal except for the driver id and the claim's producer id and epoch.

        These are what a reclaim changes. Such entries come from the same driver, which claims the prefix again if an
        older driver has fenced it.
        """
        return self == other.with_claim_identity(self.claim_identity).with_driver_number(self.driver_number)

    def with_decision(
        self, batch: Batch, summary: BatchSummary, transactions: tuple[TransactionIdentity, ...]
    ) -> Entry:
        """Return a copy that decides this batch. The batch is decided once the prefix's driver has committed the copy.

        `summary`: the number of rows in the batch, by topic.
        `transactions`: the tasks' open transactions, all of which must be committed after the decision.
        """
        if not batch.is_idempotent:
            # Number the job, so that a user can compare the job in an error message with the one in `pykafka
            # transactions`. Its entry would otherwise also be equal to that of an earlier job with the same rows, and
            # the driver could take its own decision for the earlier one (test_abort_of_committed_job_reports_no_abort).
            batch = dataclasses.replace(batch, batch_id=self.generation)
        return dataclasses.replace(
            self,
            state=EntryState.DECIDED,
            batch=batch,
            summary=summary,
            is_unproven=False,
            transactions=transactions,
        )

    def as_done(self) -> Entry:
        """Return a copy that records the batch as done: all of its transactions are committed.

        If the batch is a job with an idempotency key, it is added to `keyed_jobs`.
        """
        keyed_jobs = self.keyed_jobs
        if self.batch.key is not None and self._find_keyed_job(self.batch) is None:
            assert self.summary is not None, "only a decided batch can be done"
            job = KeyedJob(self.batch.key, self.batch.scope, self.summary, self.is_unproven)
            keyed_jobs = (*keyed_jobs, job)[-MAX_KEYED_JOBS:]
        return dataclasses.replace(self, state=EntryState.DONE, transactions=(), keyed_jobs=keyed_jobs)

    def as_unproven(self) -> Entry:
        """Return a copy that is marked as unproven: somebody other than a driver of the prefix may have written it.

        This is for an entry whose producer id belongs to no transactional id that this user may see. Such an entry may
        stop a batch, but never causes a batch to be skipped (test_record_of_forgotten_id_skips_no_batch). The mark
        stays when a driver writes the entry again under its own producer id. The driver number is reset, because
        brokers know no driver id of the prefix except possibly the first one.
        """
        keyed_jobs = tuple(dataclasses.replace(job, is_unproven=True) for job in self.keyed_jobs)
        return dataclasses.replace(self, is_unproven=True, keyed_jobs=keyed_jobs, driver_number=FIRST_DRIVER_NUMBER)

    def as_given_up(self) -> Entry:
        """Return a copy that records the batch as done although some of its transactions are lost.

        The copy is no longer marked as unproven, because the user has checked the batch before giving it up.
        """
        return dataclasses.replace(self, is_unproven=False).as_done()

    def has_decided(self, batch: Batch) -> bool:
        """Return whether a batch with this name is decided. Its rows must then not be written again."""
        if batch.query_id is not None:
            return self.state is not EntryState.OPEN and batch == self.batch
        return batch.key is not None and (self._find_keyed_job(batch) is not None or self._is_last_keyed_job(batch))

    def find_summary(self, batch: Batch) -> BatchSummary | None:
        """Return the row counts in this batch's decision. Return None if the entry contains no decision for it."""
        decision = self._find_decision(batch)
        return None if decision is None else decision.summary

    def has_proven_decision(self, batch: Batch) -> bool:
        """Return whether this batch is decided, and it is certain that a driver of the prefix has decided it."""
        decision = self._find_decision(batch)
        return decision is not None and not decision.is_unproven

    def has_superseded(self, driver_name: str) -> bool:
        """Return whether this driver has claimed the prefix, and a later start of the query has claimed it since.

        A claim by `pykafka transactions` is no start of the query. After it, the newest driver may begin its next
        batch. Without `register`, all starts of the query in a Spark application have the same start name. If the claim
        superseded that name, the application could not start the query again
        (test_query_without_register_continues_after_operation).
        """
        digests = [_digest_driver_name(name) for name in self._list_driver_names()]
        name_digest = _digest_driver_name(driver_name)
        return name_digest in digests and name_digest != digests[-1]

    def is_same_start(self, driver_name: str) -> bool:
        """Return whether the newest driver and the driver with this name belong to the same start of the query."""
        return bool(self.claimant_name) and _get_start_name(self.claimant_name) == _get_start_name(driver_name)

    def _list_driver_names(self) -> Sequence[str]:
        """Return the driver names without that of `pykafka transactions`."""
        return [name for name in self.driver_names if not _is_operator_name(name)]

    def _find_decision(self, batch: Batch) -> Entry | KeyedJob | None:
        """Return the decision for this batch: the entry itself, or a keyed job in it. Return None if there is neither.

        For a micro-batch, the entry itself is returned. The caller must have checked that it is the entry's own batch.
        """
        is_last = batch.query_id is not None or self._is_last_keyed_job(batch)
        return self if is_last else self._find_keyed_job(batch)

    def _find_keyed_job(self, batch: Batch) -> KeyedJob | None:
        """Return the committed job with this batch's idempotency key, or None if the entry does not list it."""
        return next((job for job in self.keyed_jobs if job.matches(batch)), None)

    def _is_last_keyed_job(self, batch: Batch) -> bool:
        """Return whether the entry's own batch is decided, and has the same key and scope as this batch."""
        return self.state is not EntryState.OPEN and (batch.key, batch.scope) == (self.batch.key, self.batch.scope)


def build_batch_driver_name(start_name: str, batch_suffix: str) -> str:
    """Return the name of a driver that writes only one batch of a query.

    `start_name`: identifies this start of the query. A later driver of the same start does not supersede this one.
    `batch_suffix`: distinguishes the driver from others of the same start.
    """
    return f"{start_name}{_BATCH_SUFFIX_SEPARATOR}{batch_suffix}"


def build_operator_name(host: str, suffix: str) -> str:
    """Return the name under which `pykafka transactions` on this host claims a prefix.

    `suffix`: distinguishes this run of the command from others.
    """
    return f"{_OPERATOR_NAME_START}{host}, {suffix}"


def _is_operator_name(driver_name: str) -> bool:
    """Return whether this is the name of `pykafka transactions`."""
    return driver_name.startswith(_OPERATOR_NAME_START)


def _get_start_name(driver_name: str) -> str:
    """Return the driver's name without the suffix for a batch."""
    return driver_name.partition(_BATCH_SUFFIX_SEPARATOR)[0]


def _digest_driver_name(driver_name: str) -> str:
    """Return a short hash of the driver's start name. Entries contain it, instead of the name, for earlier drivers.

    `driver_name`: a driver's name, or such a hash, which is returned unchanged.
    """
    if driver_name.startswith(_DIGEST_MARK):
        return driver_name
    return _DIGEST_MARK + hashlib.sha256(_get_start_name(driver_name).encode()).hexdigest()[:_DIGEST_CHARACTERS]
