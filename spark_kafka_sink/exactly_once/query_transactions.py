"""QueryTransactions: the transactions under one prefix, its driver's producer identity, and its log entries.

Drivers and `pykafka transactions` act under a producer identity: a producer id and epoch for the current driver id
(`<prefix>-driver`, `<prefix>-driver-2`, ...). Each step uses the given identity and is rejected if a newer one exists:

    describe           describe the driver id once none of its transactions is ending. Only a hint: no step relies on it
    read               read the newest entry, which names the current driver id. Also only a hint
    fence              request the next epoch, unless another process has obtained one since the description
    hand over          if that epoch is one of the last: write an entry that names the next driver id
    claim              write an entry after the one that was read, and read it back. The claim is valid only if nothing
                       was written in between, so only one of several processes with the same epoch succeeds
    take over          list the tasks' open transactions, claim the prefix, and abort exactly the listed transactions
    write              write an entry under an epoch under which no other process can decide
    write next         write an entry after the caller's own entry. A driver that is fenced, but whose own entry is
                       still the newest, claims the prefix again and retries
    delete entry       delete the prefix's claims and decisions, for a prefix that no later driver uses

Epochs stop producers, but the log, not the epoch, determines the current driver, for these reasons:

    Two drivers can hold the same epoch.
        1. Both drivers describe epoch 5 and request the next epoch.
        2. The second request names the epoch before the current one. Kafka takes it for a retry of a request whose
           response was lost, and responds with the current epoch. Both drivers hold epoch 6.
        3. Sequence numbers decide between them. A decision is a batch of one record, and a claim is a batch of two. If
           both drivers write a batch with sequence number 0, the second batch is rejected if the batches have different
           lengths, and dropped as a duplicate if they have the same length.
        4. A driver whose claim was dropped reads back the other driver's claim.

    An older driver can fence a newer one.
        1. The newer driver has an open transaction that contains its record.
        2. The older driver requests an epoch. Kafka does not compare epochs while a transaction is open. It aborts the
           transaction and bumps the epoch, and rejects the older driver only when that driver retries.
        3. The newer driver is fenced while it is writing its record. It finds that no other driver has claimed the
           prefix since, and continues.

    A read or a description can be stale.
        1. A suspended broker resumes, and for a moment still responds as leader or coordinator.
        2. A write reaches the current leader or coordinator, so it reveals what a read cannot.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver_ids import (
    DriverIds,
    GrantedEpoch,
    choose_timeout_ms,
    get_remembered_driver_number,
    has_claimed,
    remember_driver_number,
)
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.log_records import build_claim_records, build_entry_records, build_tombstones
from spark_kafka_sink.exactly_once.log_writer import KeyValue, LogTransaction, LogWriter, WriterState
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_claimed, mark_claimed
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write, choose_expected_identity
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id, parse_task_attempt
from spark_kafka_sink.network.system import System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import (
    TransactionListing,
    collect_rejection_errors,
    describe_transactions,
    fetch_ids_by_producer,
    init_producer_id,
)
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transactions import EndTransaction

_log = logging.getLogger(__name__)

HAND_OVER_EPOCH = 32_000
"""The first epoch at which a driver hands over to the next driver id. A producer id has 32,766 epochs.

The epochs from here on are reserved for the batch in progress and for starts that die during the hand-over.
"""
MAX_TRIES = 20  # With 5, drivers give up (REPEATED_FENCING_SEEDS in tests/exactly_once/scenarios/test_explorer.py).
"""How often a step is attempted if its driver keeps being fenced.

Two drivers that take over from each other may fence each other several times. With too low a limit, both would give up.
"""

ResultT = TypeVar("ResultT")


class TakeOver(NamedTuple):
    """The driver's identity after it has taken over a prefix, and the transactions that it has aborted."""

    identity: ProducerIdAndEpoch
    aborted_transactions: Sequence[TransactionDescription]


class QueryTransactions:
    """The transactions of a prefix, and its entry in the decision log, which is the topic `topic`.

    A context manager that leases a client. Not thread-safe.
    """

    def __init__(self, config: ClientConfig, prefix: str, topic: str, *, system: System | None = None) -> None:
        self.prefix = prefix
        self._log_key = (config.bootstrap_servers, topic, prefix)
        self.driver_number = get_remembered_driver_number(self._log_key)
        # A transaction listing requested ahead of time; None if none was requested or it has already been used.
        self._listing: TransactionListing | None = None
        with contextlib.ExitStack() as resources:
            self.client: BlockingClient = resources.enter_context(lease_client(config, system=system))
            self.decision_log = DecisionLog(config, topic, self.client)
            self._writer = LogWriter(self.client)
            self._driver_ids = DriverIds(
                prefix,
                describe_transactions=lambda ids: describe_transactions(self.client, ids),
                list_ids_by_producer=lambda: fetch_ids_by_producer(self.client),
            )
            # Keep the client open. The context closes it only if the constructor fails.
            self._resources = resources.pop_all()

    def __enter__(self) -> QueryTransactions:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.__exit__(exc_type, exc, traceback)

    # --- the producer identity, and the log

    @property
    def driver_id(self) -> str:
        """The transactional id under which the caller acts."""
        return build_driver_id(self.prefix, self.driver_number)

    def describe_driver_id(self, *, wait_while_ending: bool = False) -> TransactionDescription | None:
        """Describe the driver id. Return None if the brokers do not know it."""
        descriptions = describe_transactions(self.client, [self.driver_id], wait_while_ending=wait_while_ending)
        description = descriptions.get(self.driver_id)
        self._driver_ids.record_description(self.driver_number, description)
        return description

    def wait_and_describe_driver_id(self) -> TransactionDescription | None:
        """Describe the driver id once none of its transactions is ending.

        Brokers respond to EndTxn before they write the transaction's markers, and the result appears in the log only
        with the markers. Without the wait, a dead driver's claim could appear in the log after the description, and
        would look like the claim of a newer driver.
        """
        return self.describe_driver_id(wait_while_ending=True)

    def check_unchanged(self, description: TransactionDescription | None) -> None:
        """Raise ProducerFencedError if the driver id has changed since this description: another driver is active.

        Call this immediately before `fence`, because brokers do not compare epochs while a transaction is open.
        """
        current_description = self.describe_driver_id()
        if _to_comparison_key(current_description) != _to_comparison_key(description):
            raise precommit_errors.build_fenced_error(self.driver_id)

    def read_current_entry(
        self, description: TransactionDescription | None
    ) -> tuple[TransactionDescription | None, Entry]:
        """Read the newest entry, and switch to the driver id that it names.

        Return a description of that driver id and the entry. The description is always older than the entry. It is the
        `description` passed in, unless the entry names a different driver id.
        """
        for _ in range(MAX_TRIES):
            entry = self._read_newest_entry()
            if entry.driver_number == self.driver_number:
                return description, entry
            self.driver_number = entry.driver_number
            description = self.wait_and_describe_driver_id()
        raise precommit_errors.build_fenced_error(self.driver_id)

    def retry_when_fenced(
        self,
        action: Callable[[TransactionDescription | None, Entry], ResultT],
        description: TransactionDescription | None,
        possibly_stale_entry: Entry | None = None,
    ) -> ResultT:
        """Call `action` with a description of the driver id and the entry read after it, and return its result.

        If another driver fences the action, or the action hands over to the next driver id, repeat the call with a new
        description and entry. Raise ProducerFencedError after MAX_TRIES calls.

        `possibly_stale_entry`: the entry for the first call, if the caller has already read it.
        """
        tries_left = MAX_TRIES
        while True:
            tries_left -= 1
            try:
                if possibly_stale_entry is None:
                    description, possibly_stale_entry = self.read_current_entry(description)
                return action(description, possibly_stale_entry)
            except ProducerFencedError as error:
                if not tries_left:
                    raise
                _log.info("The driver was fenced and starts again (prefix %s): %s", self.prefix, error)
                description, possibly_stale_entry = self.wait_and_describe_driver_id(), None

    def fence(self, description: TransactionDescription | None, candidate_timeouts_ms: Sequence[int]) -> GrantedEpoch:
        """Request the next epoch, with the first of the timeouts that the brokers grant.

        Raise ProducerFencedError if another process has obtained an epoch since the description. Also raise it if the
        epoch is one of the last, after writing an entry that names the next driver id. A request whose timeout brokers
        reject changes nothing.
        """
        identity, granted_ms = self._request_epoch(choose_expected_identity(description), candidate_timeouts_ms)
        if description is not None and has_claimed(description) and not is_marked_claimed(granted_ms):
            # Restore the mark, because the id must show that it has claimed the prefix even if the log is lost now.
            identity = self.bump_epoch(identity, granted_ms)
        if identity.epoch >= HAND_OVER_EPOCH:
            self._hand_over(identity, granted_ms)
        return GrantedEpoch(identity, granted_ms)

    def _hand_over(self, identity: ProducerIdAndEpoch, granted_ms: int) -> None:
        """Name the next driver id in an entry and raise ProducerFencedError. Do nothing if the prefix has no entry."""
        previous_entry = self.read_entry()
        if not previous_entry.generation:  # a record of generation 0 would look like a lost log (is_log_lost)
            return
        # The brokers may grant a shorter timeout now than when the entry was written.
        claim_timeout_ms = min(previous_entry.timeout_ms or granted_ms, granted_ms)
        claim = previous_entry.with_claim_identity(identity)
        new_identity = self.claim(identity, previous_entry, claim, claim_timeout_ms)
        successor = previous_entry.with_driver_number(self.driver_number + 1)
        _wait_and_commit(self._begin_transaction(WriterState(new_identity), build_entry_records(successor)))
        raise precommit_errors.build_hand_over_error(
            self.driver_id, build_driver_id(self.prefix, successor.driver_number)
        )

    def _request_epoch(self, expected_identity: ProducerIdAndEpoch, timeouts_ms: Sequence[int]) -> GrantedEpoch:
        """Request the next epoch with each timeout in turn, until the brokers grant one."""
        *longer_timeouts_ms, last_timeout_ms = timeouts_ms
        for timeout_ms in longer_timeouts_ms:
            identity = self._init_producer_id_unless_too_long(timeout_ms, expected_identity)
            if identity is not None:
                return GrantedEpoch(identity, timeout_ms)
        return GrantedEpoch(self._init_producer_id(last_timeout_ms, expected_identity), last_timeout_ms)

    def _init_producer_id_unless_too_long(
        self, timeout_ms: int, expected_identity: ProducerIdAndEpoch
    ) -> ProducerIdAndEpoch | None:
        """Request the next epoch. Return None if the timeout is longer than the brokers grant."""
        try:
            return self._init_producer_id(timeout_ms, expected_identity)
        except BrokerError as error:
            if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
                return None
            raise

    def bump_epoch(self, identity: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        """Request the epoch after the caller's. Raise ProducerFencedError if a newer epoch exists."""
        return self._init_producer_id(mark_claimed(granted_ms), identity)

    def _init_producer_id(self, timeout_ms: int, expected_identity: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        try:
            identity = init_producer_id(self.client, self.driver_id, timeout_ms, expected_identity)
        except BrokerError as error:
            # Kafka grants the first epoch whatever identity the request expects. Some other brokers do not.
            if expected_identity == UNUSED_IDENTITY and error.code == error_codes.INVALID_PRODUCER_ID_MAPPING:
                raise precommit_errors.build_first_epoch_rejected_error(error) from error
            raise
        self._driver_ids.record_producer_id(self.driver_number, identity)
        return identity

    def read_entry(self) -> Entry:
        """Return the newest valid entry, or an empty entry if there is none. Describe the driver id first.

        Raise ProducerFencedError if the entry names a different driver id than the one under which the caller acts.
        """
        entry = self._read_newest_entry()
        if entry.driver_number != self.driver_number:
            raise precommit_errors.build_hand_over_error(
                self.driver_id, build_driver_id(self.prefix, entry.driver_number)
            )
        return entry

    def _read_newest_entry(self) -> Entry:
        entry = self.decision_log.read_entry(self._driver_ids) or Entry(
            self.prefix, driver_number=self._driver_ids.newest_number
        )
        remember_driver_number(self._log_key, entry.driver_number)
        return entry

    def claim(
        self, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry, granted_ms: int | None = None
    ) -> ProducerIdAndEpoch:
        """Write `claim` after `previous_entry`, and return the next identity, under which no other process can decide.

        `granted_ms`: the granted timeout, if it differs from the claim's.

        Raise ProducerFencedError if the claim is not the newest entry afterwards, because another driver has claimed
        the prefix or the caller has missed an entry.
        """
        state = _wait_and_commit(
            self._begin_transaction(WriterState(identity), build_claim_records(previous_entry, claim))
        )
        # Brokers grant the next epoch when the previous transaction is complete, so its marker is in the log.
        timeout_ms = claim.timeout_ms if granted_ms is None else granted_ms
        new_identity = self.bump_epoch(state.id_and_epoch, timeout_ms)
        if self.read_entry() != claim:
            raise precommit_errors.build_fenced_error(self.driver_id)
        return new_identity

    def take_over(self, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry) -> TakeOver:
        """Claim the prefix, and abort the transactions that tasks of older drivers have left open.

        The order of the steps matters:

        1. Before this call, the caller has requested the epoch of `identity`, so that the list is complete.
        2. The open transactions are listed before the claim, so that the list has none of a later driver. A later
           driver must claim the prefix before its tasks begin. If it has already claimed the prefix, step 3 fails.
        3. The prefix is claimed.
        4. The listed transactions are aborted.
        """
        descriptions = self.list_task_transactions()
        new_identity = self.claim(identity, previous_entry, claim)  # raises if the claim is not the newest entry
        self.abort_task_transactions(descriptions)
        return TakeOver(new_identity, descriptions)

    def write_next_entry(
        self,
        state: WriterState,
        previous_entry: Entry,
        entry: Entry,
        write_once: Callable[[WriterState, Entry], WriterState],
    ) -> WriterState:
        """Append `entry` by calling `write_once`, and return the state to write the next entry with.

        `previous_entry` must be the newest entry, and the caller must have written it. `entry` is committed when this
        method returns.

        Fencing alone does not prove that another driver has written, because an older driver can fence a newer one (see
        the module's docstring). If fenced, claim the prefix again, and write `entry` again if `previous_entry` is still
        the newest entry. Raise ProducerFencedError if the newest entry is neither of the two, or after MAX_TRIES tries.
        """
        # test_older_driver_prevents_newer_decision_if_fenced_drivers_do_not_reclaim shows why this is necessary.
        tries_left = MAX_TRIES
        while True:
            tries_left -= 1
            try:
                return write_once(state, entry)
            except ProducerFencedError as error:
                if not tries_left:
                    raise
                state, newest_entry = self._reclaim((previous_entry, entry), error)
            # The new claim repeats one of the two entries, which have different states.
            if newest_entry.state is entry.state:  # `entry` was committed before the driver was fenced
                return state

    def _reclaim(self, own_entries: Sequence[Entry], error: ProducerFencedError) -> tuple[WriterState, Entry]:
        """Claim the prefix again for a driver that was fenced while it was writing a record.

        Return the state to continue with, and the newest entry with the new claim. Raise ProducerFencedError if the
        newest entry is not one of `own_entries`.
        """
        reclaimed = self.retry_when_fenced(
            lambda description, possibly_stale_entry: self._try_reclaim(description, possibly_stale_entry, own_entries),
            self.wait_and_describe_driver_id(),
        )
        if reclaimed is None:
            raise precommit_errors.build_fenced_error(self.driver_id) from error
        return reclaimed

    def _try_reclaim(
        self, description: TransactionDescription | None, possibly_stale_entry: Entry, own_entries: Sequence[Entry]
    ) -> tuple[WriterState, Entry] | None:
        if not any(map(possibly_stale_entry.is_same_except_identity, own_entries)):
            return None  # without requesting an epoch, which would fence the other driver
        candidate_timeouts_ms = (choose_timeout_ms(possibly_stale_entry, description),)
        identity = self.fence(description, candidate_timeouts_ms).identity
        previous_entry = self.read_entry()
        if not any(map(previous_entry.is_same_except_identity, own_entries)):
            return None
        claim = previous_entry.with_claim_identity(identity)
        return WriterState(self.claim(identity, previous_entry, claim)), claim

    def write(self, state: WriterState, entry: Entry) -> WriterState:
        """Write an entry, commit it and return the next state."""
        return _wait_and_commit(self.begin_write(state, entry))

    def begin_write(self, state: WriterState, entry: Entry) -> LogTransaction:
        """Send an entry. The caller must commit or abort the transaction."""
        return self._begin_transaction(state, build_entry_records(entry.with_driver_number(self.driver_number)))

    def delete_entry(self, state: WriterState) -> WriterState:
        """Delete the prefix's claims and decisions from the log, and return the next state."""
        return _wait_and_commit(self._begin_transaction(state, build_tombstones(self.prefix)))

    def uses_version_1(self) -> bool:
        """Return whether a record written now would be in a version 1 transaction."""
        # Look up the partition as a write would, because a new connection may report a different version.
        self.decision_log.partition_for(self.prefix)
        return self.client.transaction_version < 2

    def _begin_transaction(self, state: WriterState, records: Sequence[KeyValue]) -> LogTransaction:
        topic_partition = TopicPartition(self.decision_log.topic, self.decision_log.partition_for(self.prefix))
        return self._writer.begin_transaction(self.driver_id, state, topic_partition, records)

    # --- the tasks' transactions

    def list_task_transactions(self, committed_ids: Collection[str] = ()) -> list[TransactionDescription]:
        """List the task ids that have an open transaction or under which a task may still begin one.

        `committed_ids`: ids to omit, which `commit` has just committed. If any, use the list that it has requested.
        """
        # A prefetched list is complete only right after `commit`. In all other cases, request the list now.
        prefetched_listing, self._listing = self._listing, None
        listing = (prefetched_listing if committed_ids else None) or TransactionListing(self.client, ONGOING, EMPTY)
        listed_ids = {transaction.transactional_id for transaction in listing.wait_for_transactions()}
        uncommitted_ids = sorted(listed_ids.difference(committed_ids))
        task_ids = [task_id for task_id in uncommitted_ids if parse_task_attempt(self.prefix, task_id) is not None]
        descriptions = describe_transactions(self.client, task_ids).values()
        return [description for description in descriptions if can_write(description)]

    def commit(
        self, entry: Entry, identity: ProducerIdAndEpoch, *, prefetch_listing: bool = False
    ) -> dict[str, BrokerError]:
        """Commit all transactions of a decided batch. Return the errors of rejected commits by transactional id.

        Any process may call this, any number of times.

        `prefetch_listing`: once the commits are sent, request the list for `list_task_transactions`.

        Raise ProducerFencedError if a commit was rejected and `identity` is no longer the newest. A newer driver has
        then finished the batch, and tasks of later batches may have used the ids since, so a rejection says nothing
        about the decided transactions.
        """
        requests = [EndTransaction(transaction, commit=True) for transaction in entry.transactions]
        call = self.client.begin(requests)
        if prefetch_listing:
            self._listing = TransactionListing(self.client, ONGOING, EMPTY)
        errors_by_id = collect_rejection_errors(requests, self.client.finish(call))
        if errors_by_id and self._check_whether_superseded(identity):
            raise precommit_errors.build_fenced_error(self.driver_id)
        return errors_by_id

    def _check_whether_superseded(self, identity: ProducerIdAndEpoch) -> bool:
        """Return whether the driver id no longer has this identity. Return False if the brokers do not respond.

        Errors are swallowed, because the caller has rejections to report that an error raised here would hide.
        """
        try:
            description = self.wait_and_describe_driver_id()
        except KafkaSinkError:
            return False
        return description is not None and description.id_and_epoch != identity

    def abort_task_transactions(
        self, descriptions: Sequence[TransactionDescription], timeout_ms: float | None = None
    ) -> None:
        """Abort the described transactions under exactly their epochs, and fence their transactional ids.

        None of them may belong to a newer driver. To ensure this, the caller must have written a valid entry after
        listing them. Transactions begun since by a newer driver's tasks have different epochs and are not affected.

        `timeout_ms`: how long each step may go without progress; defaults to the client's timeout.
        """
        if descriptions:
            abort_transactions(self.client, descriptions, timeout_ms)


def _wait_and_commit(transaction: LogTransaction) -> WriterState:
    transaction.wait()
    return transaction.commit()


def _to_comparison_key(description: TransactionDescription | None) -> object:
    return None if description is None else (description.id_and_epoch, description.state)
