"""Driver: begins, commits and aborts the batches of one query or job. See docs/exactly-once-design.md.

Each task of a batch writes its rows in its own Kafka transaction and leaves that transaction open. The driver later
commits or aborts all of them. Before it commits the first one, it writes a list of all of them to a Kafka topic, the
decision log. The record with this list is the decision. The driver writes it in a transaction of its own. A batch goes
through three states:

    open       No row is visible yet. If the driver dies now, the next driver aborts the tasks' transactions.
    decided    The decision is committed. All rows will become visible: if the driver dies now, the next driver commits
               the tasks' transactions.
    done       All of the tasks' transactions are committed, and the log says so.

The query or job has a name, with which all of its transactional ids begin, so the name is called the prefix. The entry
is the state of the query or job in the log. A driver becomes the current driver of a prefix by writing another record,
a claim. From then on, older drivers of the same prefix cannot decide a batch any more. The driver's main methods are:

    begin    Takes over from older drivers. It requests a new epoch, so that brokers reject the older ones (fencing),
             reads the log, commits a batch that is decided but not done, claims the prefix, and aborts all other open
             transactions. If nothing has happened since this driver finished its last batch, it only reads the log and,
             in transaction version 1, requests a new epoch.
    commit   Checks that each task's transaction is open and has enough time left, decides the batch, commits the tasks'
             transactions, and records that the batch is done.
    abort    Claims the prefix again, so that nobody can decide the batch any more, and aborts the tasks' transactions.

A driver may be suspended between any two requests while other drivers act. Whatever it read before it got its epoch may
therefore be stale. Its later requests under its own transactional id carry the epoch, and brokers reject them once
there is a newer epoch. The log, not the epoch, shows which driver is the current one (query_transactions.py explains
why).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, ExactlyOnceError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import commit_errors, decision_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.commit_checks import find_transaction_deadline_error, find_transaction_state_error
from spark_kafka_sink.exactly_once.commit_margin import compute_decision_timeout_ms
from spark_kafka_sink.exactly_once.driver_ids import has_been_idle_since, is_log_lost
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH, QueryTransactions
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from spark_kafka_sink.exactly_once.start_checks import check_may_begin, check_not_overtaken
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

_log = logging.getLogger(__name__)

SUPERSEDED_ABORT_TIMEOUT_MS = 5_000.0
"""The time without progress after which the driver gives up the abort of superseded task attempts.

The limit is low, because the batch is already committed and the next one is waiting. The remaining transactions end
with the next batch or when they time out.
"""


class _CommittedBatch(NamedTuple):
    """The result of committing a decided batch."""

    writer_state: WriterState
    """The state for the next record that the driver writes to the log."""
    superseded_transactions: Sequence[TransactionDescription] | None
    """The transactions to abort, of task attempts that Spark did not accept. None if they are not known."""


class Driver:
    """The driver of one query or job, which begins, commits and aborts batches under its prefix.

    A context manager that leases a client. Not thread-safe.
    """

    def __init__(self, settings: ExactlyOnceSettings, *, system: System | None = None) -> None:
        self._settings = settings
        self._transactions = QueryTransactions(
            settings.client_config, settings.prefix, settings.options.log_topic, system=system
        )
        self._client = self._transactions.client
        self._may_be_decided = False  # whether an error now would leave the decision in doubt

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transactions.__exit__(exc_type, exc, traceback)

    # --- begin

    def begin(self, driver_name: str) -> BatchStart:
        """Begin a batch: take over the prefix, and finish or abort the batches of earlier drivers.

        Raise ExactlyOnceError if this driver must stop, for example because a newer one has started, or if an earlier
        batch is decided and cannot be finished. Raise PreflightError if brokers reject a request. After any error, the
        new batch has no rows in Kafka.

        `driver_name`: the driver's name. Each start of a query and each job has its own name.
        """
        with precommit_errors.convert_start_errors():
            self._transactions.decision_log.prefetch_topic()
            description = self._transactions.wait_and_describe_driver_id()
            self._transactions.decision_log.create_if_missing(self._settings.options.log_replication_factor)
            return self._begin(driver_name, description)

    def _begin(self, driver_name: str, description: TransactionDescription | None) -> BatchStart:
        """Begin a batch. Try again if another driver that starts at the same time fences this one.

        `description`: the description of the driver id, the driver's transactional id. It must have been requested
        before this method reads the log, so that a driver that claims the prefix in between is noticed.
        """
        description, possibly_stale_entry = self._transactions.read_current_entry(description)
        check_not_overtaken(self._transactions, driver_name, description, possibly_stale_entry)
        predecessor_name = possibly_stale_entry.claimant_name
        try:
            return self._transactions.retry_when_fenced(
                partial(
                    self._begin_next_batch_or_take_over,
                    driver_name,
                    predecessor_name,
                    functools.cache(self._find_task_timeout_ms),
                ),
                description,
                possibly_stale_entry,
            )
        except ProducerFencedError as error:
            raise precommit_errors.build_concurrent_start_error(self._settings.prefix, driver_name) from error

    def _begin_next_batch_or_take_over(
        self,
        driver_name: str,
        predecessor_name: str,
        find_task_timeout_ms: Callable[[], int],
        description: TransactionDescription | None,
        possibly_stale_entry: Entry,
    ) -> BatchStart:
        """Try once to begin a batch. Raise ProducerFencedError if another driver is active at the same time.

        `predecessor_name`: the name of the driver that was the newest one when this driver first read the log.
        `find_task_timeout_ms`: returns the transaction timeout for the tasks, and caches it.
        `description`: the description of the driver id; None if the brokers do not know the id.
        `possibly_stale_entry`: the newest entry. Until this driver has a new epoch, an older driver may replace it.
        """
        check_may_begin(self._settings, driver_name, predecessor_name, possibly_stale_entry)
        if is_log_lost(possibly_stale_entry, description):
            # Raise before requesting an epoch, so that every later driver finds the driver id in the same state.
            raise precommit_errors.build_log_lost_error(self._settings.prefix, self._settings.options.log_topic)
        if (
            possibly_stale_entry.claimant_name == driver_name
            and description is not None
            and has_been_idle_since(possibly_stale_entry, description, self._client.transaction_version)
            and description.id_and_epoch.epoch < HAND_OVER_EPOCH
        ):
            return self._begin_next_batch(driver_name, predecessor_name, description, possibly_stale_entry)
        # Find the tasks' timeout even if the last driver belongs to the same start of the query: without `register`,
        # all starts in an application count as one, so the user or the brokers may have changed it. Do so before this
        # driver fences another one, because it stops if the brokers reject the user's timeout. An id that they do not
        # know belongs to no other driver, and must first get an epoch.
        if description is not None:
            find_task_timeout_ms()  # the result is cached
        # If another driver has begun a transaction since, `fence` would abort it: brokers do that before they compare
        # epochs.
        self._transactions.check_unchanged(description)
        identity = self._transactions.fence(description)
        entry = self._transactions.read_entry()  # not stale, because older drivers can no longer write
        check_may_begin(self._settings, driver_name, predecessor_name, entry)
        return self._take_over(entry, driver_name, identity, find_task_timeout_ms())

    def _begin_next_batch(
        self, driver_name: str, predecessor_name: str, description: TransactionDescription, own_entry: Entry
    ) -> BatchStart:
        """Begin the next batch of a driver that has written the prefix's last record, if possible without a claim.

        `own_entry`: the newest entry. When the driver id was described, nothing had happened under it since this entry.
        """
        has_user_prefix = self._settings.has_user_prefix
        if self._client.transaction_version >= 2:
            return BatchStart(own_entry, description.id_and_epoch, has_user_prefix, driver_id_state=description.state)
        # In version 1, the driver id has the same state and epoch before and after a decision, so a late task attempt
        # could not see that its batch is decided. Therefore, each batch needs a new epoch.
        identity = self._transactions.bump_epoch(description.id_and_epoch, own_entry.timeout_ms)
        entry = self._transactions.read_entry()  # another driver may have written before the epoch was granted
        check_may_begin(self._settings, driver_name, predecessor_name, entry)
        # A new producer id needs a claim, because the old one no longer proves that the driver wrote the entry.
        has_same_producer_id = identity.producer_id == own_entry.writer_identity.producer_id
        if entry == own_entry and has_same_producer_id:
            return BatchStart(entry, identity, has_user_prefix)
        return self._take_over(entry, driver_name, identity, own_entry.timeout_ms)

    def _find_task_timeout_ms(self) -> int:
        """Find the transaction timeout for the tasks. Raise PreflightError if the brokers do not grant the user's."""
        try:
            return self._transactions.find_longest_timeout_ms(self._settings.candidate_timeouts_ms)
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                is_user_timeout = self._settings.options.transaction_timeout_ms is not None
                raise precommit_errors.build_timeout_rejected_error(error, is_user_timeout=is_user_timeout) from error
            raise

    def _take_over(
        self, entry: Entry, driver_name: str, identity: ProducerIdAndEpoch, task_timeout_ms: int
    ) -> BatchStart:
        """Make this driver the prefix's current one, and finish or abort what earlier drivers have left.

        A batch that is decided but not done is committed, and all other open transactions are aborted. The earlier
        driver may be this one: it also takes over from itself if anything has happened since its last record.

        `entry`: the newest entry, read after this driver was granted the epoch in `identity`.
        `task_timeout_ms`: the transaction timeout for this driver's tasks.
        """
        previous_entry = entry
        if entry.state is EntryState.DECIDED:
            _log.info("Finishing %s, which is decided but not done (prefix %s)", entry.batch, entry.prefix)
            with commit_errors.convert_earlier_batch_errors(entry):
                errors_by_id = self._commit_transactions(entry, identity)
            if errors_by_id:  # another process has taken over, so this driver must read the log again
                raise precommit_errors.build_other_driver_error(self._transactions.driver_id)
            entry = entry.as_done()
        claim = entry.with_claim(
            driver_name,
            checkpoint=self._settings.checkpoint,
            timeout_ms=task_timeout_ms,
            claim_identity=identity,
            writer_kind=self._settings.writer_kind,
        )
        new_identity = self._transactions.take_over(identity, previous_entry, claim).identity
        return BatchStart(claim, new_identity, self._settings.has_user_prefix)

    # --- commit

    def commit(
        self, start: BatchStart, batch: Batch, transactions: Sequence[TransactionIdentity], summary: BatchSummary
    ) -> None:
        """Decide the batch and commit its transactions.

        Raise ExactlyOnceError if the batch is not decided, if it is not known whether it is, or if a commit fails. The
        message says which of these is the case. After any other error, the batch is not decided.

        `start`: the result of `begin`.
        `transactions`: the open transactions of the task attempts that Spark accepted.
        `summary`: the number of rows in the batch, by topic.
        """
        if not transactions:  # there is nothing to decide
            if self._settings.is_single_use:  # no later job would delete this job's entry
                with commit_errors.log_errors_after_commit(start.entry, commit_errors.MAY_STAY_OPEN_MESSAGE):
                    self.abort(start, batch)
            return
        self._transactions.driver_number = start.entry.driver_number
        entry = start.entry.with_decision(batch, summary, tuple(transactions))
        writer_state = self._decide(start, entry)
        committed_batch = self._execute_decision(writer_state, entry)
        self._abort_superseded_attempts(committed_batch, entry)

    def _decide(self, start: BatchStart, entry: Entry) -> WriterState:
        """Write `entry` to the log as the decision to commit the batch. Return the state for the next record.

        Raise ExactlyOnceError if a task's transaction has ended or may soon time out, if a newer driver has taken over,
        or if the decision's commit got no response.
        """
        with decision_errors.convert_fencing_before_decision(entry):
            # If the cluster was downgraded to version 1 since the start, do not decide. The decision would leave the
            # driver id in the same state as at the start, so late attempts would consider the batch undecided. The next
            # start writes the batch again, which is simpler than a decision under a new epoch, and rarely necessary.
            if start.driver_id_state != EMPTY and self._transactions.uses_version_1():
                raise decision_errors.build_downgrade_error(entry)
            try:
                return self._transactions.write_next_entry(
                    WriterState(start.driver_identity), start.entry, entry, self._write_decision
                )
            except KafkaSinkError as error:
                if not self._may_be_decided:
                    raise  # the enclosing context converts a ProducerFencedError
                raise decision_errors.build_decision_in_doubt_error(entry, error) from error

    def _write_decision(self, writer_state: WriterState, entry: Entry) -> WriterState:
        """Write the decision, check the tasks' transactions, and commit the decision. Return the next state.

        Raise ExactlyOnceError, and abort the decision, if a task's transaction has ended or may soon time out. If this
        process is suspended for long between the check and the commit, brokers abort the decision, because the
        transaction that contains it has a short timeout.
        """
        self._may_be_decided = False  # if an earlier attempt was fenced, the log showed that it decided nothing
        decision = self._transactions.begin_write(writer_state, entry)  # in flight during the check
        try:
            transactional_ids = [transaction.transactional_id for transaction in entry.transactions]
            descriptions = describe_transactions(self._client, transactional_ids)
        except KafkaSinkError:
            decision.abandon()
            raise
        decision.wait()
        error = self._find_commit_error(entry, descriptions)
        if error is not None:
            # If a newer driver has ended the tasks' transactions, the brokers reject this abort with a fencing error,
            # which is then reported instead.
            decision.abort()
            raise error
        self._may_be_decided = True  # from now on, an error leaves the decision in doubt
        return decision.commit(compute_decision_timeout_ms(entry.timeout_ms))

    def _execute_decision(self, writer_state: WriterState, entry: Entry) -> _CommittedBatch:
        """Commit the tasks' transactions, and record in the log that the batch is done.

        Raise ExactlyOnceError if a commit fails or a newer driver has taken over. `entry` is the decision.
        """
        superseded_transactions: Sequence[TransactionDescription] | None = None
        # A superseded attempt is one whose rows Spark did not accept, because another attempt of the task succeeded.
        # List the superseded attempts' transactions between two other steps:
        #   1. The batch is decided. From now on, no attempt without a transactional id begins, so the list is complete.
        #   2. The list is requested.
        #   3. The driver records that the batch is done. If this succeeds, no newer driver has begun before, so the
        #      list contains no transaction of a newer driver's tasks.
        errors_by_id = self._commit_transactions(entry, writer_state.id_and_epoch, prefetch_listing=True)
        if errors_by_id:
            raise commit_errors.build_superseded_commit_error(entry, errors_by_id)
        with commit_errors.log_errors_after_commit(entry, commit_errors.MAY_STAY_OPEN_MESSAGE):
            committed_ids = {transaction.transactional_id for transaction in entry.transactions}
            superseded_transactions = self._transactions.list_task_transactions(committed_ids)
        may_have_open_transactions = superseded_transactions is None or bool(superseded_transactions)
        # The entry of a job without a name is deleted next if no transactions are open, so it need not say "done".
        if may_have_open_transactions or not self._settings.is_single_use:
            is_recorded = False
            with commit_errors.handle_errors_after_commit(entry, is_single_use=self._settings.is_single_use):
                writer_state = self._transactions.write_next_entry(
                    writer_state, entry, entry.as_done(), self._transactions.write
                )
                is_recorded = True
            if not is_recorded and not self._settings.is_single_use:  # a named job, whose error was logged
                superseded_transactions = None  # the list may contain transactions of a newer driver's tasks
        return _CommittedBatch(writer_state, superseded_transactions)

    def _abort_superseded_attempts(self, committed_batch: _CommittedBatch, entry: Entry) -> None:
        """Abort the transactions of task attempts that Spark did not accept. Log errors instead of raising them.

        Then delete the entry of a job without a name. If transactions may still be open, keep the entry, because
        `pykafka transactions` needs it to find out whether the job was decided.
        """
        if committed_batch.superseded_transactions is None:  # an earlier step failed, and logged a warning
            return
        with commit_errors.log_errors_after_commit(entry, commit_errors.MAY_STAY_OPEN_MESSAGE):
            transactions = committed_batch.superseded_transactions
            errors_by_id = self._transactions.abort_task_transactions(transactions, SUPERSEDED_ABORT_TIMEOUT_MS)
            if errors_by_id:
                raise next(iter(errors_by_id.values()))  # the enclosing context logs it
            if self._settings.is_single_use:
                with commit_errors.log_errors_after_commit(entry, commit_errors.JOB_NOT_RECORDED_MESSAGE):
                    self._transactions.delete_entry(committed_batch.writer_state)

    def _find_commit_error(
        self, entry: Entry, descriptions: Mapping[str, TransactionDescription]
    ) -> ExactlyOnceError | None:
        """Return the error to raise if a task's transaction has ended or may soon time out. Otherwise, return None."""
        error = find_transaction_state_error(entry, descriptions)
        return error or find_transaction_deadline_error(entry, descriptions.values(), self._client.wall_ms())

    def _commit_transactions(
        self, entry: Entry, identity: ProducerIdAndEpoch, *, prefetch_listing: bool = False
    ) -> Mapping[str, BrokerError]:
        """Commit the tasks' transactions of a decided batch. Raise ExactlyOnceError if a commit fails.

        If another process has taken over, however, return the errors of the rejected commits by transactional id: a
        newer driver may have finished the batch before.

        `prefetch_listing`: once the commits are sent, request the list of transactions that stay open.
        """
        errors_by_id: Mapping[str, BrokerError] = {}
        try:
            errors_by_id = self._transactions.commit(entry, prefetch_listing=prefetch_listing)
            is_failed = bool(errors_by_id) and not self._transactions.has_lost_epoch(identity)
        except KafkaSinkError as error:
            raise commit_errors.build_unfinished_commit_error(entry, error, errors_by_id) from error
        if is_failed:
            raise commit_errors.build_not_committed_error(entry, errors_by_id)
        return errors_by_id

    # --- abort

    def abort(self, start: BatchStart, batch: Batch) -> bool:
        """Abort the batch's open transactions, so that none of its rows become visible. Return whether it was aborted.

        Nothing is aborted if the batch is already decided, or if a newer driver has taken over the query.

        `start`: the result of `begin`.
        """
        if start.entry.has_decided(batch):  # in an earlier run, so the tasks of this run have written nothing
            return False
        self._transactions.driver_number = start.entry.driver_number
        return self._abort_if_current(
            start.entry.is_same_apart_from_reclaim, self._transactions.wait_and_describe_driver_id()
        )

    def abort_unreported(self, start_name: str) -> bool:
        """Abort the batch in progress, whose BatchStart is not available. Return whether it was aborted.

        This is for a query that was stopped before any task had reported. Nothing is aborted if the decision to commit
        is or may be in the log, or if a newer driver has taken over.

        `start_name`: the name of this start of the query, without the suffix for a batch.
        """
        # Read the log here only to find the current driver id. `_abort_if_current` reads the entry again.
        description, _ = self._transactions.read_current_entry(self._transactions.wait_and_describe_driver_id())
        if description is not None and description.state == ONGOING:
            return False  # the driver's open transaction may contain a decision
        return self._abort_if_current(
            lambda entry: entry.is_same_start(start_name) and entry.state is not EntryState.DECIDED, description
        )

    def _abort_if_current(
        self, belongs_to_batch: Callable[[Entry], bool], description: TransactionDescription | None
    ) -> bool:
        """Abort the batch in progress if the prefix's newest entry belongs to it. Return whether it was aborted.

        This also claims the prefix. If another process was suspended while it was committing the batch, it finds the
        new claim instead of its own entry when it resumes, and decides nothing.

        `belongs_to_batch`: returns whether an entry was written for this batch.
        `description`: the description of the driver id; None if the brokers do not know the id.
        """
        # An attempt may be fenced after it has written its claim. The next attempt must recognize that claim as its
        # own, so all attempts share this list: `_try_abort` appends to it, and `is_own_entry` reads it.
        own_claims: list[Entry] = []

        def is_own_entry(entry: Entry) -> bool:
            return belongs_to_batch(entry) or any(map(entry.is_same_apart_from_reclaim, own_claims))

        try:
            return self._transactions.retry_when_fenced(partial(self._try_abort, is_own_entry, own_claims), description)
        except ProducerFencedError:
            return False

    def _try_abort(
        self,
        is_own_entry: Callable[[Entry], bool],
        own_claims: list[Entry],
        description: TransactionDescription | None,
        possibly_stale_entry: Entry,
    ) -> bool:
        """Try once to abort the batch in progress. Return False if `is_own_entry` rejects the newest entry.

        Raise ProducerFencedError if another driver is active at the same time.

        `is_own_entry`: returns whether an entry belongs to the batch, or is a claim of an earlier attempt.
        `own_claims`: the claims of earlier attempts. This attempt appends its own.
        """
        if not is_own_entry(possibly_stale_entry):
            return False  # Do not request an epoch first, because that would fence the other driver.
        # Once the brokers have granted the next epoch, no new task attempt of the batch can start.
        identity = self._transactions.fence(description)
        entry = self._transactions.read_entry()  # another driver may have written before the epoch was granted
        if not is_own_entry(entry):
            return False
        claim = entry.with_claim(
            entry.claimant_name, checkpoint=entry.checkpoint, timeout_ms=0, claim_identity=identity
        )
        own_claims.append(claim)  # before it is written, because this attempt may be fenced after the write
        take_over = self._transactions.take_over(identity, entry, claim)
        if take_over.abort_errors:
            commit_errors.log_rejected_aborts(entry.prefix, take_over.abort_errors)
        elif self._settings.is_single_use:
            # Delete the entry last, because the job's open transactions can be found only through it.
            self._transactions.delete_entry(WriterState(take_over.identity))
        return True
