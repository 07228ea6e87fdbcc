"""What the driver of a query does for each batch: begin, then commit or abort. See docs/exactly-once.md.

    begin    fences older drivers, reads the decision log, finishes what is decided and not done, aborts what is left;
             if it drives already, it reads only
    commit   makes sure that each task's transaction is open, decides, commits them all, and notes that this is done
    abort    aborts the tasks' transactions, unless it is decided that they are to be committed

The decision is one record in the log, written in a transaction of the driver. Before it nothing of the batch is ever
seen; after it everything is going to be, whatever process has to see to that.

A driver may stand still between any two requests, while others act. So what it read before it had its epoch is a hint,
and what it does under the epoch names that epoch (query_transactions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.batch_start import BatchStart, Delivery
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.names import GENERATIONS, task_of
from spark_kafka_sink.exactly_once.query_transactions import (
    Held,
    QueryTransactions,
    claimed_timeout_ms,
    has_claimed,
    is_left_unused,
)
from spark_kafka_sink.exactly_once.transactions_client import Listing
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_description import (
    COMPLETE_ABORT,
    EMPTY,
    ONGOING,
    TransactionDescription,
)
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.protocol import error_codes

_log = logging.getLogger(__name__)

_MINUTE_MS = 60_000
TIMEOUTS_MS = (
    *(minutes * _MINUTE_MS for minutes in (24 * 60, 12 * 60, 6 * 60, 3 * 60, 60, 30, 15, 10, 5, 2, 1)),
    *(30_000, 15_000, 10_000, 5_000),
)
"""What is tried, one after the other, to find the longest transaction that the brokers grant."""
JOB_TIMEOUT_MS_MAX = 60 * _MINUTE_MS
"""Of a job without a name: if its driver dies, no later one knows its transactions, and readers wait so long."""
MARGIN_MS_MAX = 10_000
"""So much of the transactions' timeout must be left when the batch is decided, or a quarter of it if that is less."""
_TURNS_MAX = 5
_MAY_STAY_OPEN = (
    "transactions of attempts that lost may still be open. They end by their timeout; until then they hold readers back"
)
_NOT_NOTED = (
    "this could not be noted in the decision log. No reader waits for that, and there is nothing to do; `pykafka "
    "transactions` may go on showing the job"
)


class Driver:
    """A context manager. Used by one thread."""

    def __init__(self, delivery: Delivery, *, system: System | None = None) -> None:
        self._delivery = delivery
        self._query = QueryTransactions(delivery.options, delivery.prefix, delivery.topic, system=system)
        self._client = self._query.client

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
            seen = self._query.look_when_ended(self._query.log.ask_ahead)
            self._query.log.create_if_missing(self._delivery.replication)
            return self._begin(name, seen)

    def _begin(self, name: str, seen: TransactionDescription | None) -> BatchStart:
        """Begin in turns: one that another driver has spoiled is followed by another, as long as none has won."""
        present: str | None = None
        for _ in range(_TURNS_MAX):
            hint = self._query.entry(None if seen is None else seen.id_and_epoch.producer_id)
            if present is None:
                self._refuse_newer(hint, name, seen)
                present = hint.driver
            self._refuse(hint, name, present)
            if not hint.generation and seen is not None and has_claimed(seen):
                # Before it has an epoch: the id must say so to whatever is started after this.
                raise refusals.log_lost(self._delivery.prefix, self._query.log.topic)
            if hint.driver == name and seen is not None and self._may_go_on(seen, hint):
                return BatchStart(hint, seen.id_and_epoch, self._delivery.is_given, seen.state)
            try:
                return self._turn(name, seen, hint, present)
            except ProducerFencedError as error:
                _log.info("prefix %s: another driver begins at the same time (%s)", self._delivery.prefix, error)
                seen = self._query.look_when_ended()
        raise refusals.contested(self._delivery.prefix, name)

    def _may_go_on(self, seen: TransactionDescription, entry: Entry) -> bool:
        """In version 1 late attempts could not tell a decision under the epoch that is seen from what was before it."""
        return self._client.transaction_version >= 2 and is_left_unused(seen, entry)

    def _turn(self, name: str, seen: TransactionDescription | None, hint: Entry, present: str) -> BatchStart:
        goes_on = hint.driver == name and hint.timeout_ms > 0
        timeouts_ms = (claimed_timeout_ms(hint.timeout_ms),) if goes_on else self._timeouts_ms()
        try:
            driver, granted_ms = self._query.fence(seen, timeouts_ms)
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                raise refusals.timeout_refused(error) from error
            raise
        entry = self._query.entry(driver.producer_id)  # all that an older driver has written; it writes no more
        self._refuse(entry, name, present)
        if entry.driver == name and entry.state is not EntryState.DECIDED:
            if entry.is_claim:  # by which it took over, and perhaps came no further
                self._query.abort(self._query.leftovers(), driver)
            return BatchStart(entry, driver, self._delivery.is_given)
        return self._take_over(entry, name, driver, hint.timeout_ms if goes_on else granted_ms)

    def _refuse_newer(self, hint: Entry, name: str, seen: TransactionDescription | None) -> None:
        """Has another driver claimed the prefix between the look at its id and the look into the log?"""
        if hint.driver in ("", name):
            return
        if seen is None:  # brokers did not know the id: they have forgotten it, or it is newer than the look
            newer = self._query.look() is not None
        else:
            producer_id, epoch = hint.claimed
            newer = producer_id == seen.id_and_epoch.producer_id and epoch > seen.id_and_epoch.epoch
        if newer:
            raise refusals.overtaken(hint, name)

    def _refuse(self, entry: Entry, name: str, present: str) -> None:
        """`present`: who drove when this driver looked first. To take over from another one is to fence one that
        began later, and works."""
        if entry.has_superseded(name):
            raise refusals.superseded(entry, name)
        if entry.driver not in (present, name):
            raise refusals.overtaken(entry, name)
        checkpoint = self._delivery.checkpoint
        if checkpoint and entry.checkpoint and checkpoint != entry.checkpoint:
            raise refusals.other_checkpoint(entry, checkpoint)

    def _take_over(self, entry: Entry, name: str, driver: ProducerIdAndEpoch, granted_ms: int) -> BatchStart:
        """Of a driver before: finish what it had decided, write down who drives now, abort what it had not decided."""
        found = entry
        if entry.state is EntryState.DECIDED:
            _log.info("prefix %s: %s is decided and not done; it is finished now", entry.prefix, entry.batch)
            self._commit_all(entry, driver)
            entry = entry.done()
        claim = entry.begun(name, self._delivery.checkpoint, granted_ms, (driver.producer_id, driver.epoch))
        driver = self._query.claim(driver, found, claim)
        self._query.abort(self._query.leftovers(), driver)
        return BatchStart(claim, driver, self._delivery.is_given)

    def _timeouts_ms(self) -> Sequence[int]:
        """What to ask for: what the user wants, or else all, the longest first."""
        if self._delivery.timeout_ms is not None:
            return (self._delivery.timeout_ms,)
        longest_ms = JOB_TIMEOUT_MS_MAX if self._delivery.is_forgotten else TIMEOUTS_MS[0]
        return tuple(timeout_ms for timeout_ms in TIMEOUTS_MS if timeout_ms <= longest_ms)

    # --- commit

    def commit(
        self, start: BatchStart, batch: Batch, transactions: Sequence[TransactionIdentity], content: Content
    ) -> None:
        """Decide that the batch is committed, and commit it. Without transactions there is nothing to decide."""
        if not transactions:
            return
        entry = start.entry.decided(batch, content, tuple(transactions))
        held = self._decide(start, entry)
        held, losers = self._carry_out(held, entry)
        self._end_losers(held, entry, losers)

    def _decide(self, start: BatchStart, entry: Entry) -> Held:
        with refusals.fenced_before_the_decision(entry):
            self._ensure_open(start, entry)
            # In version 1 the state that the start saw would be that of the decision as well: late attempts would take
            # the batch for an open one. A new epoch is no way out: brokers give one and the same to all who ask under
            # the epoch of the start, so an abort that stands still may have it too, and would end what is decided here.
            if start.state != EMPTY and self._query.writes_in_version_1():
                raise refusals.downgraded(entry)
            return self._query.write(Held(start.driver), entry)

    def _carry_out(self, held: Held, entry: Entry) -> tuple[Held, list[TransactionDescription] | None]:
        """Commit all, and note that this is done. Returns transactions of attempts that lost, which are left to end;
        None if they could not be listed."""
        losers: list[TransactionDescription] | None = None
        listing: list[Listing] = []
        # The list is asked for when the batch is decided: no attempt that had no id till then begins any more. It is
        # there before it is noted that the batch is done. That can be written only if no newer driver has begun till
        # then, so what is listed is none of a newer driver's.
        with refusals.fenced_after_the_decision(entry):
            self._commit_all(entry, held.driver, lambda: listing.append(self._query.list_ahead()))
        with _warned_of(entry, _MAY_STAY_OPEN):
            losers = self._query.leftovers(listing[0], {each.transactional_id for each in entry.transactions})
        is_forgotten = self._delivery.is_forgotten
        if losers or losers is None or not is_forgotten:
            with _warned_of(entry, _NOT_NOTED) if is_forgotten else refusals.fenced_after_the_commit(entry):
                held = self._query.write(held, entry.done())
        return held, losers

    def _end_losers(self, held: Held, entry: Entry, losers: Sequence[TransactionDescription] | None) -> None:
        """A job is forgotten when nothing of it is open any more: till then the next job finds it in the log, and frees
        what it has left."""
        if losers is None:
            return
        with _warned_of(entry, _MAY_STAY_OPEN):
            self._query.end_listed(losers)
            if self._delivery.is_forgotten:
                with _warned_of(entry, _NOT_NOTED):
                    self._query.write(held, None)

    def _ensure_open(self, start: BatchStart, entry: Entry) -> None:
        """A transaction that has ended by itself, or is about to, is found before the decision, not after it."""
        ids = [each.transactional_id for each in entry.transactions]
        found = self._client.describe([*ids, start.driver_id])
        driver = found.pop(start.driver_id, None)
        faults = []
        for name, each in zip(ids, entry.transactions, strict=True):
            now = found.get(name)
            if now is None:
                faults.append(f"{name}: the brokers do not know it")
            elif not now.is_open or now.id_and_epoch != (each.producer_id, each.epoch):
                faults.append(f"{name}: {now.state}, with epoch {now.id_and_epoch.epoch} in place of {each.epoch}")
        # If they are not open, a newer driver may be the reason, which has begun since the answer.
        if not start.awaits_tasks(driver) or (faults and not start.awaits_tasks(self._query.look())):
            raise refusals.fenced(start.driver_id)
        if faults:
            raise refusals.not_open(entry, faults)
        self._ensure_time_left(entry, found.values())

    def _ensure_time_left(self, entry: Entry, found: Iterable[TransactionDescription]) -> None:
        """By the clocks of the brokers, which say when it began, and of this machine."""
        now_ms = self._client.blocking.wall_ms()
        for each in found:
            left_ms = each.started_ms + each.timeout_ms - now_ms
            if each.started_ms >= 0 and left_ms < min(MARGIN_MS_MAX, each.timeout_ms / 4):
                raise refusals.too_late(entry, each, left_ms)

    def _commit_all(
        self, entry: Entry, driver: ProducerIdAndEpoch, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        refused = self._query.commit(entry, driver, meanwhile)
        if refused:
            raise refusals.not_committed(entry, refused)

    # --- abort

    def abort(self, start: BatchStart, batch: Batch) -> bool:
        """Was the batch aborted? Not if it is decided already, or if a newer driver has taken over."""
        try:
            return self._abort(start, batch)
        except ProducerFencedError:
            return False

    def _abort(self, start: BatchStart, batch: Batch) -> bool:
        if not self._take_back_decision(start):
            return False
        driver = self._query.renew(start.driver, start.entry.timeout_ms)  # from now on no attempt of the batch begins
        entry = self._query.entry(driver.producer_id)
        if entry.state is EntryState.DECIDED or entry.has_committed(batch):
            return False
        self._query.abort(self._of_generation(start.entry), driver)
        if self._delivery.is_forgotten:
            self._query.write(Held(driver), None)
        return True

    def _take_back_decision(self, start: BatchStart) -> bool:
        """False if the decision has been made, or may not be made any more."""
        known = self._query.look()
        if known is None or known.id_and_epoch != start.driver:
            return False
        if known.state == ONGOING:
            deciding = TransactionIdentity(start.driver_id, *start.driver, self._client.transaction_version)
            return not self._client.end([deciding], commit=False)
        return known.state in (start.state, COMPLETE_ABORT)

    def abort_unreported(self, name: str) -> bool:
        """Abort what the tasks of this driver have left open, of a batch of which none has reported.

        False if something is decided, or a newer driver has taken over.
        """
        try:
            return self._abort_unreported(name)
        except ProducerFencedError:
            return False

    def _abort_unreported(self, name: str) -> bool:
        seen = self._query.look()
        if seen is None:
            return False
        entry = self._query.entry(seen.id_and_epoch.producer_id)
        if entry.driver != name or entry.state is EntryState.DECIDED:
            return False
        if seen.state != EMPTY and not is_left_unused(seen, entry):
            return False
        self._query.abort(self._of_generation(entry), seen.id_and_epoch, seen.state)
        return True

    def _of_generation(self, entry: Entry) -> list[TransactionDescription]:
        """What this driver's tasks have left. A newer driver's have ids of the next generation."""
        ours = entry.generation % GENERATIONS
        found = ((task_of(entry.prefix, each.transactional_id), each) for each in self._query.leftovers())
        return [each for task, each in found if task is not None and task.generation == ours]


@contextmanager
def _warned_of(entry: Entry, what: str) -> Iterator[None]:
    """Tidying up after the commit. The rows are visible: a job that failed now would be run again, and double them."""
    try:
        yield
    except KafkaSinkError as error:
        _log.warning("%s is committed (prefix %s), but %s: %s", entry.batch, entry.prefix, what, error)
