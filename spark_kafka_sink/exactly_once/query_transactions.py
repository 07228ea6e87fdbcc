"""QueryTransactions: the transactions under one prefix, the identity of its driver, and what the log says of them.

A driver acts under an identity, the producer id and epoch that it holds of `<prefix>-driver`, and so does a person.
Each step names the identity that it was taken under, and is refused if a newer one exists:

    look         who holds the id now, and has no transaction that is just ending; a hint, no step relies on it
    fence        get the next epoch, unless it was given to another since the look
    claim        write an entry in place of the one that was found, and read it back: it counts only if nothing was
                 written in between, and of several that hold one epoch one succeeds
    take over    list the open transactions of tasks, claim the prefix, end exactly what was listed
    write        write an entry under an epoch that no other can decide under
    write after  the same after an entry of one's own; who is refused, and finds that entry still the newest, claims

Epochs stop writers. Who drives is what the log says, since an epoch alone says too little:

    Two may hold one. Kafka takes a request for the next epoch that names the epoch before the present one for the
    repetition of a lost request, and answers with the present epoch. So two drivers that both saw epoch 5 and both ask
    for the next one both hold 6. But sequence numbers are used once: a decision is a batch of one record, a claim one
    of two, so of two such batches with sequence 0 the second is refused, and of two claims the second is dropped as a
    repetition: its writer reads back another's name.

    An older driver may fence a newer one. While a transaction is open Kafka does not compare epochs: it aborts what is
    open, moves the epoch on, and refuses the older one only when that asks again. The newer one is refused then in the
    middle of its record. It finds that no other has claimed the prefix since, and goes on.

    What was read, or described, may be old. A broker that was suspended answers for a moment as if it still were the
    leader, or the coordinator. To write is to ask the true one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.clients import lent
from spark_kafka_sink.exactly_once.coordinator_questions import pause_ms
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.entry_json import encoded
from spark_kafka_sink.exactly_once.log_writer import Held, OpenWrite
from spark_kafka_sink.exactly_once.names import driver_id, task_of
from spark_kafka_sink.exactly_once.timeout_marks import claimed_ms, says_claimed, says_fenced
from spark_kafka_sink.exactly_once.transactions_client import Listing, TransactionsClient, expected_of
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.transaction_description import (
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    TransactionDescription,
)
from spark_kafka_sink.protocol import error_codes

_log = logging.getLogger(__name__)

EPOCHS_END = 32_700
"""Of 32,766 epochs of a producer id. From here on who gets the next epoch goes on under the next producer id. A batch,
and starts that die, have what is left."""
TURNS_MAX = 20
"""Two drivers that take over from each other may fence each other in several turns. After too few both give way."""

ResultT = TypeVar("ResultT")


class _TimeoutRefusedError(Exception):
    """Brokers do not grant transactions that last so long."""


class QueryTransactions:
    """A context manager. Used by one thread. `options`: of a producer."""

    def __init__(self, options: Mapping[str, str], prefix: str, topic: str, *, system: System | None = None) -> None:
        config: ClientConfig = ProducerConfig.parse(options).client_config()
        self.prefix = prefix
        self.driver_id = driver_id(prefix)
        self._is_claimed = False  # as the last look has shown: then the id has written into the log
        self._known_ids: list[int] = []  # producer ids that the driver's id was seen to have, the newest first
        self._listing: Listing | None = None  # asked for, and not taken yet
        with contextlib.ExitStack() as opened:
            self.client: TransactionsClient = opened.enter_context(lent(config, system=system))
            self.log = DecisionLog(config, topic, self.client.blocking)
            self._opened = opened.pop_all()

    def __enter__(self) -> QueryTransactions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    # --- the identity, and the log

    def look(self, meanwhile: Callable[[], None] = lambda: None) -> TransactionDescription | None:
        """Who holds the driver's id. None if brokers do not know it."""
        seen = self.client.describe([self.driver_id], meanwhile).get(self.driver_id)
        self._is_claimed = seen is not None and has_claimed(seen)
        if seen is not None:
            self._note(seen.id_and_epoch.producer_id)
        return seen

    def _note(self, producer_id: int) -> None:
        if producer_id not in self._known_ids:
            self._known_ids.insert(0, producer_id)

    def look_when_ended(self, meanwhile: Callable[[], None] = lambda: None) -> TransactionDescription | None:
        """`look`, as soon as no transaction of the id is ending.

        Brokers answer the end of a transaction before they write its markers, and the log says nothing of it until
        then: a claim of a driver that has died would be found after the next look, as if it were of a newer driver.
        """
        patience = self.client.blocking.patience(f"the end of a transaction of {self.driver_id}")
        seen, looks = self.look(meanwhile), 0
        while seen is not None and seen.is_ending:
            patience.wait(None, pause_ms(looks))
            seen, looks = self.look(), looks + 1
        return seen

    def look_again(self, seen: TransactionDescription | None) -> None:
        """Just before `fence`. ProducerFencedError if something has happened to the id since: another one works.

        The comparison of `fence` does not hold while a transaction is open.
        """
        now = self.look()
        if _identity(now) != _identity(seen):
            raise refusals.fenced(self.driver_id)

    def in_turns(
        self, turn: Callable[[TransactionDescription | None], ResultT], seen: TransactionDescription | None
    ) -> ResultT:
        """Call `turn` with a look at the id, and return its result. A turn that another driver has fenced is followed
        by another turn; ProducerFencedError after TURNS_MAX of them."""
        turns_left = TURNS_MAX
        while True:
            turns_left -= 1
            try:
                return turn(seen)
            except ProducerFencedError as error:
                if not turns_left:
                    raise
                _log.info("prefix %s: another driver begins at the same time (%s)", self.prefix, error)
                seen = self.look_when_ended()

    def fence(self, seen: TransactionDescription | None, timeouts_ms: Sequence[int]) -> tuple[ProducerIdAndEpoch, int]:
        """The next epoch, and the first of these timeouts that brokers grant.

        ProducerFencedError if another has got an epoch since the look. A timeout that is refused changes nothing.
        """
        driver, granted_ms = self._granted(expected_of(seen), timeouts_ms)
        if seen is not None and has_claimed(seen) and not says_claimed(granted_ms):
            driver = self.renew(driver, granted_ms)  # the id says still that it has claimed, if the log is lost now
        if driver.epoch >= EPOCHS_END:
            driver = self._under_next_id(driver, granted_ms)
        return driver, granted_ms

    def _under_next_id(self, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        """Use up the last epochs of a producer id, and go on under the next one that brokers give.

        Nothing in the log shows that the next one is the same driver's. So the newest entry is claimed under the old
        one, and written again under the new one, before anything is done under that.
        """
        found = self.entry()
        if not found.generation:
            return driver  # it has written nothing
        # Brokers may grant less by now than they did when the entry was written.
        held_ms = min(found.timeout_ms or granted_ms, granted_ms)
        claim = found.claimed_again(driver)
        renewed = self.claim(driver, found, claim, held_ms)
        while renewed.producer_id == driver.producer_id:
            renewed = self.renew(renewed, held_ms)
        held = self.write(Held(renewed), claim.claimed_again(renewed))
        return self.renew(held.driver, held_ms)

    def _granted(self, expected: ProducerIdAndEpoch, timeouts_ms: Sequence[int]) -> tuple[ProducerIdAndEpoch, int]:
        for timeout_ms in timeouts_ms[:-1]:
            with contextlib.suppress(_TimeoutRefusedError):
                return self._init(timeout_ms, expected), timeout_ms
        return self._next_epoch(timeouts_ms[-1], expected), timeouts_ms[-1]

    def renew(self, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        """The next epoch after the one that is held. ProducerFencedError if it is not the newest any more."""
        return self._next_epoch(claimed_ms(granted_ms), driver)

    def _next_epoch(self, timeout_ms: int, expected: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        driver = self.client.init_producer_id(self.driver_id, timeout_ms, expected)
        self._note(driver.producer_id)
        return driver

    def entry(self) -> Entry:
        """The newest entry that counts; one that says nothing, if there is none. To be asked after a look."""
        found = self.log.entry(self.prefix, self._known_ids, self.client.owners, is_claimed=self._is_claimed)
        return Entry(self.prefix) if found is None else found

    def claim(
        self, driver: ProducerIdAndEpoch, found: Entry, entry: Entry, granted_ms: int | None = None
    ) -> ProducerIdAndEpoch:
        """Write `entry` in place of `found`; the epoch that the caller holds after it, under which no other can decide.
        `granted_ms`: if it is not the entry's timeout.

        ProducerFencedError if something else is the newest entry after that: another one's, or one that was not seen.
        """
        held = _committed(self._start_write(Held(driver), (encoded(found), encoded(entry))))
        # Brokers give the next epoch when the transaction before it is complete: its marker is in the log then.
        renewed = self.renew(held.driver, entry.timeout_ms if granted_ms is None else granted_ms)
        if self.entry() != entry:
            raise refusals.fenced(self.driver_id)
        return renewed

    def take_over(
        self, driver: ProducerIdAndEpoch, found: Entry, claim: Entry
    ) -> tuple[ProducerIdAndEpoch, list[TransactionDescription]]:
        """Claim the prefix, and end what tasks of older drivers have left: what was ended, and the epoch after it.

        It is listed after the fence, so that it is all; and before the claim, so that nothing of a later driver is in
        it: that one claims before its tasks begin, so this claim is before that one, or it fails.
        """
        listed = self.leftovers()
        renewed = self.claim(driver, found, claim)
        self.end_listed(listed)
        return renewed, listed

    def write_after(self, held: Held, before: Entry, entry: Entry, write: Callable[[Held, Entry], Held]) -> Held:
        """Write `entry` by `write` after `before`, which is the caller's own and the newest one.

        ProducerFencedError if another has written since. To be refused is not enough for that: see above.
        """
        turns_left = TURNS_MAX
        while True:
            turns_left -= 1
            try:
                return write(held, entry)
            except ProducerFencedError as error:
                if not turns_left:
                    raise
                held, newest = self._regain((before, entry), error)
            if newest.state is entry.state:
                return held

    def _regain(self, own: Sequence[Entry], error: ProducerFencedError) -> tuple[Held, Entry]:
        """For a driver that was refused in the middle of its record: an identity to go on with, and the newest entry,
        which has been claimed again.

        ProducerFencedError if the newest entry is none of the caller's `own` ones.
        """
        regained = self.in_turns(lambda seen: self._claimed_again(seen, own), self.look_when_ended())
        if regained is None:
            raise refusals.fenced(self.driver_id) from error
        return regained

    def _claimed_again(self, seen: TransactionDescription | None, own: Sequence[Entry]) -> tuple[Held, Entry] | None:
        if seen is None or not _is_one_of(own, self.entry()):
            return None
        driver, _ = self.fence(seen, (seen.timeout_ms,))
        found = self.entry()
        if not _is_one_of(own, found):
            return None
        claim = found.claimed_again(driver)
        return Held(self.claim(driver, found, claim)), claim

    def write(self, held: Held, entry: Entry | None) -> Held:
        """Durable when this returns. None: nothing needs to be known of the prefix any more."""
        return _committed(self.start_write(held, entry))

    def start_write(self, held: Held, entry: Entry | None) -> OpenWrite:
        """The entry is on its way when this returns, and counts when the caller has committed it."""
        return self._start_write(held, (None if entry is None else encoded(entry),))

    def writes_in_version_1(self) -> bool:
        """Would a record that is written now be in a transaction of version 1?"""
        self.log.partition(self.prefix)  # as a write asks: a connection that is opened for it may bring another version
        return self.client.transaction_version < 2

    def _start_write(self, held: Held, values: Sequence[bytes | None]) -> OpenWrite:
        records = [(self.prefix.encode(), value) for value in values]
        place = TopicPartition(self.log.topic, self.log.partition(self.prefix))
        return self.client.start_write(self.driver_id, held, place, records)

    def _init(self, timeout_ms: int, expected: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        try:
            return self._next_epoch(timeout_ms, expected)
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                raise _TimeoutRefusedError from error
            raise

    # --- the transactions of tasks

    def leftovers(self, but: Collection[str] = ()) -> list[TransactionDescription]:
        """What tasks have open, and the ids under which they have begun nothing yet, but still can.

        `but`: leave these ids out, which were committed while `list_ahead` had asked for the list.
        """
        ahead, self._listing = self._listing if but else None, None
        ids = self.client.ids(
            lambda name: task_of(self.prefix, name) is not None and name not in but, ONGOING, EMPTY, ahead=ahead
        )
        return [each for each in self.client.describe(ids).values() if can_write(each)]

    def list_ahead(self) -> None:
        """Ask what tasks have open, and do not wait: `leftovers` with `but` takes the answers."""
        self._listing = self.client.list_ahead(ONGOING, EMPTY)

    def commit(
        self, entry: Entry, driver: ProducerIdAndEpoch, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, BrokerError]:
        """Commit all transactions of a decided batch. Returns what was refused. May be repeated, by anybody.

        ProducerFencedError if something was refused and `driver` is not the newest: a newer one has finished the batch,
        and tasks of later ones may have had the ids since, so a refusal says nothing of what was decided.
        """
        refused = self.client.end(entry.transactions, commit=True, meanwhile=meanwhile)
        if refused and self._is_overtaken(driver):
            raise refusals.fenced(self.driver_id)
        return refused

    def _is_overtaken(self, driver: ProducerIdAndEpoch) -> bool:
        """False if brokers do not answer: the caller has refusals to report, which must not be lost."""
        try:
            seen = self.look_when_ended()
        except KafkaSinkError:
            return False
        return seen is not None and seen.id_and_epoch != driver

    def end_listed(self, listed: Sequence[TransactionDescription], patience_ms: float | None = None) -> None:
        """Abort what is open, under exactly these epochs, and let nothing begin under them. `patience_ms`: of the
        client, if it is to be another one than its own.

        What was listed must be none of a newer driver's: after the list the caller has written an entry that counts.
        What a newer driver's tasks have begun since has another epoch, and is not hit.
        """
        if listed:
            self.client.abort(listed, patience_ms)


def _committed(writing: OpenWrite) -> Held:
    writing.wait()
    return writing.commit()


def has_claimed(driver: TransactionDescription) -> bool:
    return says_claimed(driver.timeout_ms)


def is_left_unused(seen: TransactionDescription, entry: Entry, version: int) -> bool:
    """Has its writer done all that was decided when it wrote this entry, and has no other done anything since?

    The id has the epoch then that its writer was given by the end of this transaction: the next one in version 2, the
    same in version 1. An entry that is not the newest any more is of an older epoch.
    """
    epoch = entry.written_by.epoch + (1 if version >= 2 else 0)
    return (
        entry.state is EntryState.DONE
        and entry.timeout_ms > 0
        and seen.state == COMPLETE_COMMIT
        and seen.id_and_epoch == entry.written_by._replace(epoch=epoch)
    )


def _identity(seen: TransactionDescription | None) -> object:
    return None if seen is None else (seen.id_and_epoch, seen.state)


def can_write(description: TransactionDescription) -> bool:
    """Is it open, or given to somebody who has begun nothing yet?"""
    if description.state == EMPTY:
        return not says_fenced(description.timeout_ms)
    return description.is_open


def _is_one_of(own: Sequence[Entry], newest: Entry) -> bool:
    return any(newest.is_of_one_driver_with(each) for each in own)
