"""What the driver of a query does for each batch: begin, then commit or abort. See docs/exactly-once.md.

    begin    fences older drivers, reads the decision log, finishes what is decided and not done, writes down who drives
             now, aborts what is left; if it drives already, it reads only
    commit   decides, if each task's transaction is open with time left, commits them all, and notes that this is done
    abort    writes down that the batch is not decided any more, and aborts the tasks' transactions

The decision is one record in the log, in a transaction of the driver, and is made when that transaction is committed.
Before it nothing of the batch is ever seen; after it everything is going to be, whatever process has to see to that.

A driver may stand still between any two requests, while others act. So what it read before it had its epoch is a hint,
what it does under the epoch names that epoch, and who drives is what the log says (query_transactions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    BrokerError,
    ExactlyOnceError,
    KafkaSinkError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import commit_errors, refusals
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.delivery import Delivery
from spark_kafka_sink.exactly_once.driver_ids import is_left_unused, is_log_lost, unchanged_timeout_ms
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.log_writer import Held
from spark_kafka_sink.exactly_once.query_transactions import EPOCHS_END, QueryTransactions
from spark_kafka_sink.exactly_once.time_left import decision_ms, margin_ms
from spark_kafka_sink.exactly_once.timeout_marks import claimed_ms, unmarked_ms
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

_log = logging.getLogger(__name__)

_MINUTE_MS = 60_000
TIMEOUTS_MS = (
    *(minutes * _MINUTE_MS for minutes in (24 * 60, 12 * 60, 6 * 60, 3 * 60, 60, 30, 15, 10, 5, 2, 1)),
    *(30_000, 15_000, 10_000, 5_000),
)
"""What is tried, one after the other, to find the longest transaction that the brokers grant."""
JOB_TIMEOUT_MS_MAX = 60 * _MINUTE_MS
"""Of a job without a name: if its driver dies, no later one knows its transactions, and readers wait so long."""
LOSERS_PATIENCE_MS = 5_000.0
"""How long brokers may bring nothing while attempts that lost are ended: the batch is committed, and the next one waits
for this. What is left then is ended with that one, or by its timeout."""
_MAY_STAY_OPEN = (
    "transactions of attempts that lost may still be open. They end by their timeout; until then they hold readers back"
)
_NOT_NOTED = (
    "this could not be noted in the decision log. No reader waits for that, and there is nothing to do; `pykafka "
    "transactions` may go on showing the job"
)
_NOT_NOTED_WITH_NAME = (
    "this could not be noted in the decision log. All rows are visible. The next write with this prefix notes it; if "
    "there is none within a week, run `pykafka transactions finish`"
)


class Driver:
    """A context manager. Used by one thread."""

    def __init__(self, delivery: Delivery, *, system: System | None = None) -> None:
        self._delivery = delivery
        self._query = QueryTransactions(delivery.client, delivery.prefix, delivery.options.topic, system=system)
        self._client = self._query.client
        self._may_be_decided = False  # the commit of a decision was requested, and its outcome is not known yet

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._query.__exit__(kind, error, trace)

    # --- begin

    def begin(self, name: str) -> BatchStart:
        """`name`: of one start of a query, or of one job. Another start of the same query has another name."""
        with refusals.before_the_first_row():
            self._query.log.ask_ahead()
            seen = self._query.look_when_ended()
            self._query.log.create_if_missing(self._delivery.options.replication)
            return self._begin(name, seen)

    def _begin(self, name: str, seen: TransactionDescription | None) -> BatchStart:
        seen, hint = self._query.read(seen)
        self._refuse_newer(hint, name, seen)
        present = hint.driver
        try:
            return self._query.in_turns(lambda seen, hint: self._turn(name, seen, hint, present), seen, hint)
        except ProducerFencedError as error:
            raise refusals.contested(self._delivery.prefix, name) from error

    def _turn(self, name: str, seen: TransactionDescription | None, hint: Entry, present: str) -> BatchStart:
        self._refuse(hint, name, present)
        if is_log_lost(hint, seen):
            # Before this driver has an epoch: the id must show the loss to every driver that starts later.
            raise refusals.log_lost(self._delivery.prefix, self._query.log.topic)
        version = self._client.transaction_version
        goes_on = hint.driver == name and seen is not None and is_left_unused(seen, hint, version)
        if goes_on and seen is not None and version >= 2 and seen.id_and_epoch.epoch < EPOCHS_END:
            # In version 1 late attempts could not tell a decision under this epoch from what was before it.
            return BatchStart(hint, seen.id_and_epoch, self._delivery.is_given, seen.state)
        if not goes_on:
            self._query.look_again(seen)
        driver, granted_ms = self._fence(seen, hint.timeout_ms if goes_on else None)
        entry = self._query.entry()  # all that an older driver has written; it writes no more
        self._refuse(entry, name, present)
        if goes_on and entry == hint and driver.producer_id == hint.written_by.producer_id:
            return BatchStart(entry, driver, self._delivery.is_given)
        return self._take_over(entry, name, driver, granted_ms)

    def _fence(self, seen: TransactionDescription | None, granted_ms: int | None) -> tuple[ProducerIdAndEpoch, int]:
        """The epoch, and how long its tasks' transactions may last. `granted_ms`: what a driver that goes on has.

        One that begins asks, also if it follows another of the same start: without `register` the starts in one Spark
        count as one, and the user may have chosen another timeout, or the brokers may grant another one.
        """
        try:
            if granted_ms is not None:
                return self._query.fence(seen, (claimed_ms(granted_ms),))[0], granted_ms
            return self._query.fence(seen, self._timeouts_ms())
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                raise refusals.timeout_refused(
                    error, is_chosen=self._delivery.options.timeout_ms is not None
                ) from error
            raise

    def _refuse_newer(self, hint: Entry, name: str, seen: TransactionDescription | None) -> None:
        """Has another driver claimed the prefix between the look at its id and the look into the log?"""
        if hint.driver in ("", name) or hint.unproven:
            return
        if seen is None:  # brokers did not know the id: they have forgotten it, or it is newer than the look
            now = self._query.look()
            newer = now is not None and now.id_and_epoch.producer_id == hint.claimed.producer_id
        else:
            held = seen.id_and_epoch
            newer = hint.claimed.producer_id == held.producer_id and hint.claimed.epoch > held.epoch
        if newer:
            raise refusals.overtaken(hint, name)

    def _refuse(self, entry: Entry, name: str, present: str) -> None:
        """`present`: who drove when this driver looked first. To take over from another one is to fence one that
        began later, and may be working."""
        if entry.has_superseded(name):
            raise refusals.superseded(entry, name)
        if entry.driver not in (present, name):
            if not entry.driver:
                raise refusals.log_lost(self._delivery.prefix, self._query.log.topic)
            raise refusals.overtaken(entry, name)
        if self._delivery.writer not in (None, entry.owner_kind) and entry.owner_kind is not None:
            raise refusals.other_writer(entry)
        checkpoint = self._delivery.checkpoint
        if checkpoint and entry.checkpoint and checkpoint != entry.checkpoint:
            raise refusals.other_checkpoint(entry, checkpoint)

    def _take_over(self, entry: Entry, name: str, driver: ProducerIdAndEpoch, granted_ms: int) -> BatchStart:
        """Finish what an earlier driver had decided, write down who drives now, abort what it had not decided.

        A driver does the same with its own, if anything has happened since its last record.
        """
        found = entry
        if entry.state is EntryState.DECIDED:
            _log.info("prefix %s: %s is decided and not done; it is finished now", entry.prefix, entry.batch)
            self._commit_all(entry, driver)
            entry = entry.done()
        claim = entry.begun(name, self._delivery.checkpoint, granted_ms, driver, self._delivery.writer)
        driver, _ = self._query.take_over(driver, found, claim)
        return BatchStart(claim, driver, self._delivery.is_given)

    def _timeouts_ms(self) -> Sequence[int]:
        """What to ask for: what the user wants, or else all, the longest first."""
        if self._delivery.options.timeout_ms is not None:
            return (unmarked_ms(self._delivery.options.timeout_ms),)
        longest_ms = JOB_TIMEOUT_MS_MAX if self._delivery.is_forgotten else TIMEOUTS_MS[0]
        return tuple(timeout_ms for timeout_ms in TIMEOUTS_MS if timeout_ms <= longest_ms)

    # --- commit

    def commit(
        self, start: BatchStart, batch: Batch, transactions: Sequence[TransactionIdentity], content: Content
    ) -> None:
        """Decide that the batch is committed, and commit it. Without transactions there is nothing to decide."""
        if not transactions:
            return
        self._query.driver_number = start.entry.driver_number
        entry = start.entry.decided(batch, content, tuple(transactions))
        held = self._decide(start, entry)
        held, losers = self._carry_out(held, entry)
        self._end_losers(held, entry, losers)

    def _decide(self, start: BatchStart, entry: Entry) -> Held:
        """A task's transaction that has ended, or is about to, is found before the decision, not after it."""
        with commit_errors.fenced_before_the_decision(entry):
            # In version 1 the state that the start saw would be that of the decision as well: late attempts would take
            # the batch for an open one. A new epoch is no way out: brokers give one and the same to all who ask under
            # the epoch of the start, so an abort that stands still may have it too, and would end what is decided here.
            if start.state != EMPTY and self._query.writes_in_version_1():
                raise commit_errors.downgraded(entry)
            try:
                return self._query.write_after(Held(start.driver), start.entry, entry, self._write_decision)
            except ProducerFencedError:
                raise
            except KafkaSinkError as error:
                if not self._may_be_decided:
                    raise
                raise commit_errors.decision_in_doubt(entry, error) from error

    def _write_decision(self, held: Held, entry: Entry) -> Held:
        """Look whether the decision may be made while it is written, and then commit or abort it.

        Brokers, and this driver, give up before the tasks' transactions are in danger.
        """
        self._may_be_decided = False  # of an earlier attempt it is known by now that it did not decide
        writing = self._query.start_write(held, entry)
        try:
            found = describe_transactions(self._client, [each.transactional_id for each in entry.transactions])
        except KafkaSinkError:
            writing.abandon()
            raise
        writing.wait()
        refusal = self._refusal(entry, found)
        if refusal is not None:
            # Is a newer driver the reason? Then brokers refuse the abort.
            writing.abort()
            raise refusal
        self._may_be_decided = True
        return writing.commit(decision_ms(entry.timeout_ms))

    def _carry_out(self, held: Held, entry: Entry) -> tuple[Held, list[TransactionDescription] | None]:
        """Commit all, and note that this is done. Returns transactions of attempts that lost, which are left to end;
        None if they could not be listed."""
        losers: list[TransactionDescription] | None = None
        # The list is asked for when the batch is decided: no attempt that had no id till then begins any more. It is
        # there before it is noted that the batch is done. That can be written only if no newer driver has begun till
        # then, so what is listed is none of a newer driver's.
        with commit_errors.fenced_after_the_decision(entry):
            self._commit_all(entry, held.driver, then_list=True)
        with _warned_of(entry, _MAY_STAY_OPEN):
            losers = self._query.leftovers({each.transactional_id for each in entry.transactions})
        is_forgotten = self._delivery.is_forgotten
        if losers or losers is None or not is_forgotten:
            with self._note_may_fail(entry):
                held = self._query.write_after(held, entry, entry.done(), self._query.write)
        return held, losers

    def _note_may_fail(self, entry: Entry) -> AbstractContextManager[None]:
        """A stream's driver that is fenced must stop. A job has succeeded: if it failed now, a scheduler would run it
        again, and a job without a key would write all of its rows twice."""
        if entry.batch.query is not None:
            return commit_errors.failed_after_the_commit(entry)
        return _warned_of(entry, _NOT_NOTED if self._delivery.is_forgotten else _NOT_NOTED_WITH_NAME)

    def _end_losers(self, held: Held, entry: Entry, losers: Sequence[TransactionDescription] | None) -> None:
        """A job without a name is removed from the log when it has no open transaction left. Until then the log shows
        `pykafka transactions` whether its batch was decided."""
        if losers is None:
            return
        with _warned_of(entry, _MAY_STAY_OPEN):
            self._query.end_listed(losers, LOSERS_PATIENCE_MS)
            if self._delivery.is_forgotten:
                with _warned_of(entry, _NOT_NOTED):
                    self._query.write(held, None)

    def _refusal(self, entry: Entry, found: Mapping[str, TransactionDescription]) -> ExactlyOnceError | None:
        """Why the batch must not be decided. `found`: what brokers say of its tasks' transactions."""
        faults = []
        for each in entry.transactions:
            now = found.get(each.transactional_id)
            if now is None:
                faults.append(f"{each.transactional_id}: the brokers do not know it")
            elif not now.is_open or now.id_and_epoch != each.id_and_epoch:
                epochs = f"epoch {now.id_and_epoch.epoch} in place of {each.epoch}"
                faults.append(f"{each.transactional_id}: {now.state}, with {epochs}")
        return commit_errors.not_open(entry, faults) if faults else self._too_late(entry, found)

    def _too_late(self, entry: Entry, found: Mapping[str, TransactionDescription]) -> ExactlyOnceError | None:
        """By the clocks of the brokers, which say when it began, and of this machine."""
        now_ms = self._client.wall_ms()
        for each in found.values():
            left_ms = each.started_ms + each.timeout_ms - now_ms
            if each.started_ms >= 0 and left_ms < margin_ms(each.timeout_ms):
                return commit_errors.too_late(entry, each, left_ms)
        return None

    def _commit_all(self, entry: Entry, driver: ProducerIdAndEpoch, *, then_list: bool = False) -> None:
        try:
            refused = self._query.commit(entry, driver, then_list=then_list)
        except ProducerFencedError:
            raise
        except KafkaSinkError as error:
            raise commit_errors.commit_not_finished(entry, error) from error
        if refused:
            raise commit_errors.not_committed(entry, refused)

    # --- abort

    def abort(self, start: BatchStart, batch: Batch) -> bool:
        """Was the batch aborted? Not if it is decided or committed already, or if a newer driver has taken over."""
        if start.entry.has_committed(batch):
            return False
        self._query.driver_number = start.entry.driver_number
        return self._abort_if(start.entry.is_of_one_driver_with, self._query.look_when_ended())

    def abort_unreported(self, name: str) -> bool:
        """Abort what the tasks of this start of the query have left open, of a batch of which none has reported.

        False if something is decided, or being decided, or a newer driver has taken over.
        """
        seen, _ = self._query.read(self._query.look_when_ended())
        if seen is not None and seen.state == ONGOING:
            return False
        return self._abort_if(lambda entry: entry.is_of_start(name) and entry.state is not EntryState.DECIDED, seen)

    def _abort_if(self, is_ours: Callable[[Entry], bool], seen: TransactionDescription | None) -> bool:
        """It is the claim that makes sure that the batch is not decided any more: a commit that stands still finds an
        entry after its own."""
        claims: list[Entry] = []

        def is_ours_still(entry: Entry) -> bool:
            return is_ours(entry) or any(map(entry.is_of_one_driver_with, claims))

        try:
            return self._query.in_turns(lambda seen, hint: self._aborted(is_ours_still, claims, seen, hint), seen)
        except ProducerFencedError:
            return False

    def _aborted(
        self,
        is_ours: Callable[[Entry], bool],
        claims: list[Entry],
        seen: TransactionDescription | None,
        hint: Entry,
    ) -> bool:
        """`claims`: of earlier turns, which were fenced after their claim."""
        if not is_ours(hint):
            return False
        # From now on no attempt of the batch begins.
        driver, _ = self._query.fence(seen, (unchanged_timeout_ms(seen, hint),))
        entry = self._query.entry()
        if not is_ours(entry):
            return False
        claim = entry.begun(entry.driver, "", entry.timeout_ms, driver)
        claims.append(claim)
        driver, _ = self._query.take_over(driver, entry, claim)
        if self._delivery.is_forgotten:
            self._query.write(Held(driver), None)
        return True


@contextmanager
def _warned_of(entry: Entry, what: str) -> Iterator[None]:
    """Tidying up after the commit. The rows are visible: a job that failed now would be run again, and double them."""
    try:
        yield
    except KafkaSinkError as error:
        _log.warning("%s is committed (prefix %s), but %s: %s", entry.batch, entry.prefix, what, error)
