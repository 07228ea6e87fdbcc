"""Driver: begins, commits and aborts the batches of a query or job. See docs/exactly-once-design.md.

A decision is a single record that the driver writes to the decision log in its own transaction. The batch is decided
when that transaction is committed. Until then, no row of the batch is visible. From then on, all rows will become
visible, even if another process has to commit the tasks' transactions. When these are committed, the driver records in
the log that the batch is done.

A claim is a record by which a driver takes over a prefix. An earlier driver of the prefix can then decide nothing more.

    begin    Takes over from older drivers: fences them, reads the log, commits the transactions of a batch that was
             decided but not recorded as done, claims the prefix, and aborts all other open transactions. A driver
             whose own claim is still valid only reads the log. In transaction version 1, it also requests a new epoch.
    commit   Checks that each task's transaction is open and has enough time left, decides the batch, commits the tasks'
             transactions, and records that the batch is done.
    abort    Claims the prefix again, so that the batch can no longer be decided, and aborts the tasks' transactions.

A driver may be suspended between any two requests while other drivers act. Therefore, whatever a driver read before it
obtained its epoch may be stale. Every later request carries that epoch, so brokers reject it once a newer one exists,
and the log determines which driver is the current one (query_transactions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, ExactlyOnceError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import commit_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.commit_margin import compute_commit_margin_ms, compute_decision_timeout_ms
from spark_kafka_sink.exactly_once.delivery import Delivery
from spark_kafka_sink.exactly_once.driver_ids import GrantedEpoch, choose_timeout_ms, has_been_idle_since, is_log_lost
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH, QueryTransactions
from spark_kafka_sink.exactly_once.timeout_marks import mark_claimed
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

_log = logging.getLogger(__name__)

SUPERSEDED_ABORT_TIMEOUT_MS = 5_000.0
"""The time without progress after which the driver gives up on aborting superseded attempts.

At this point the batch is already committed, and the next batch is waiting. Any remaining transactions are ended by the
next batch or by the transaction timeout.
"""
_MAY_STAY_OPEN_MESSAGE = (
    "transactions of superseded task attempts may still be open. They end when they time out; until then, "
    "read_committed readers wait for them"
)
_NOT_RECORDED_MESSAGE = (
    "this could not be recorded in the decision log. Readers are not affected, and you need not do anything; `pykafka "
    "transactions` may continue to show the job"
)
_NAMED_JOB_NOT_RECORDED_MESSAGE = (
    "this could not be recorded in the decision log. All rows are visible. The next write with this prefix records it; "
    "if there is none within a week, run `pykafka transactions finish`"
)


class Driver:
    """A driver that begins, commits and aborts the batches of one prefix.

    A context manager that leases a client. Not thread-safe.
    """

    def __init__(self, delivery: Delivery, *, system: System | None = None) -> None:
        self._delivery = delivery
        self._transactions = QueryTransactions(delivery.client, delivery.prefix, delivery.options.topic, system=system)
        self._client = self._transactions.client
        self._may_be_decided = False  # whether a decision's commit was requested and its outcome is not known yet

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._transactions.__exit__(exc_type, exc, traceback)

    # --- begin

    def begin(self, driver_name: str) -> BatchStart:
        """Begin a batch: claim the prefix, and finish or abort the batches of earlier drivers.

        `driver_name`: the driver's name. Each start of a query and each job has its own name.
        """
        with precommit_errors.convert_start_errors():
            self._transactions.decision_log.prefetch_topic()
            description = self._transactions.wait_and_describe_driver_id()
            self._transactions.decision_log.create_if_missing(self._delivery.options.replication)
            return self._begin(driver_name, description)

    def _begin(self, driver_name: str, description: TransactionDescription | None) -> BatchStart:
        """Begin a batch. `description`: the driver id's description, requested before the log is read."""
        description, possibly_stale_entry = self._transactions.read_current_entry(description)
        self._check_not_overtaken(possibly_stale_entry, driver_name, description)
        predecessor_name = possibly_stale_entry.driver_name
        try:
            return self._transactions.retry_when_fenced(
                partial(self._continue_or_take_over, driver_name, predecessor_name), description, possibly_stale_entry
            )
        except ProducerFencedError as error:
            raise precommit_errors.build_concurrent_start_error(self._delivery.prefix, driver_name) from error

    def _continue_or_take_over(
        self,
        driver_name: str,
        predecessor_name: str,
        description: TransactionDescription | None,
        possibly_stale_entry: Entry,
    ) -> BatchStart:
        """Continue if nothing has happened under the prefix since this driver's last record; otherwise, take over.

        `possibly_stale_entry`: the newest entry, which an older driver may replace until this driver has a new epoch.
        """
        self._check_entry(possibly_stale_entry, driver_name, predecessor_name)
        if is_log_lost(possibly_stale_entry, description):
            # Raise before requesting an epoch, so that every later driver finds the driver id in the same state.
            raise precommit_errors.build_log_lost_error(self._delivery.prefix, self._delivery.options.topic)
        version = self._client.transaction_version
        is_continuing = (
            possibly_stale_entry.driver_name == driver_name
            and description is not None
            and has_been_idle_since(possibly_stale_entry, description, version)
        )
        has_user_prefix = self._delivery.has_user_prefix
        if is_continuing and description is not None and _can_keep_epoch(description, version):
            return BatchStart(possibly_stale_entry, description.id_and_epoch, has_user_prefix, state=description.state)
        if not is_continuing:
            # If another driver has begun a transaction since, brokers would abort it before they compare epochs.
            self._transactions.check_unchanged(description)
        epoch = self._fence(description, granted_ms=possibly_stale_entry.timeout_ms if is_continuing else None)
        entry = self._transactions.read_entry()  # not stale, because older drivers can no longer write
        self._check_entry(entry, driver_name, predecessor_name)
        # A new producer id needs a claim, because the old one no longer proves that the driver wrote the entry.
        has_same_producer_id = epoch.identity.producer_id == possibly_stale_entry.writer_identity.producer_id
        if is_continuing and entry == possibly_stale_entry and has_same_producer_id:
            return BatchStart(entry, epoch.identity, has_user_prefix)
        return self._take_over(entry, driver_name, epoch)

    def _fence(self, description: TransactionDescription | None, granted_ms: int | None) -> GrantedEpoch:
        """Request the next epoch. The result contains the timeout for the tasks' transactions.

        `granted_ms`: the timeout of a driver that continues; None for a new driver, which requests the longest timeout
        that the brokers grant. A driver that follows an earlier one of the same start also counts as new. Without
        `register`, all starts in a Spark application count as one start, and the user may have set a different timeout
        since, or the brokers may now grant a different one.
        """
        try:
            if granted_ms is not None:
                # The driver id keeps its marked timeout, and the tasks keep theirs.
                candidate_timeouts_ms = (mark_claimed(granted_ms),)
                return self._transactions.fence(description, candidate_timeouts_ms)._replace(timeout_ms=granted_ms)
            return self._transactions.fence(description, self._delivery.candidate_timeouts_ms)
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                is_user_timeout = self._delivery.options.timeout_ms is not None
                raise precommit_errors.build_timeout_rejected_error(error, is_user_timeout=is_user_timeout) from error
            raise

    def _check_not_overtaken(self, entry: Entry, driver_name: str, description: TransactionDescription | None) -> None:
        """Raise ExactlyOnceError if a driver claimed the prefix between the description and the read of the log."""
        if entry.driver_name in ("", driver_name) or entry.is_unproven:  # no other driver has claimed it
            return
        claim_producer_id, claim_epoch = entry.claim_identity
        if description is None:  # the brokers have forgotten the id, or it was created after the description
            current = self._transactions.describe_driver_id()
            is_overtaken = current is not None and current.id_and_epoch.producer_id == claim_producer_id
        else:
            producer_id, epoch = description.id_and_epoch
            is_overtaken = producer_id == claim_producer_id and epoch < claim_epoch
        if is_overtaken:
            raise precommit_errors.build_overtaken_error(entry, driver_name)

    def _check_entry(self, entry: Entry, driver_name: str, predecessor_name: str) -> None:
        """Raise ExactlyOnceError if this driver must not begin.

        `predecessor_name`: the newest driver when this driver first read the log. Any other driver started later and
        may be writing, so this driver must not fence it.
        """
        if entry.has_superseded(driver_name):
            raise precommit_errors.build_superseded_error(entry, driver_name)
        if entry.driver_name not in (predecessor_name, driver_name):
            if not entry.driver_name:  # the entry with the predecessor's name is gone
                raise precommit_errors.build_log_lost_error(self._delivery.prefix, self._delivery.options.topic)
            raise precommit_errors.build_overtaken_error(entry, driver_name)
        if entry.writer_kind not in (None, self._delivery.writer_kind):
            raise precommit_errors.build_writer_kind_mismatch_error(entry)
        checkpoint = self._delivery.checkpoint
        if checkpoint and entry.checkpoint and checkpoint != entry.checkpoint:
            raise precommit_errors.build_checkpoint_mismatch_error(entry, checkpoint)

    def _take_over(self, entry: Entry, driver_name: str, epoch: GrantedEpoch) -> BatchStart:
        """Commit a batch that is decided but not done, claim the prefix, and abort the other open transactions.

        A driver also takes over from itself if anything has happened since its last record.
        """
        previous_entry = entry
        if entry.state is EntryState.DECIDED:
            _log.info("Finishing %s, which is decided but not done (prefix %s)", entry.batch, entry.prefix)
            self._commit_transactions(entry, epoch.identity)
            entry = entry.as_done()
        claim = entry.with_claim(
            driver_name,
            checkpoint=self._delivery.checkpoint,
            timeout_ms=epoch.timeout_ms,
            claim_identity=epoch.identity,
            writer_kind=self._delivery.writer_kind,
        )
        new_identity = self._transactions.take_over(epoch.identity, previous_entry, claim).identity
        return BatchStart(claim, new_identity, self._delivery.has_user_prefix)

    # --- commit

    def commit(
        self, start: BatchStart, batch: Batch, transactions: Sequence[TransactionIdentity], content: BatchContent
    ) -> None:
        """Decide the batch and commit its transactions.

        Raise ExactlyOnceError if the decision is rejected or in doubt, or if a commit fails. After any other error,
        nothing is decided. If there are no transactions, there is nothing to decide. For a job without a name, the
        entry is then deleted from the log, because no later job would delete it.
        """
        if not transactions:
            if self._delivery.is_single_use:
                with _log_failure(start.entry, _NOT_RECORDED_MESSAGE):
                    self.abort(start, batch)
            return
        self._transactions.driver_number = start.entry.driver_number
        entry = start.entry.with_decision(batch, content, tuple(transactions))
        state = self._decide(start, entry)
        state, superseded_transactions = self._execute_decision(state, entry)
        self._abort_superseded_attempts(state, entry, superseded_transactions)

    def _decide(self, start: BatchStart, entry: Entry) -> WriterState:
        """Write the decision and return the next state. Raise if a task's transaction has ended or nearly timed out."""
        with commit_errors.convert_fencing_before_decision(entry):
            # If the cluster was downgraded to version 1 since the start, a decision under this epoch would leave the
            # driver id in the same state as at the start, and late attempts would take the batch for undecided. A new
            # epoch does not help. Brokers grant the same next epoch to every process that sends the start's epoch, so a
            # suspended abort may hold it as well, and would end what is decided here.
            if start.state != EMPTY and self._transactions.uses_version_1():
                raise commit_errors.build_downgrade_error(entry)
            try:
                return self._transactions.write_next_entry(
                    WriterState(start.driver_identity), start.entry, entry, self._write_decision
                )
            except ProducerFencedError:  # the enclosing context converts it
                raise
            except KafkaSinkError as error:
                if not self._may_be_decided:
                    raise
                raise commit_errors.build_decision_in_doubt_error(entry, error) from error

    def _write_decision(self, state: WriterState, entry: Entry) -> WriterState:
        """Send the decision, check the tasks' transactions while it is in flight, and commit or abort the decision.

        The decision timeout ends these steps before the tasks' transactions are in danger of timing out.
        """
        self._may_be_decided = False  # an earlier try was fenced, so it decided nothing
        decision = self._transactions.begin_write(state, entry)
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

    def _execute_decision(
        self, state: WriterState, entry: Entry
    ) -> tuple[WriterState, list[TransactionDescription] | None]:
        """Commit the tasks' transactions and record that the batch is done.

        Return the state for the next record, and the transactions of superseded attempts, which still have to be
        aborted (None if listing them failed).
        """
        superseded_transactions: list[TransactionDescription] | None = None
        # The order of these steps ensures that the list contains every superseded attempt's transaction and none of a
        # newer driver's:
        #   1. The batch is decided. From now on, no attempt without a transactional id begins.
        #   2. The list is requested.
        #   3. The driver records that the batch is done. This succeeds only if no newer driver has begun before then.
        with commit_errors.convert_fencing_after_decision(entry):
            self._commit_transactions(entry, state.id_and_epoch, prefetch_listing=True)
        with _log_failure(entry, _MAY_STAY_OPEN_MESSAGE):
            committed_ids = {transaction.transactional_id for transaction in entry.transactions}
            superseded_transactions = self._transactions.list_task_transactions(committed_ids)
        may_have_open_transactions = superseded_transactions is None or bool(superseded_transactions)
        # A job without a name and without open transactions deletes its entry next, so the batch need not be recorded
        # as done.
        if may_have_open_transactions or not self._delivery.is_single_use:
            with self._handle_done_failure(entry):
                state = self._transactions.write_next_entry(state, entry, entry.as_done(), self._transactions.write)
        return state, superseded_transactions

    def _handle_done_failure(self, entry: Entry) -> AbstractContextManager[None]:
        """Return a context for recording that the batch is done. For a stream it raises errors; for a job it logs them.

        A stream's fenced driver must stop. A job, however, has succeeded. If it failed now, a scheduler would run it
        again, and a job without a key would write all of its rows twice.
        """
        if entry.batch.query_id is not None:
            return commit_errors.convert_errors_after_commit(entry)
        consequence = _NOT_RECORDED_MESSAGE if self._delivery.is_single_use else _NAMED_JOB_NOT_RECORDED_MESSAGE
        return _log_failure(entry, consequence)

    def _abort_superseded_attempts(
        self, state: WriterState, entry: Entry, superseded_transactions: Sequence[TransactionDescription] | None
    ) -> None:
        """Abort the transactions of superseded attempts, and delete the entry of a job without a name from the log.

        The entry is deleted only when the job has no open transactions left, because until then `pykafka transactions`
        needs the entry to find out whether the job was decided.
        """
        if superseded_transactions is None:  # listing them failed, so some may still be open
            return
        with _log_failure(entry, _MAY_STAY_OPEN_MESSAGE):
            self._transactions.abort_task_transactions(superseded_transactions, SUPERSEDED_ABORT_TIMEOUT_MS)
            if self._delivery.is_single_use:
                with _log_failure(entry, _NOT_RECORDED_MESSAGE):
                    self._transactions.delete_entry(state)

    def _find_commit_error(
        self, entry: Entry, descriptions: Mapping[str, TransactionDescription]
    ) -> ExactlyOnceError | None:
        """Return the error that says why the batch cannot be committed, or None if it can.

        `descriptions`: the brokers' descriptions of the tasks' transactions, by transactional id.
        """
        problems = []
        for transaction in entry.transactions:
            transactional_id = transaction.transactional_id
            description = descriptions.get(transactional_id)
            if description is None:
                problems.append(f"{transactional_id}: unknown to the brokers")
            elif not description.is_open or description.id_and_epoch != transaction.id_and_epoch:
                problems.append(commit_errors.describe_missing_transaction(transaction, description))
        if problems:
            return commit_errors.build_transactions_not_open_error(entry, problems)
        return self._find_timeout_error(entry, descriptions)

    def _find_timeout_error(
        self, entry: Entry, descriptions: Mapping[str, TransactionDescription]
    ) -> ExactlyOnceError | None:
        """Return an error if an open transaction has less time left than the commit margin. Otherwise, return None.

        The time left is computed from the start time by the brokers' clocks and the current time by this machine's.
        """
        now_ms = self._client.wall_ms()
        for description in descriptions.values():
            remaining_ms = description.started_ms + description.timeout_ms - now_ms
            if description.started_ms >= 0 and remaining_ms < compute_commit_margin_ms(description.timeout_ms):
                return commit_errors.build_too_little_time_error(entry, description, remaining_ms)
        return None

    def _commit_transactions(
        self, entry: Entry, identity: ProducerIdAndEpoch, *, prefetch_listing: bool = False
    ) -> None:
        """Commit a decided batch. Raise ProducerFencedError if a newer driver took over, or ExactlyOnceError."""
        try:
            errors_by_id = self._transactions.commit(entry, identity, prefetch_listing=prefetch_listing)
        except ProducerFencedError:
            raise
        except KafkaSinkError as error:
            raise commit_errors.build_unfinished_commit_error(entry, error) from error
        if errors_by_id:
            raise commit_errors.build_not_committed_error(entry, errors_by_id)

    # --- abort

    def abort(self, start: BatchStart, batch: Batch) -> bool:
        """Abort the batch, and return whether it was aborted.

        The batch is not aborted if it is already decided or committed, or if a newer driver has taken over its prefix.
        """
        if start.entry.has_decided(batch):  # the tasks have skipped their rows, so there is nothing to abort
            return False
        self._transactions.driver_number = start.entry.driver_number
        return self._abort_if(start.entry.is_same_except_identity, self._transactions.wait_and_describe_driver_id())

    def abort_unreported(self, start_name: str) -> bool:
        """Abort the open transactions of a batch whose tasks have reported nothing, and return whether this was done.

        Nothing is aborted if a batch is decided or being decided, or if a newer driver has taken over.

        `start_name`: the name of this start of the query.
        """
        # The log names the current driver id. The entry itself is read again below.
        description, _ = self._transactions.read_current_entry(self._transactions.wait_and_describe_driver_id())
        if description is not None and description.state == ONGOING:
            return False  # the driver's open transaction may contain a decision
        return self._abort_if(
            lambda entry: entry.is_same_start(start_name) and entry.state is not EntryState.DECIDED, description
        )

    def _abort_if(self, belongs_to_batch: Callable[[Entry], bool], description: TransactionDescription | None) -> bool:
        """Abort the batch if the newest entry belongs to it, and return whether it was aborted.

        This writes a claim, which prevents a later decision: a suspended commit then finds a newer entry than its own.
        """
        own_claims: list[Entry] = []

        def is_ours(entry: Entry) -> bool:
            return belongs_to_batch(entry) or any(map(entry.is_same_except_identity, own_claims))

        try:
            return self._transactions.retry_when_fenced(partial(self._try_abort, is_ours, own_claims), description)
        except ProducerFencedError:
            return False

    def _try_abort(
        self,
        is_ours: Callable[[Entry], bool],
        own_claims: list[Entry],
        description: TransactionDescription | None,
        possibly_stale_entry: Entry,
    ) -> bool:
        """Try once to abort the batch if the newest entry is ours. Return whether it was aborted.

        `own_claims`: claims written by earlier tries that were fenced afterwards. This try appends its own claim.
        """
        if not is_ours(possibly_stale_entry):
            return False  # without requesting an epoch, which would fence the other driver
        # Once the brokers grant the next epoch, no new task attempt of the batch can start.
        candidate_timeouts_ms = (choose_timeout_ms(possibly_stale_entry, description),)
        identity = self._transactions.fence(description, candidate_timeouts_ms).identity
        # Read the entry again, because another driver may have written one in the meantime.
        entry = self._transactions.read_entry()
        if not is_ours(entry):
            return False
        claim = entry.with_claim(
            entry.driver_name, checkpoint=entry.checkpoint, timeout_ms=entry.timeout_ms, claim_identity=identity
        )
        own_claims.append(claim)  # The next try must recognize the claim even if this one is fenced while writing it.
        new_identity = self._transactions.take_over(identity, entry, claim).identity
        if self._delivery.is_single_use:
            # This is the last step, because the job's open transactions can be found only through its entry.
            self._transactions.delete_entry(WriterState(new_identity))
        return True


def _can_keep_epoch(description: TransactionDescription, transaction_version: int) -> bool:
    """Return whether a driver that continues needs no new epoch for its next decision.

    In version 1 it does need one: the driver id has the same state before and after a decision under the same epoch, so
    a late attempt could not tell them apart. It also needs one if epochs are running out, because `fence` then hands
    over to the next driver id.
    """
    return transaction_version >= 2 and description.id_and_epoch.epoch < HAND_OVER_EPOCH


@contextmanager
def _log_failure(entry: Entry, consequence: str) -> Iterator[None]:
    """Log errors of the steps after the commit instead of raising them.

    At this point the rows are visible. A job that failed now would be run again and write them twice.
    """
    try:
        yield
    except KafkaSinkError as error:
        _log.warning("%s is committed (prefix %s), but %s: %s", entry.batch, entry.prefix, consequence, error)
