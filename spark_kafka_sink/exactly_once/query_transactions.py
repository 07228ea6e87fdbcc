"""QueryTransactions: the transactions under one prefix, the identity of its driver, and what the log says of them.

A driver acts under an identity, the producer id and epoch that it holds of the driver's current id (`<prefix>-driver`,
`<prefix>-driver-2`, ...), and so does a person. Each step names the identity that it was taken under, and is refused if
a newer one exists:

    look         who holds the id now, and has no transaction that is just ending; a hint, no step relies on it
    read         the newest entry, which names the current id: a hint as well
    fence        get the next epoch, unless it was given to another since the look
    hand over    if that epoch is one of the last: write an entry that names the next id
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
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import TypeVar

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver_ids import (
    DriverIds,
    has_claimed,
    remember_number,
    remembered_number,
    unchanged_timeout_ms,
)
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encoded
from spark_kafka_sink.exactly_once.leftovers import abort_listed, can_write, expected_identity
from spark_kafka_sink.exactly_once.log_writer import Held, KeyValue, LogWriter, OpenWrite
from spark_kafka_sink.exactly_once.timeout_marks import claimed_ms, says_claimed
from spark_kafka_sink.exactly_once.transaction_names import claim_key, driver_id, task_of
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import (
    TransactionListing,
    describe_transactions,
    init_producer_id,
    owners,
    rejections,
)
from spark_kafka_sink.requests.transaction_description import (
    EMPTY,
    ONGOING,
    TransactionDescription,
)
from spark_kafka_sink.requests.transactions import EndTransaction

_log = logging.getLogger(__name__)

EPOCHS_END = 32_000
"""The first epoch under which a driver hands over to its next id. A producer id has 32,766 epochs. The last ones are
left for the batch that is being written, and for starts that die during the hand-over."""
TURNS_MAX = 20  # five are too few in seeds 1033 and 2836 (DUELS in tests/exactly_once/scenarios/test_explorer.py)
"""Two drivers that take over from each other may fence each other in several turns. After too few both give way."""

ResultT = TypeVar("ResultT")


class _TimeoutRefusedError(Exception):
    """Brokers do not grant transactions that last so long."""


class QueryTransactions:
    """A context manager. Used by one thread. `topic` is the decision log."""

    def __init__(self, config: ClientConfig, prefix: str, topic: str, *, system: System | None = None) -> None:
        self.prefix = prefix
        self._number_key = (config.bootstrap_servers, topic, prefix)
        self.driver_number = remembered_number(self._number_key)
        self._listing: TransactionListing | None = None  # requested, and not used yet
        with contextlib.ExitStack() as opened:
            self.client: BlockingClient = opened.enter_context(lease_client(config, system=system))
            self.log = DecisionLog(config, topic, self.client)
            self._writer = LogWriter(self.client)
            self._ids = DriverIds(
                prefix, lambda names: describe_transactions(self.client, names), lambda: owners(self.client)
            )
            self._opened = opened.pop_all()

    def __enter__(self) -> QueryTransactions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    # --- the identity, and the log

    @property
    def driver_id(self) -> str:
        """The transactional id under which the caller acts."""
        return driver_id(self.prefix, self.driver_number)

    def look(self, *, wait_while_ending: bool = False) -> TransactionDescription | None:
        """Who holds the driver's id. None if brokers do not know it."""
        descriptions = describe_transactions(self.client, [self.driver_id], wait_while_ending=wait_while_ending)
        seen = descriptions.get(self.driver_id)
        self._ids.note(self.driver_number, seen)
        return seen

    def look_when_ended(self) -> TransactionDescription | None:
        """`look`, as soon as no transaction of the id is ending.

        Brokers answer the end of a transaction before they write its markers, and the log says nothing of it until
        then: a claim of a driver that has died would be found after the next look, as if it were of a newer driver.
        """
        return self.look(wait_while_ending=True)

    def look_again(self, seen: TransactionDescription | None) -> None:
        """Just before `fence`. ProducerFencedError if something has happened to the id since: another one works.

        The comparison of `fence` does not hold while a transaction is open.
        """
        now = self.look()
        if _identity(now) != _identity(seen):
            raise refusals.fenced(self.driver_id)

    def read(self, seen: TransactionDescription | None) -> tuple[TransactionDescription | None, Entry]:
        """The newest entry, which names the driver's current id, and a look at that id that is older than the entry:
        `seen`, unless that is a look at another id."""
        for _ in range(TURNS_MAX):
            entry = self._newest()
            if entry.driver_number == self.driver_number:
                return seen, entry
            self.driver_number = entry.driver_number
            seen = self.look_when_ended()
        raise refusals.fenced(self.driver_id)

    def in_turns(
        self,
        turn: Callable[[TransactionDescription | None, Entry], ResultT],
        seen: TransactionDescription | None,
        hint: Entry | None = None,
    ) -> ResultT:
        """Call `turn` with a look at the id and the entry that was read after it, and return its result.

        A turn that another driver has fenced, or that has handed over to the next id, is followed by another turn;
        ProducerFencedError after TURNS_MAX of them. `hint`: the entry for the first turn, if it was read already.
        """
        turns_left = TURNS_MAX
        while True:
            turns_left -= 1
            try:
                if hint is None:
                    seen, hint = self.read(seen)
                return turn(seen, hint)
            except ProducerFencedError as error:
                if not turns_left:
                    raise
                _log.info("prefix %s: the driver begins again (%s)", self.prefix, error)
                seen, hint = self.look_when_ended(), None

    def fence(self, seen: TransactionDescription | None, timeouts_ms: Sequence[int]) -> tuple[ProducerIdAndEpoch, int]:
        """The next epoch, and the first of these timeouts that brokers grant.

        ProducerFencedError if another has got an epoch since the look, or if the epoch was one of the last: then the
        log names the next id of the driver. A timeout that is refused changes nothing.
        """
        driver, granted_ms = self._granted(expected_identity(seen), timeouts_ms)
        if seen is not None and has_claimed(seen) and not says_claimed(granted_ms):
            driver = self.renew(driver, granted_ms)  # the id says still that it has claimed, if the log is lost now
        if driver.epoch >= EPOCHS_END:
            self._hand_over(driver, granted_ms)
        return driver, granted_ms

    def _hand_over(self, driver: ProducerIdAndEpoch, granted_ms: int) -> None:
        """Name the driver's next id in the log. ProducerFencedError after that; nothing is done for an id that has
        written nothing."""
        found = self.entry()
        if not found.generation:
            return
        # Brokers may grant less by now than they did when the entry was written.
        held_ms = min(found.timeout_ms or granted_ms, granted_ms)
        renewed = self.claim(driver, found, found.claimed_again(driver), held_ms)
        following = found.under_driver_id(self.driver_number + 1)
        _committed(self._start_write(Held(renewed), [(self.prefix.encode(), encoded(following))]))
        raise refusals.handed_over(self.driver_id, driver_id(self.prefix, following.driver_number))

    def _granted(self, expected: ProducerIdAndEpoch, timeouts_ms: Sequence[int]) -> tuple[ProducerIdAndEpoch, int]:
        for timeout_ms in timeouts_ms[:-1]:
            with contextlib.suppress(_TimeoutRefusedError):
                return self._init(timeout_ms, expected), timeout_ms
        return self._next_epoch(timeouts_ms[-1], expected), timeouts_ms[-1]

    def renew(self, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        """The next epoch after the one that is held. ProducerFencedError if it is not the newest any more."""
        return self._next_epoch(claimed_ms(granted_ms), driver)

    def _next_epoch(self, timeout_ms: int, expected: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        driver = init_producer_id(self.client, self.driver_id, timeout_ms, expected)
        self._ids.note_granted(self.driver_number, driver)
        return driver

    def entry(self) -> Entry:
        """The newest entry that counts; one that says nothing, if there is none. To be asked after a look.

        ProducerFencedError if it names another id of the driver than the caller acts under.
        """
        entry = self._newest()
        if entry.driver_number != self.driver_number:
            raise refusals.handed_over(self.driver_id, driver_id(self.prefix, entry.driver_number))
        return entry

    def _newest(self) -> Entry:
        entry = self.log.entry(self._ids) or Entry(self.prefix, driver_number=self._ids.newest)
        remember_number(self._number_key, entry.driver_number)
        return entry

    def claim(
        self, driver: ProducerIdAndEpoch, found: Entry, entry: Entry, granted_ms: int | None = None
    ) -> ProducerIdAndEpoch:
        """Write `entry` in place of `found`; the epoch that the caller holds after it, under which no other can decide.
        `granted_ms`: if it is not the entry's timeout.

        ProducerFencedError if something else is the newest entry after that: another one's, or one that was not seen.
        """
        held = _committed(self._start_write(Held(driver), claim_records(found, entry)))
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

        ProducerFencedError if another has written since. To be refused is not enough for that: see above, and
        test_without_its_rule_an_older_driver_stops_a_newer_one_in_its_decision.
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
        regained = self.in_turns(lambda seen, hint: self._claimed_again(seen, hint, own), self.look_when_ended())
        if regained is None:
            raise refusals.fenced(self.driver_id) from error
        return regained

    def _claimed_again(
        self, seen: TransactionDescription | None, hint: Entry, own: Sequence[Entry]
    ) -> tuple[Held, Entry] | None:
        if not any(map(hint.is_of_one_driver_with, own)):
            return None
        driver, _ = self.fence(seen, (unchanged_timeout_ms(seen, hint),))
        found = self.entry()
        if not any(map(found.is_of_one_driver_with, own)):
            return None
        claim = found.claimed_again(driver)
        return Held(self.claim(driver, found, claim)), claim

    def write(self, held: Held, entry: Entry | None) -> Held:
        """Durable when this returns. None: nothing needs to be known of the prefix any more."""
        return _committed(self.start_write(held, entry))

    def start_write(self, held: Held, entry: Entry | None) -> OpenWrite:
        """The entry is on its way when this returns, and counts when the caller has committed it."""
        key = self.prefix.encode()
        if entry is None:
            return self._start_write(held, [(claim_key(self.prefix), None), (key, None)])
        return self._start_write(held, [(key, encoded(entry.under_driver_id(self.driver_number)))])

    def writes_in_version_1(self) -> bool:
        """Would a record that is written now be in a transaction of version 1?"""
        self.log.partition(self.prefix)  # as a write asks: a connection that is opened for it may bring another version
        return self.client.transaction_version < 2

    def _start_write(self, held: Held, records: Sequence[KeyValue]) -> OpenWrite:
        place = TopicPartition(self.log.topic, self.log.partition(self.prefix))
        return self._writer.start(self.driver_id, held, place, records)

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

        `but`: leave these ids out, which were committed while the list was requested (`commit`).
        """
        listing, self._listing = self._listing if but else None, None
        listing = listing or TransactionListing(self.client, ONGOING, EMPTY)
        names = {row.transactional_id for row in listing.rows()} - set(but)
        ids = sorted(name for name in names if task_of(self.prefix, name) is not None)
        return [each for each in describe_transactions(self.client, ids).values() if can_write(each)]

    def commit(self, entry: Entry, driver: ProducerIdAndEpoch, *, then_list: bool = False) -> dict[str, BrokerError]:
        """Commit all transactions of a decided batch. Returns what was refused. May be repeated, by anybody.

        `then_list`: request a list of what tasks have open when the commits are sent: for `leftovers` with `but`.

        ProducerFencedError if something was refused and `driver` is not the newest: a newer one has finished the batch,
        and tasks of later ones may have had the ids since, so a refusal says nothing of what was decided.
        """
        requests = [EndTransaction(each, commit=True) for each in entry.transactions]
        call = self.client.begin(requests)
        if then_list:
            self._listing = TransactionListing(self.client, ONGOING, EMPTY)
        refused = rejections(requests, self.client.finish(call))
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
            abort_listed(self.client, listed, patience_ms)


def claim_records(found: Entry, entry: Entry) -> list[KeyValue]:
    """A claim as a batch of two records, so that its sequence numbers differ from a decision's. The first one is empty,
    and compaction removes it."""
    key = claim_key(entry.prefix)
    return [(key, None), (key, encoded(entry, follows=found.offset))]


def _committed(writing: OpenWrite) -> Held:
    writing.wait()
    return writing.commit()


def _identity(seen: TransactionDescription | None) -> object:
    return None if seen is None else (seen.id_and_epoch, seen.state)
