"""What the driver of a query does for each batch: begin, then commit or abort. See docs/exactly-once.md.

    begin    fences older drivers, reads the decision log, finishes what is decided and not done, aborts what is left
    commit   makes sure that each task's transaction is open, decides, commits them all, and notes that this is done
    abort    aborts the tasks' transactions, unless it is decided that they are to be committed

The decision is one record in the log, written in a transaction of the driver. Before it nothing of the batch is ever
seen; after it everything is going to be, whatever process has to see to that.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import refusals, steps
from spark_kafka_sink.exactly_once.batch_start import BatchStart, Delivery
from spark_kafka_sink.exactly_once.decision_log import DRIVER_TIMEOUT_MS
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState, TaskTransaction
from spark_kafka_sink.exactly_once.names import GENERATIONS, task_id, task_of
from spark_kafka_sink.exactly_once.prefix import Prefix
from spark_kafka_sink.exactly_once.transactions_client import TransactionDescription
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.sending.open_transaction import PreparedTransaction
from spark_kafka_sink.protocol import error_codes

_log = logging.getLogger(__name__)

_MINUTE_MS = 60_000
TIMEOUTS_MS = tuple(minutes * _MINUTE_MS for minutes in (24 * 60, 12 * 60, 6 * 60, 3 * 60, 60, 30, 15, 10, 5, 2, 1))
"""What is tried, one after the other, to find the longest transaction that the brokers grant."""


class Driver:
    """A context manager. Used by one thread."""

    def __init__(self, delivery: Delivery, *, system: System | None = None) -> None:
        self._delivery = delivery
        self._prefix = Prefix(delivery.options, delivery.prefix, delivery.topic, system=system)
        self._client, self._log = self._prefix.client, self._prefix.log

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._prefix.client.close()

    # --- begin

    def begin(self, name: str) -> BatchStart:
        """`name`: of this driver, another one for each process that drives."""
        steps.before(steps.START)
        with refusals.before_the_first_row():
            self._log.create_if_missing(self._delivery.replication)
            start = self._alone() if self._delivery.is_forgotten else self._take_turn(name)
        steps.after(steps.START)
        return start

    def _alone(self) -> BatchStart:
        """Begin under a prefix that no other driver has: there is nothing to take over."""
        timeout_ms = self._granted_timeout_ms()
        entry = Entry(self._delivery.prefix, timeout_ms=timeout_ms)
        driver = self._prefix.fence()
        self._client.describe([self._prefix.driver_id])  # brokers that cannot would be found out by the tasks
        return BatchStart(entry, driver)

    def _take_turn(self, name: str) -> BatchStart:
        self._refuse(self._prefix.of(self._log.glance()), name)  # the driver that has the prefix now is not harmed
        while True:
            driver = self._prefix.fence()
            entries = self._log.read()
            entry = self._prefix.of(entries)
            self._refuse(entry, name)
            if entry.drivers[-1:] == (name,) and entry.state is not EntryState.DECIDED:
                return BatchStart(entry, driver, self._delivery.is_given, _of_queries_elsewhere(entries, entry.prefix))
            # What is written here uses up sequences of the epoch, so another one is fetched after it.
            self._take_over(entry, name)

    def _refuse(self, entry: Entry, name: str) -> None:
        if entry.has_superseded(name):
            raise refusals.superseded(entry, name)
        checkpoint = self._delivery.checkpoint
        if checkpoint and entry.checkpoint and checkpoint != entry.checkpoint:
            raise refusals.other_checkpoint(entry, checkpoint)

    def _take_over(self, entry: Entry, name: str) -> None:
        """Of a driver before: finish what it had decided, abort what it had not, and write down who drives now."""
        timeout_ms = self._granted_timeout_ms()
        driver = self._prefix.fence()
        if entry.state is EntryState.DECIDED:
            _log.info("prefix %s: %s is decided and not done; it is finished now", entry.prefix, entry.batch)
            self._commit_all(entry)
            entry = entry.done()
        self._prefix.abort(self._prefix.leftovers())
        if entry.drivers[-1:] != (name,):
            entry = entry.begun(name, self._delivery.checkpoint, timeout_ms)
        self._prefix.write(driver, entry)

    def _granted_timeout_ms(self) -> int:
        """The longest transaction that the brokers grant, or the one that the user wants."""
        wanted = self._delivery.timeout_ms
        *longer, last = TIMEOUTS_MS if wanted is None else (wanted,)
        for timeout_ms in longer:
            if self._refused_timeout(timeout_ms) is None:
                return timeout_ms
        refused = self._refused_timeout(last)
        if refused is not None:
            raise refusals.timeout_refused(refused) from refused
        return last

    def _refused_timeout(self, timeout_ms: int) -> BrokerError | None:
        try:
            self._client.init_producer_id(self._prefix.driver_id, timeout_ms)
        except BrokerError as error:
            if error.code != error_codes.INVALID_TRANSACTION_TIMEOUT:
                raise
            return error
        return None

    # --- commit

    def commit(self, start: BatchStart, batch: Batch, transactions: Sequence[TaskTransaction]) -> None:
        """Decide that the batch is committed, and commit it. Without transactions there is nothing to decide."""
        from spark_kafka_sink.exactly_once.decision_writer import DecisionWriter

        if not transactions:
            return
        steps.before(steps.DECIDE)
        start.is_committed(batch)  # raises what must not be
        entry = start.entry.decided(batch, tuple(transactions))
        self._ensure_open(start, entry)
        delivery = self._delivery
        with DecisionWriter(delivery.options, delivery.topic, start.prefix, start.driver) as writer:
            with refusals.fenced_before_the_decision(entry):
                writer.write(entry)
            steps.after(steps.DECIDE)
            steps.before(steps.COMMIT)
            self._commit_all(entry)
            losers: list[TransactionDescription] = []
            with _warned_of(entry):
                # Listed before it is noted that the batch is done: until then no newer driver lets tasks begin.
                losers = self._prefix.leftovers()
            if delivery.is_forgotten:
                with _warned_of(entry):
                    writer.forget()
            else:
                with refusals.fenced_after_the_commit(entry):
                    writer.write(entry.done())
            steps.after(steps.COMMIT)
        steps.before(steps.LOSERS)
        with _warned_of(entry):
            self._prefix.abort(losers)
        steps.after(steps.LOSERS)

    def _ensure_open(self, start: BatchStart, entry: Entry) -> None:
        """A transaction that has ended by itself is found before the decision, not after it."""
        ids = [task_id(entry.prefix, each.task) for each in entry.transactions]
        found = self._client.describe([start.driver_id, *ids])
        with refusals.fenced_before_the_decision(entry):
            if start.driver_id not in found or found[start.driver_id].id_and_epoch != start.driver:
                raise refusals.fenced(start.driver_id)
        faults = []
        for name, each in zip(ids, entry.transactions, strict=True):
            now = found.get(name)
            if now is None:
                faults.append(f"{name}: the brokers do not know it")
            elif not now.is_open or now.id_and_epoch != (each.producer_id, each.epoch):
                faults.append(f"{name}: {now.state}, with epoch {now.id_and_epoch.epoch} in place of {each.epoch}")
        if faults:
            raise refusals.not_open(entry, faults)

    def _commit_all(self, entry: Entry) -> None:
        refused = self._prefix.commit(entry)
        if refused:
            raise refusals.commit_lost(entry, refused)

    # --- abort

    def abort(self, start: BatchStart, batch: Batch, transactions: Sequence[TaskTransaction]) -> bool:
        """Was the batch aborted? Not if it is decided already, or if a newer driver has taken over."""
        steps.before(steps.ABORT)
        aborted = self._abort(start, batch, transactions)
        steps.after(steps.ABORT)
        return aborted

    def abort_unreported(self, name: str) -> bool:
        """Abort what the tasks of this driver have left open, of a batch of which none has reported.

        False if something is decided, or a newer driver has taken over. One that takes over meanwhile is left alone:
        its tasks have ids of the next generation.
        """
        steps.before(steps.ABORT)
        entry = self._prefix.entry()
        is_ours = entry.drivers[-1:] == (name,) and entry.state is not EntryState.DECIDED
        if is_ours:
            ours = entry.generation % GENERATIONS
            found = ((task_of(entry.prefix, each.transactional_id), each) for each in self._prefix.leftovers())
            self._prefix.abort([each for task, each in found if task is not None and task.generation == ours])
        steps.after(steps.ABORT)
        return is_ours

    def _abort(self, start: BatchStart, batch: Batch, transactions: Sequence[TaskTransaction]) -> bool:
        if not self._still_drives(start):
            return False
        entry = self._prefix.entry()
        if entry.state is EntryState.DECIDED or entry.has_committed(batch):
            return False
        prepared = [each.prepared(start.prefix) for each in transactions]
        self._client.abort({each.transactional_id: each.id_and_epoch for each in prepared})
        self._prefix.abort(self._prefix.leftovers())
        return True

    def _still_drives(self, start: BatchStart) -> bool:
        """Has the driver the epoch that it began under? If so, what it has left open itself is aborted.

        Another epoch is that of a newer driver, or follows from a decision.
        """
        known = self._client.describe([start.driver_id]).get(start.driver_id)
        if known is None or known.id_and_epoch != start.driver:
            return False
        if known.is_open:
            deciding = PreparedTransaction(start.driver_id, *start.driver, self._client.transaction_version)
            if self._client.end([deciding], commit=False):
                return False
        try:
            self._client.init_producer_id(start.driver_id, DRIVER_TIMEOUT_MS, start.driver)
        except ProducerFencedError:
            return False
        return True


@contextmanager
def _warned_of(entry: Entry) -> Iterator[None]:
    """Tidying up after the commit. The rows are visible: a job that failed now would be run again, and double them."""
    try:
        yield
    except KafkaSinkError as error:
        _log.warning(
            "%s is committed, but what is left under the prefix %s could not be tidied up: %s. Transactions of "
            "attempts that lost end by their timeout; until then they hold readers back.",
            entry.batch,
            entry.prefix,
            error,
        )


def _of_queries_elsewhere(entries: Mapping[str, Entry], prefix: str) -> dict[str, Entry]:
    """The last that is decided of each query under any other prefix."""
    found: dict[str, Entry] = {}
    for entry in sorted(entries.values(), key=lambda each: each.batch.number or 0):
        if entry.batch.query is not None and entry.prefix != prefix:
            found[entry.batch.query] = dataclasses.replace(entry, transactions=(), drivers=(), keys=())
    return found
