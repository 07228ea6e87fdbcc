"""The operations of `pykafka transactions`: list queries, finish or give up a decided batch, abort open transactions.

A query or job is known by its prefix, the name with which all of its transactional ids begin. Its state is an entry in
a Kafka topic, the decision log. A batch is decided once its entry says that its transactions must be committed.

`list_prefixes` changes nothing. `finish` and `give_up` commit the transactions of a decided batch, and record that the
batch is done. `abort` takes over from the query's driver, as a newly started driver does:

    1. Fence the driver: request the next epoch of its transactional id, so that brokers reject the driver.
    2. List the open transactions.
    3. Claim the prefix: write a record to the log that names this process as the current driver.
    4. Abort exactly the listed transactions.

`finish` and `give_up` also fence the driver, and claim the prefix when they record that the batch is done. If a running
query is writing a batch when its prefix is claimed, it fails at the commit, with an error that names the reason. It
continues when it is started again.
"""

from __future__ import annotations

import functools
import logging
import platform
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ExactlyOnceError,
    KafkaSinkError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import commit_errors, precommit_errors
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState, build_operator_name
from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.transaction_names import (
    DECISION_LOG_TOPIC,
    FIRST_DRIVER_NUMBER,
    GENERATED_PREFIX,
    build_driver_id,
    parse_task_id,
    validate_prefix,
)
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import (
    describe_transactions,
    fetch_ids_by_producer,
    list_transactional_ids,
)
from spark_kafka_sink.requests.transaction_description import ONGOING, TransactionDescription

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrefixStatus:
    """The state of a query or job in the decision log and on the brokers."""

    prefix: str
    """The name of the query or job. All of its transactional ids begin with this name."""
    entry: Entry | None
    """The state of the query or job in the decision log; None if the log has none."""
    open_transactions: tuple[TransactionDescription, ...]
    """All open transactions of tasks, whether or not a decision lists them."""
    log_exists: bool = True
    """Whether the topic of the decision log exists. Without it, there is no entry, but transactions may be open."""

    @property
    def decided_ids(self) -> tuple[str, ...]:
        """The transactional ids of the batch that is decided but not done. Some of them may already be committed."""
        if self.entry is None or self.entry.state is not EntryState.DECIDED:
            return ()
        return tuple(transaction.transactional_id for transaction in self.entry.transactions)

    @property
    def undecided_transactions(self) -> tuple[TransactionDescription, ...]:
        """The open transactions that no decision lists. They belong to the batch in progress or to an earlier batch."""
        decided_ids = set(self.decided_ids)
        return tuple(
            transaction for transaction in self.open_transactions if transaction.transactional_id not in decided_ids
        )


@dataclass(frozen=True)
class AbortResult:
    """The result of aborting the open transactions of a query's tasks."""

    aborted_ids: tuple[str, ...] = ()
    """The transactional ids whose open transactions were aborted."""
    errors_by_id: Mapping[str, BrokerError] = field(default_factory=dict)
    """The errors of rejected aborts by transactional id. These ids may still have or get an open transaction."""
    done_batch: Batch | None = None
    """The last batch that a driver of the prefix has recorded as done: it is committed, or was given up.

    None if there is none, or if it is not certain that a driver has recorded it.
    """


@dataclass(frozen=True)
class FinishResult:
    """The result of `finish` and `give_up`."""

    entry: Entry
    """The entry with the decision, as it was before the operation."""
    committed_ids: tuple[str, ...]
    """The batch's transactional ids whose transactions are committed."""
    lost_transaction_errors: Mapping[str, BrokerError]
    """The errors of transactions that can no longer be committed, by transactional id."""
    abort_result: AbortResult
    """The result of aborting the open transactions of other task attempts."""


def list_prefixes(
    options: Mapping[str, str], log_topic: str = DECISION_LOG_TOPIC, prefix: str | None = None
) -> list[PrefixStatus]:
    """Return the status of the query or job with this prefix, or of all of them if `prefix` is None.

    `options`: producer options.
    `log_topic`: the topic of the decision log.
    """
    config = ProducerConfig.parse(options).client_config()
    with lease_client(config) as client:
        log = DecisionLog(config, log_topic, client)
        log_exists = log.exists()
        entries = _read_entries(client, log, prefix) if log_exists else {}
        task_ids = [
            transactional_id
            for transactional_id in list_transactional_ids(client, ONGOING)
            if _is_listed_task_id(transactional_id, entries, prefix)
        ]
        open_by_prefix: dict[str, list[TransactionDescription]] = {}
        for description in describe_transactions(client, task_ids).values():
            task_id = parse_task_id(description.transactional_id)
            if task_id is not None and description.is_open:
                open_by_prefix.setdefault(task_id.prefix, []).append(description)
    listed_prefixes = sorted({*entries, *open_by_prefix} if prefix is None else {prefix})
    return [
        PrefixStatus(
            listed_prefix, entries.get(listed_prefix), tuple(open_by_prefix.get(listed_prefix, ())), log_exists
        )
        for listed_prefix in listed_prefixes
    ]


def finish(options: Mapping[str, str], prefix: str, log_topic: str = DECISION_LOG_TOPIC) -> FinishResult | None:
    """Commit the batch that is decided but not done, and record that it is done. Return None if there is no such batch.

    Then abort the transactions that superseded task attempts have left open.

    A transaction is lost if brokers have aborted or forgotten it. If there are lost transactions, the others are
    committed, but the batch is not recorded as done. Raise ExactlyOnceError if a commit is rejected for another reason.
    """
    return _finish_decided_batch(options, prefix, log_topic, give_up=False)


def give_up(options: Mapping[str, str], prefix: str, log_topic: str = DECISION_LOG_TOPIC) -> FinishResult | None:
    """Commit what is left of the batch that is decided but not done, and record that it is done.

    Transactions that brokers have aborted or forgotten are given up as lost. Return None if there is no such batch.
    Raise ExactlyOnceError if a commit is rejected for any other reason, because it may succeed later.
    """
    return _finish_decided_batch(options, prefix, log_topic, give_up=True)


def abort(options: Mapping[str, str], prefix: str, log_topic: str = DECISION_LOG_TOPIC) -> AbortResult:
    """Abort the open transactions of the query's tasks. The result names the last batch that is committed.

    Raise ExactlyOnceError if a batch is decided but not done, because its transactions must be committed.
    """
    with _lease_query_transactions(options, prefix, log_topic) as transactions:
        identity, entry = _fence_driver(transactions, check_not_decided)
        claim = _build_claim(entry, identity)
        abort_result = _claim_and_abort_open_transactions(transactions, identity, entry, claim)
        # Anyone may have written an unproven entry, so its batch is not necessarily done.
        return replace(abort_result, done_batch=None if entry.is_unproven else entry.last_decided_batch)


@contextmanager
def _lease_query_transactions(options: Mapping[str, str], prefix: str, log_topic: str) -> Iterator[QueryTransactions]:
    """Yield the QueryTransactions of the query with this prefix. A client is leased for the duration of the block.

    Raise ConfigurationError if the topic of the decision log does not exist, and ExactlyOnceError if a newer driver of
    the query fences this process during the block.
    """
    config = ProducerConfig.parse(options).client_config()
    with QueryTransactions(config, validate_prefix(prefix), log_topic) as transactions:
        if not transactions.decision_log.exists():
            raise precommit_errors.build_unknown_prefix_error(log_topic, prefix, log_exists=False)
        try:
            yield transactions
        except ProducerFencedError as error:
            raise ExactlyOnceError(
                f"A newer driver has taken over the prefix {prefix} in the meantime, or brokers have ended a "
                "transaction of this command that took too long. Nothing that belongs to a newer driver was changed. "
                "List the query's transactions again. If a driver is running that should not be, stop it; then run "
                "this command again."
            ) from error


def _fence_driver(
    transactions: QueryTransactions, check_entry: Callable[[Entry], None]
) -> tuple[ProducerIdAndEpoch, Entry]:
    """Fence the query's driver, so that brokers reject it. Return this process's identity, and the newest entry.

    Raise ProducerFencedError if another driver claims the prefix at the same time, and ConfigurationError if the log
    has no entry for the prefix.

    `check_entry`: raises an error if the operation must not continue with the entry that it is called with.
    """
    entries_before_fencing: list[Entry] = []  # one for each attempt
    # Several attempts may be necessary. If a driver died while it was writing its decision, the decision's transaction
    # is still open. Brokers abort that transaction on the first request for an epoch, but reject the request itself.
    return transactions.retry_when_fenced(
        partial(_attempt_fencing, transactions, check_entry, entries_before_fencing),
        transactions.wait_and_describe_driver_id(),
    )


def _attempt_fencing(
    transactions: QueryTransactions,
    check_entry: Callable[[Entry], None],
    entries_before_fencing: list[Entry],
    description: TransactionDescription | None,
    possibly_stale_entry: Entry,
) -> tuple[ProducerIdAndEpoch, Entry]:
    """Make one attempt to fence the query's driver. Raise ProducerFencedError if another driver has become active.

    `entries_before_fencing`: the entry that each earlier attempt found. This attempt appends its own. If another
    driver has claimed the prefix since the first attempt, it is not fenced.
    `description`: the description of the driver id, which is the driver's transactional id.
    `possibly_stale_entry`: the entry before this attempt. The same driver may have written a decision since the first
    attempt.
    """
    if not possibly_stale_entry.generation:  # nobody has claimed the prefix yet
        raise precommit_errors.build_unknown_prefix_error(
            transactions.decision_log.topic, transactions.prefix, log_exists=True
        )
    entries_before_fencing.append(possibly_stale_entry)
    if not _have_same_claim(possibly_stale_entry, entries_before_fencing[0]):
        raise precommit_errors.build_other_driver_error(transactions.driver_id)
    check_entry(possibly_stale_entry)  # before fencing, so that no driver is fenced for nothing
    transactions.check_unchanged(description)
    identity = transactions.fence(description)
    entry = transactions.read_entry()  # not stale, because older drivers can no longer write
    check_entry(entry)
    return identity, entry


def _have_same_claim(entry: Entry, other: Entry) -> bool:
    """Return whether no driver has claimed the prefix between these two entries."""
    return (entry.generation, entry.claim_identity) == (other.generation, other.claim_identity)


def check_not_decided(entry: Entry) -> None:
    """Raise ExactlyOnceError if the entry's batch is decided but not done, so that it must not be aborted."""
    if entry.state is EntryState.DECIDED:
        raise ExactlyOnceError(
            precommit_errors.join_sentences(
                f"{entry.batch} (prefix {entry.prefix}) is decided: its transactions must be committed, and some may "
                "already be committed. Run `pykafka transactions finish` or, if that is no longer possible, `give-up`.",
                precommit_errors.describe_unknown_writer(entry),
            )
        )


class _NothingDecidedError(Exception):
    """There is nothing to finish: the log contains no batch of the query that is decided but not done."""


def _require_decision(entry: Entry) -> None:
    """Raise _NothingDecidedError unless the entry's batch is decided but not done."""
    if entry.state is not EntryState.DECIDED:
        raise _NothingDecidedError


def _finish_decided_batch(
    options: Mapping[str, str], prefix: str, log_topic: str, *, give_up: bool
) -> FinishResult | None:
    """Commit the transactions of the batch that is decided but not done, and record the batch as done.

    Return None if there is no such batch. If transactions are lost, which means that they can no longer be committed,
    record the batch as done only if `give_up` is true. If a commit is rejected for any other reason, raise
    ExactlyOnceError, and leave the log unchanged.
    """
    with _lease_query_transactions(options, prefix, log_topic) as transactions:
        try:
            identity, entry = _fence_driver(transactions, _require_decision)
        except _NothingDecidedError:
            return None
        errors_by_id = transactions.commit(entry)
        if errors_by_id and transactions.has_lost_epoch(identity):
            raise precommit_errors.build_other_driver_error(transactions.driver_id)
        if not all(commit_errors.is_transaction_lost(error) for error in errors_by_id.values()):
            raise commit_errors.build_uncommitted_batch_error(entry, errors_by_id)
        abort_result = AbortResult()
        if give_up or not errors_by_id:
            final_entry = entry.as_given_up() if give_up else entry.as_done()
            claim = _build_claim(final_entry, identity)
            # Superseded task attempts may have left transactions open, and read_committed readers wait for them.
            with _convert_errors_after_commit(entry, "give-up" if give_up else "finish"):
                abort_result = _claim_and_abort_open_transactions(transactions, identity, entry, claim)
        decided_ids = [transaction.transactional_id for transaction in entry.transactions]
        committed_ids = tuple(
            transactional_id for transactional_id in decided_ids if transactional_id not in errors_by_id
        )
        return FinishResult(entry, committed_ids, errors_by_id, abort_result)


@contextmanager
def _convert_errors_after_commit(entry: Entry, action: str) -> Iterator[None]:
    """Convert errors in the block to an ExactlyOnceError, except for a ProducerFencedError.

    The block records that the batch is done, and aborts the transactions of superseded task attempts.

    `action`: the action of `pykafka transactions` that the block belongs to.
    """
    try:
        yield
    except ProducerFencedError:
        raise
    except KafkaSinkError as error:
        if is_generated_job_prefix(entry.prefix):
            next_step = "run `pykafka transactions abort`. If the log has no entry for the prefix, everything is done."
        else:
            next_step = (
                "and no query or job with this prefix is running, end the open transactions with `pykafka transactions "
                "abort`."
            )
        raise ExactlyOnceError(
            f"No transaction of {entry.batch} is left to commit (prefix {entry.prefix}), but it is not known whether "
            f"this is recorded in the decision log, and {commit_errors.MAY_STAY_OPEN_MESSAGE}: {error} Run `pykafka "
            f"transactions {action}` again. If there is nothing to {action.replace('-', ' ')}, {next_step}"
        ) from error


def _claim_and_abort_open_transactions(
    transactions: QueryTransactions, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry
) -> AbortResult:
    """Become the query's current driver, and abort the transactions that its tasks have left open.

    `identity`: this process's producer id and epoch.
    `claim`: the entry to write after `previous_entry`. It names this process as the current driver.
    """
    take_over = transactions.take_over(identity, previous_entry, claim)
    abort_errors = take_over.abort_errors
    if is_generated_job_prefix(transactions.prefix) and not abort_errors:
        # No later job would delete the entry of a job without a name. Delete it last, because the job's transactions
        # can be found only through the entry.
        transactions.delete_entry(WriterState(take_over.identity))
    aborted_ids = tuple(
        transaction.transactional_id
        for transaction in take_over.listed_transactions
        if transaction.is_open and transaction.transactional_id not in abort_errors
    )
    return AbortResult(aborted_ids, abort_errors)


def _build_claim(entry: Entry, identity: ProducerIdAndEpoch) -> Entry:
    """Return a copy of the entry that names this process as the query's current driver."""
    operator_name = build_operator_name(platform.node(), uuid.uuid4().hex[:8])
    return entry.with_claim(operator_name, checkpoint=entry.checkpoint, timeout_ms=0, claim_identity=identity)


def _read_entries(client: BlockingClient, log: DecisionLog, prefix: str | None) -> dict[str, Entry]:
    """Return the newest entry of this prefix, or of all prefixes if `prefix` is None, by prefix."""
    list_ids_by_producer = functools.cache(lambda: fetch_ids_by_producer(client))
    if prefix is None:
        return log.read_entries(lambda numbers: _describe_driver_ids(client, numbers, list_ids_by_producer))
    driver_ids = DriverIds(
        prefix,
        describe_transactions=lambda ids: describe_transactions(client, ids),
        list_ids_by_producer=list_ids_by_producer,
    )
    driver_ids.load_missing([FIRST_DRIVER_NUMBER])
    entry = log.read_entry(driver_ids)
    return {} if entry is None else {prefix: entry}


def _describe_driver_ids(
    client: BlockingClient,
    driver_numbers_by_prefix: Mapping[str, Collection[int]],
    list_ids_by_producer: Callable[[], Mapping[int, str]],
) -> dict[str, DriverIds]:
    """Describe the driver ids of several prefixes, which are the transactional ids of their drivers.

    Return them by prefix. Other users may use the same log. If this user may not describe all of the ids, log a
    warning, and return only the prefixes with a driver id that brokers list for this user. Prefixes of other users, and
    prefixes that brokers have forgotten, are then missing.

    `driver_numbers_by_prefix`: the numbers of the driver ids to describe; the id `orders-driver-2` has number 2.
    `list_ids_by_producer`: lists the transactional ids that this user may see, by producer id.
    """
    prefixes_by_driver_id = {
        build_driver_id(prefix, number): prefix
        for prefix, numbers in driver_numbers_by_prefix.items()
        for number in numbers
    }
    try:
        descriptions = describe_transactions(client, prefixes_by_driver_id)
    except AuthorizationError as error:
        # The whole request fails if this user may not describe one of the ids. Try again with the ids that brokers list
        # for this user.
        visible_ids = set(list_ids_by_producer().values())
        prefixes_by_driver_id = {
            driver_id: prefix for driver_id, prefix in prefixes_by_driver_id.items() if driver_id in visible_ids
        }
        _log.warning(
            "Only %d of %d prefixes are shown. This user may not describe the driver ids of the others, or the brokers "
            "have forgotten them: %s",
            len(set(prefixes_by_driver_id.values())),
            len(driver_numbers_by_prefix),
            error,
        )
        descriptions = describe_transactions(client, prefixes_by_driver_id)
    driver_ids_by_prefix = {
        prefix: DriverIds(
            prefix,
            describe_transactions=lambda ids: describe_transactions(client, ids),
            list_ids_by_producer=list_ids_by_producer,
        )
        for prefix in dict.fromkeys(prefixes_by_driver_id.values())
    }
    for prefix, driver_ids in driver_ids_by_prefix.items():
        for number in driver_numbers_by_prefix[prefix]:
            driver_ids.record_description(number, descriptions.get(build_driver_id(prefix, number)))
    return driver_ids_by_prefix


def _is_listed_task_id(transactional_id: str, known_prefixes: Iterable[str], only_prefix: str | None) -> bool:
    """Return whether this is the transactional id of a task with the prefix `only_prefix`.

    If `only_prefix` is None, accept the known prefixes, and every prefix that the sink has generated.
    """
    task_id = parse_task_id(transactional_id)
    if task_id is None:
        return False
    if only_prefix is not None:
        return task_id.prefix == only_prefix
    return task_id.prefix in known_prefixes or task_id.prefix.startswith(GENERATED_PREFIX)
