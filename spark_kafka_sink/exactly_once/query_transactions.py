"""QueryTransactions: the steps of the exactly-once protocol, for the driver of one query and `pykafka transactions`.

A query or job is known by its prefix, the name with which all of its transactional ids begin. Its state is an entry in
the decision log, a Kafka topic. Both its driver and `pykafka transactions` act under one transactional id, the driver
id: `<prefix>-driver` at first, and later `<prefix>-driver-2` and so on. These are the steps, roughly in the order in
which a driver takes them:

    wait_and_describe_driver_id   Fetch the driver id's epoch and state, once none of its transactions is ending. This
                                  is only a hint: other drivers may act at any time, so no later step relies on it.
    read_current_entry            Read the newest entry, which names the current driver id. This is only a hint, too.
    fence                         Request the driver id's next epoch. From then on, brokers reject older epochs. The
                                  request fails if another process was granted an epoch after the description. If the
                                  epochs are nearly used up, hand over to the next driver id (`_hand_over`).
    claim                         Write an entry that names the caller as the current driver, and read it back. The
                                  claim is valid only if nothing was written after the caller's last read. So if several
                                  processes hold the same epoch, only one of them succeeds.
    take_over                     List the tasks' open transactions, claim the prefix, and abort exactly those listed.
    write, begin_write            Write an entry under the identity that `claim`, `bump_epoch` or the last write
                                  returned. No other process can decide a batch under it.
    write_next_entry              Write an entry after the caller's own. A driver that is fenced, but whose own entry is
                                  still the newest, claims the prefix again and retries.
    delete_entry                  Delete the prefix's claims and decisions. Only for a prefix that no later driver uses.

An epoch does not show which driver is the current one. Only the log does, for these reasons ("Failures" in
docs/exactly-once-design.md has the details):

    - Two drivers can hold the same epoch. If both request the epoch after 5, Kafka takes the second request for a
      retry of the first, and grants epoch 6 to both. Both then write with sequence number 0, so the leader stores only
      one of their record batches. The other driver is rejected, or reads back a claim that is not its own.
    - An older driver can fence a newer one, because Kafka does not compare epochs while a transaction is open. The
      newer driver then finds that no other driver has claimed the prefix since, and continues.
    - A read or a description can be stale: a broker that was suspended may still respond as leader or coordinator for a
      moment after it resumes. A write succeeds only at the current leader or coordinator, so it reveals what a read
      cannot.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, ProducerFencedError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver_ids import (
    DriverIds,
    get_remembered_driver_number,
    has_claimed,
    remember_driver_number,
)
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.epoch_requests import find_longest_timeout_ms, request_epoch
from spark_kafka_sink.exactly_once.log_records import build_claim_records, build_entry_records, build_tombstones
from spark_kafka_sink.exactly_once.log_writer import KeyValue, LogTransaction, LogWriter, WriterState
from spark_kafka_sink.exactly_once.timeout_marks import (
    compute_driver_claimed_timeout_ms,
    compute_driver_fencing_timeout_ms,
)
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write, choose_expected_identity
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id, parse_task_attempt
from spark_kafka_sink.network.system import System
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import (
    TransactionListing,
    collect_rejection_errors,
    describe_transactions,
    fetch_ids_by_producer,
)
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING, TransactionDescription
from spark_kafka_sink.requests.transactions import EndTransaction

_log = logging.getLogger(__name__)

HAND_OVER_EPOCH = 32_000
"""The first epoch at which a driver hands over to the next driver id, because a producer id has only 32,766 epochs.

The epochs after it are for the batch in progress, for the hand-over itself, and for drivers that die during it.
"""
MAX_ATTEMPTS = 20  # With 2, drivers give up (REPEATED_FENCING_SEED in tests/exactly_once/scenarios/test_explorer.py).
"""Maximum number of attempts at a step. Drivers that start at the same time may fence each other several times."""

ResultT = TypeVar("ResultT")


class TakeOver(NamedTuple):
    """The result of taking over a prefix from an older driver."""

    identity: ProducerIdAndEpoch
    """The producer id and epoch for the new driver's next step."""
    listed_transactions: Sequence[TransactionDescription]
    """The tasks' transactional ids that, before the claim, had an open transaction or could still begin one."""
    abort_errors: Mapping[str, BrokerError]
    """The errors of rejected aborts by transactional id. These ids may still have or get an open transaction."""


class QueryTransactions:
    """The transactions of one query or job, and its entry in the decision log.

    A context manager that leases a client. Not thread-safe.
    """

    def __init__(self, config: ClientConfig, prefix: str, log_topic: str, *, system: System | None = None) -> None:
        """Lease a client. `prefix` is the name of the query or job. `log_topic` is the topic of the decision log."""
        self.prefix = prefix
        self._log_key = (config.bootstrap_servers, log_topic, prefix)
        # The number of the driver id under which this object acts: 2 for `<prefix>-driver-2`.
        self.driver_number = get_remembered_driver_number(self._log_key)
        # A transaction listing requested ahead of time; None if none was requested or it has already been used.
        self._prefetched_listing: TransactionListing | None = None
        with contextlib.ExitStack() as resources:
            self.client: BlockingClient = resources.enter_context(lease_client(config, system=system))
            self.decision_log = DecisionLog(config, log_topic, self.client)
            self._writer = LogWriter(self.client)
            self._driver_ids = DriverIds(
                prefix,
                describe_transactions=lambda ids: describe_transactions(self.client, ids),
                list_ids_by_producer=lambda: fetch_ids_by_producer(self.client),
            )
            # Keep the client open after this block, which closes it only if the constructor fails.
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
        """The transactional id under which this object acts, such as `<prefix>-driver`."""
        return build_driver_id(self.prefix, self.driver_number)

    def describe_driver_id(self, *, wait_while_ending: bool = False) -> TransactionDescription | None:
        """Fetch the state, epoch and timeout of the driver id. Return None if the brokers do not know the id.

        `wait_while_ending`: wait until no transaction of the driver id is being committed or aborted.
        """
        descriptions = describe_transactions(self.client, [self.driver_id], wait_while_ending=wait_while_ending)
        description = descriptions.get(self.driver_id)
        self._driver_ids.record_description(self.driver_number, description)
        return description

    def wait_and_describe_driver_id(self) -> TransactionDescription | None:
        """Describe the driver id, once none of its transactions is being committed or aborted.

        Brokers respond to EndTxn before they write the transaction's markers, and a reader of the log accepts a record
        only when it finds the marker. Without the wait, a dead driver's claim could become valid after the description,
        and would look like the claim of a newer driver.
        """
        return self.describe_driver_id(wait_while_ending=True)

    def check_unchanged(self, description: TransactionDescription | None) -> None:
        """Raise ProducerFencedError if the driver id has changed since this description, because of another driver.

        Call this immediately before `fence` when starting a driver, or on behalf of another driver, as `pykafka
        transactions` does. Brokers do not compare epochs while a transaction is open, so `fence` would abort a
        transaction that the other driver has begun since the description.

        A driver that aborts its own batch or claims its prefix again does without this check. If its `fence` aborts a
        transaction of a newer driver, the newer driver claims the prefix again (`write_next_entry`) or starts again
        (`retry_when_fenced`), and continues.
        """
        current_description = self.describe_driver_id()
        if _get_identity_and_state(current_description) != _get_identity_and_state(description):
            raise precommit_errors.build_other_driver_error(self.driver_id)

    def read_current_entry(
        self, description: TransactionDescription | None
    ) -> tuple[TransactionDescription | None, Entry]:
        """Read the prefix's newest entry, and switch to the driver id that the entry names as the current one.

        Return a description of that driver id, and the entry. Both may be stale: use them only to decide whether to
        call `fence`. The description is always older than the entry. Raise ProducerFencedError if each of MAX_ATTEMPTS
        reads names a different driver id.

        `description`: the description of `driver_id`. It is returned unless the entry names a different driver id.
        """
        for _ in range(MAX_ATTEMPTS):
            entry = self._read_newest_entry()
            if entry.driver_number == self.driver_number:
                return description, entry
            self.driver_number = entry.driver_number
            description = self.wait_and_describe_driver_id()
        raise precommit_errors.build_other_driver_error(self.driver_id)

    def retry_when_fenced(
        self,
        action: Callable[[TransactionDescription | None, Entry], ResultT],
        description: TransactionDescription | None,
        possibly_stale_entry: Entry | None = None,
    ) -> ResultT:
        """Call `action(description, entry)` until no other driver fences it, and return its result.

        `action` raises ProducerFencedError if another driver fences it, or if it hands over to the next driver id. It
        is then called again with a new description of the driver id and a new entry, at most MAX_ATTEMPTS times in all.

        `description`: the description of the driver id for the first call.
        `possibly_stale_entry`: the entry for the first call, read after the description; None to read it here.
        """
        attempts_left = MAX_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                if possibly_stale_entry is None:
                    description, possibly_stale_entry = self.read_current_entry(description)
                return action(description, possibly_stale_entry)
            except ProducerFencedError as error:
                if not attempts_left:
                    raise
                _log.info("The driver was fenced and starts again (prefix %s): %s", self.prefix, error)
                description, possibly_stale_entry = self.wait_and_describe_driver_id(), None

    def fence(self, description: TransactionDescription | None) -> ProducerIdAndEpoch:
        """Request the driver id's next epoch, so that brokers reject all older drivers.

        Raise ProducerFencedError if another process was granted an epoch after the description. If the epochs are
        nearly used up, write an entry that names the next driver id, and raise ProducerFencedError, too: the caller
        must start again under that id.

        `description`: the description of the driver id; None if the brokers do not know the id.
        """
        # The request also sets the transaction timeout, which must be short, and must keep the mark for a claimed
        # prefix. The caller may be granted an epoch that another driver already has. If the caller then dies, that
        # driver decides its next batch under this timeout
        # (test_start_that_dies_after_fencing_leaves_short_timeout).
        is_claimed = description is not None and has_claimed(description)
        identity = self._request_epoch(
            choose_expected_identity(description), compute_driver_fencing_timeout_ms(is_claimed=is_claimed)
        )
        if identity.epoch >= HAND_OVER_EPOCH:
            self._hand_over(identity)
        return identity

    def find_longest_timeout_ms(self, candidate_timeouts_ms: Sequence[int]) -> int:
        """Return the first of these transaction timeouts that the brokers grant. They must know the driver id.

        Raise BrokerError if they grant none of them. The epoch and timeout of the driver id are not changed.

        `candidate_timeouts_ms`: the timeouts, longest first.
        """
        return find_longest_timeout_ms(self.client, self.driver_id, candidate_timeouts_ms)

    def _hand_over(self, identity: ProducerIdAndEpoch) -> None:
        """Write an entry that names the next driver id as the current one, and raise ProducerFencedError.

        Return without writing if the prefix has no entry yet.
        """
        previous_entry = self.read_entry()
        if not previous_entry.generation:  # an entry without any claim would look like a lost log (is_log_lost)
            return
        # Claim the prefix first. If this driver has missed the newest decision, its claim is not valid, and it fails
        # here instead of replacing the decision.
        claim = previous_entry.with_claim_identity(identity)
        new_identity = self.claim(identity, previous_entry, claim, task_timeout_ms=0)
        successor = previous_entry.with_driver_number(self.driver_number + 1)
        self._begin_transaction(WriterState(new_identity), build_entry_records(successor)).wait_and_commit()
        raise precommit_errors.build_hand_over_error(
            self.driver_id, build_driver_id(self.prefix, successor.driver_number)
        )

    def bump_epoch(self, identity: ProducerIdAndEpoch, task_timeout_ms: int) -> ProducerIdAndEpoch:
        """Request the epoch after the caller's. Raise ProducerFencedError if another process was granted a newer epoch.

        `task_timeout_ms`: the transaction timeout of the driver's tasks, or 0. The driver id gets a timeout that is
        derived from it and contains the mark for a claimed prefix (timeout_marks.py).
        """
        return self._request_epoch(identity, compute_driver_claimed_timeout_ms(task_timeout_ms))

    def _request_epoch(self, expected_identity: ProducerIdAndEpoch, timeout_ms: int) -> ProducerIdAndEpoch:
        """Request the next epoch of the driver id, unless the id no longer has `expected_identity`."""
        identity = request_epoch(self.client, self.driver_id, expected_identity, timeout_ms)
        # Records of this producer id are valid in the log from now on.
        self._driver_ids.record_producer_id(self.driver_number, identity)
        return identity

    def read_entry(self) -> Entry:
        """Read the prefix's newest valid entry. Return an entry of generation 0 if there is none.

        Describe or fence the driver id first: a record counts as the driver's only if its producer id is known to
        belong to the driver id. After `fence`, the entry is not stale, because older drivers can no longer write. Raise
        ProducerFencedError if the entry names a different driver id than `driver_id` as the current one.
        """
        entry = self._read_newest_entry()
        if entry.driver_number != self.driver_number:
            raise precommit_errors.build_hand_over_error(
                self.driver_id, build_driver_id(self.prefix, entry.driver_number)
            )
        return entry

    def _read_newest_entry(self) -> Entry:
        """Read the newest valid entry under any driver id. Return an entry of generation 0 if there is none."""
        entry = self.decision_log.read_entry(self._driver_ids) or Entry(
            self.prefix, driver_number=self._driver_ids.newest_known_number
        )
        remember_driver_number(self._log_key, entry.driver_number)
        return entry

    def claim(
        self, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry, *, task_timeout_ms: int | None = None
    ) -> ProducerIdAndEpoch:
        """Write a claim: an entry that names the caller as the prefix's current driver.

        Return the producer id and epoch for the next step, under which no other process can decide a batch. Raise
        ProducerFencedError if the claim is not the newest entry afterwards: another driver has claimed the prefix, or
        the caller had missed a newer entry than `previous_entry`.

        `identity`: the producer id and epoch from `fence`.
        `task_timeout_ms`: the tasks' transaction timeout, from which the driver id's timeout is derived; 0 if the
        driver id is not used for any batch. Defaults to the timeout in `claim`.
        """
        claim_records = build_claim_records(previous_entry, claim)
        writer_state = self._begin_transaction(WriterState(identity), claim_records).wait_and_commit()
        timeout_ms = claim.timeout_ms if task_timeout_ms is None else task_timeout_ms
        # Brokers grant the next epoch only when the claim's transaction is complete. Its marker is then in the log, so
        # the read below finds the claim.
        new_identity = self.bump_epoch(writer_state.id_and_epoch, timeout_ms)
        if self.read_entry() != claim:
            raise precommit_errors.build_other_driver_error(self.driver_id)
        return new_identity

    def take_over(self, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry) -> TakeOver:
        """Make the caller the prefix's current driver, and abort what tasks of older drivers have left open.

        Raise ProducerFencedError, without aborting anything, if another driver has taken over. The parameters are those
        of `claim`.
        """
        # The order of the steps matters:
        #   1. The caller has fenced older drivers. A task of theirs that has no transactional id yet can no longer
        #      begin a transaction, so the list below is complete, unless an older driver has the same epoch
        #      (test_take_over_under_shared_epoch_leaves_transaction_to_its_first_batch).
        #   2. The open transactions are listed.
        #   3. The prefix is claimed. This fails if a newer driver has claimed it before. If a newer driver claims it
        #      later, its tasks begin later, too. So the list contains no transaction of a newer driver's tasks.
        #   4. The listed transactions are aborted.
        descriptions = self.list_task_transactions()
        new_identity = self.claim(identity, previous_entry, claim)
        abort_errors = self.abort_task_transactions(descriptions)
        return TakeOver(new_identity, descriptions, abort_errors)

    def write_next_entry(
        self,
        writer_state: WriterState,
        previous_entry: Entry,
        entry: Entry,
        try_write: Callable[[WriterState, Entry], WriterState],
    ) -> WriterState:
        """Write `entry` to the log, and retry if an older driver fences this one. Return the state for the next write.

        When this method returns, `entry` is committed and is the newest entry of the query or job. Raise
        ProducerFencedError if another driver has written an entry, or if MAX_ATTEMPTS attempts have failed.

        `previous_entry`: the newest entry so far, which the caller must have written.
        `try_write`: writes and commits the entry under the given state, and returns the state for the next write.
        """
        # A driver that is fenced is not always replaced by a newer one. For example:
        #   1. An older driver was suspended during its start. It resumes and fences this one.
        #   2. The older driver finds this driver's claim in the log, and stops without having written anything.
        #   3. If this driver stopped as well, neither would write the batch
        #      (test_older_driver_prevents_newer_decision_if_fenced_drivers_do_not_reclaim).
        # So this driver claims the prefix again, unless the newest entry shows that another driver is the current one.
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            try:
                return try_write(writer_state, entry)
            except ProducerFencedError as error:
                if not attempts_left:
                    raise
                writer_state, newest_entry = self._reclaim_prefix((previous_entry, entry), error)
            # The newest entry is a copy of `previous_entry` or of `entry`, with a renewed claim. These two have
            # different states (open, decided, done), so the state shows which of them was copied.
            if newest_entry.state is entry.state:  # `entry` was committed before the driver was fenced
                return writer_state
        raise AssertionError("the last attempt returns or raises")

    def _reclaim_prefix(self, own_entries: Sequence[Entry], error: ProducerFencedError) -> tuple[WriterState, Entry]:
        """Make the caller the current driver again, after it was fenced while it was writing an entry.

        Return the state for the next write, and the newest entry with the new claim. Raise ProducerFencedError if the
        newest entry is none of `own_entries`, because it is then another driver's.

        `own_entries`: the caller's last entry, and the entry that it was writing, which may have been committed.
        """
        reclaimed = self.retry_when_fenced(
            lambda description, possibly_stale_entry: self._try_reclaim(description, possibly_stale_entry, own_entries),
            self.wait_and_describe_driver_id(),
        )
        if reclaimed is None:
            raise precommit_errors.build_other_driver_error(self.driver_id) from error
        return reclaimed

    def _try_reclaim(
        self, description: TransactionDescription | None, possibly_stale_entry: Entry, own_entries: Sequence[Entry]
    ) -> tuple[WriterState, Entry] | None:
        """Try once to claim the prefix again. Return None if the newest entry is none of `own_entries`."""
        if not any(map(possibly_stale_entry.is_same_apart_from_reclaim, own_entries)):
            return None  # Do not request an epoch first, because that would fence the other driver.
        identity = self.fence(description)
        previous_entry = self.read_entry()  # Another driver may have written an entry before the epoch was granted.
        if not any(map(previous_entry.is_same_apart_from_reclaim, own_entries)):
            return None
        claim = previous_entry.with_claim_identity(identity)
        return WriterState(self.claim(identity, previous_entry, claim)), claim

    def write(self, writer_state: WriterState, entry: Entry) -> WriterState:
        """Write and commit an entry. Return the state for the next write. Raise ProducerFencedError if fenced."""
        return self.begin_write(writer_state, entry).wait_and_commit()

    def begin_write(self, writer_state: WriterState, entry: Entry) -> LogTransaction:
        """Send an entry in a transaction of the driver id. The caller must commit or abort the transaction."""
        return self._begin_transaction(writer_state, build_entry_records(entry.with_driver_number(self.driver_number)))

    def delete_entry(self, writer_state: WriterState) -> WriterState:
        """Delete the prefix's claims and decisions from the log. Return the state for the next write."""
        return self._begin_transaction(writer_state, build_tombstones(self.prefix)).wait_and_commit()

    def uses_version_1(self) -> bool:
        """Return whether an entry written now would be in a transaction of version 1, as before KIP-890."""
        # Look up the partition first, as a write does. This may open a connection, which may report another version.
        self.decision_log.partition_for(self.prefix)
        return self.client.transaction_version < 2

    def _begin_transaction(self, writer_state: WriterState, records: Sequence[KeyValue]) -> LogTransaction:
        """Begin a transaction of the driver id, and send these records to the prefix's partition of the log."""
        topic_partition = TopicPartition(self.decision_log.topic, self.decision_log.partition_for(self.prefix))
        return self._writer.begin_transaction(self.driver_id, writer_state, topic_partition, records)

    # --- the tasks' transactions

    def list_task_transactions(self, committed_ids: Collection[str] = ()) -> list[TransactionDescription]:
        """Describe the transactional ids of tasks that have an open transaction, or may still begin one.

        `committed_ids`: ids to omit, because `commit` has just committed their transactions.
        """
        # A listing that was requested during `commit` is used only here, right after it. At any other time it is stale,
        # because the prefix's tasks may have begun transactions since.
        prefetched_listing, self._prefetched_listing = self._prefetched_listing, None
        listing = (prefetched_listing if committed_ids else None) or TransactionListing(self.client, ONGOING, EMPTY)
        listed_ids = {transaction.transactional_id for transaction in listing.wait_for_transactions()}
        uncommitted_ids = sorted(listed_ids.difference(committed_ids))
        task_ids = [task_id for task_id in uncommitted_ids if parse_task_attempt(self.prefix, task_id) is not None]
        descriptions = describe_transactions(self.client, task_ids).values()
        return [description for description in descriptions if can_write(description)]

    def commit(self, entry: Entry, *, prefetch_listing: bool = False) -> dict[str, BrokerError]:
        """Commit the transactions of a decided batch. Return the errors of rejected commits by transactional id.

        Any process may call this, any number of times. If commits were rejected, the caller must call `has_lost_epoch`:
        a rejection means that a transaction is lost only if the result is false.

        `prefetch_listing`: once the commits are sent, request the listing that `list_task_transactions` then uses.
        """
        requests = [EndTransaction(transaction, commit=True) for transaction in entry.transactions]
        call = self.client.begin(requests)
        if prefetch_listing:  # the constructor sends the requests while the commits are in flight
            self._prefetched_listing = TransactionListing(self.client, ONGOING, EMPTY)
        return collect_rejection_errors(requests, self.client.finish(call))

    def has_lost_epoch(self, identity: ProducerIdAndEpoch) -> bool:
        """Return whether another process has been granted an epoch of the driver id since the caller's.

        If that process is a newer driver, it may have finished the batch whose commits were rejected, and tasks of
        later batches may have used the same transactional ids since. It may also be `pykafka transactions`, which has
        not necessarily finished the batch.

        `identity`: the caller's producer id and epoch.
        """
        description = self.wait_and_describe_driver_id()
        return description is not None and description.id_and_epoch != identity

    def abort_task_transactions(
        self, descriptions: Sequence[TransactionDescription], timeout_ms: float | None = None
    ) -> Mapping[str, BrokerError]:
        """Abort the described transactions of tasks, so that their producers can write nothing more.

        Transactions that a newer driver's tasks have begun since have other epochs, so they are not affected. Return
        the errors of rejected aborts by transactional id. These ids may still have or get an open transaction.

        `descriptions`: the result of `list_task_transactions`. The caller must have written a valid entry after it got
        the list, which proves that no listed transaction belongs to a newer driver.
        `timeout_ms`: how long each step may go without progress; defaults to the client's timeout.
        """
        return abort_transactions(self.client, descriptions, timeout_ms) if descriptions else {}


def _get_identity_and_state(description: TransactionDescription | None) -> object:
    return None if description is None else (description.id_and_epoch, description.state)
