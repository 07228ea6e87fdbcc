"""Operations of `pykafka transactions`: list prefixes, finish or give up a decided batch, abort open transactions.

Listing changes nothing. Finishing or giving up a batch commits its decided transactions and records that the batch is
done. Aborting takes over from the driver, as a newly started driver would:

    1. Fence the driver.
    2. List the open transactions.
    3. Claim the prefix in the log.
    4. Abort exactly the listed transactions.

A running query then fails at its next commit with an error that names the reason. It continues when it is started
again.
"""

from __future__ import annotations

import functools
import logging
import platform
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ExactlyOnceError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import commit_errors, precommit_errors
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.delivery import CANDIDATE_TIMEOUTS_MS
from spark_kafka_sink.exactly_once.driver_ids import DriverIds, GrantedEpoch
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.job_names import is_job_prefix
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
    """The state of a transactional id prefix in the decision log and on the brokers."""

    prefix: str
    """The prefix of all transactional ids of one query or job."""
    entry: Entry | None
    """The prefix's entry in the decision log, if any."""
    open_transactions: tuple[TransactionDescription, ...]
    """All open transactions, whether decided or not."""
    log_exists: bool = True
    """Whether the topic of the decision log exists. Without it, there is no entry, but transactions may be open."""

    @property
    def decided_ids(self) -> tuple[str, ...]:
        """The transactional ids of the decided batch, some of which may not have been committed yet."""
        if self.entry is None or self.entry.state is not EntryState.DECIDED:
            return ()
        return tuple(transaction.transactional_id for transaction in self.entry.transactions)

    @property
    def undecided_transactions(self) -> tuple[TransactionDescription, ...]:
        """The open transactions without a decision. They belong to the batch in progress or to an earlier batch."""
        decided_ids = set(self.decided_ids)
        return tuple(
            transaction for transaction in self.open_transactions if transaction.transactional_id not in decided_ids
        )


@dataclass(frozen=True)
class FinishResult:
    """The result of `finish` and `give_up`."""

    entry: Entry
    committed_ids: tuple[str, ...]
    errors_by_lost_id: Mapping[str, BrokerError]
    """The errors of transactions that can no longer be committed, by transactional id."""


def list_prefixes(
    options: Mapping[str, str], topic: str = DECISION_LOG_TOPIC, prefix: str | None = None
) -> list[PrefixStatus]:
    """Return the status of this prefix, or of all prefixes if it is None.

    `options`: producer options.
    """
    config = ProducerConfig.parse(options).client_config()
    with lease_client(config) as client:
        log = DecisionLog(config, topic, client)
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


def finish(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> FinishResult | None:
    """Commit a decided batch and record that it is done. Return None if no batch is decided.

    If one of the batch's transactions is lost, the others are committed, but the batch is not recorded as done. Raise
    ExactlyOnceError if a commit is rejected although the transaction is not lost.
    """
    return _finish_decided_batch(options, prefix, topic, give_up=False)


def give_up(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> FinishResult | None:
    """Commit those transactions of a decided batch that are not lost, and record that the batch is done.

    Return None if no batch is decided. Raise ExactlyOnceError if a commit is rejected although the transaction is not
    lost, because it could still be committed later.
    """
    return _finish_decided_batch(options, prefix, topic, give_up=True)


def abort(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> list[TransactionDescription]:
    """Abort the open transactions of the prefix's tasks, and return them.

    Raise ExactlyOnceError if a batch is decided but not done.
    """
    with _open_query(options, prefix, topic) as query:
        epoch, entry = _fence_driver(query, _check_not_decided)
        claim = _build_claim(entry, epoch)
        return [description for description in _take_over(query, epoch.identity, entry, claim) if description.is_open]


@contextmanager
def _open_query(options: Mapping[str, str], prefix: str, topic: str) -> Iterator[QueryTransactions]:
    """Yield the query with this prefix. Raise ConfigurationError if the log does not exist.

    Raise ExactlyOnceError if a newer driver takes over during the block.
    """
    config = ProducerConfig.parse(options).client_config()
    with QueryTransactions(config, validate_prefix(prefix), topic) as query:
        if not query.decision_log.exists():
            raise precommit_errors.build_unknown_prefix_error(topic, prefix, log_exists=False)
        try:
            yield query
        except ProducerFencedError as error:
            raise ExactlyOnceError(
                f"A newer driver has taken over the query with the prefix {prefix} at the same time. Nothing that "
                "belongs to that driver was changed. Check the query again; stop it first if it should not run."
            ) from error


def _fence_driver(query: QueryTransactions, check_entry: Callable[[Entry], None]) -> tuple[GrantedEpoch, Entry]:
    """Fence the prefix's driver. Return the epoch that this process has been granted, and the newest entry.

    `check_entry` raises if the operation must not continue. It is called with the entry read before fencing, so that no
    driver is fenced for nothing, and again with the entry read after fencing, which is final.

    Fencing is retried. A driver that died while it was writing its decision has left the decision's transaction open.
    Brokers then abort this transaction and reject the first attempt to fence. A driver that has claimed the prefix
    since the first read is not fenced. If the same driver has made a decision since then, `check_entry` gets the entry
    with this decision.
    """
    entries_before_fencing: list[Entry] = []  # one for each try

    def fence_unless_claimed(
        description: TransactionDescription | None, possibly_stale_entry: Entry
    ) -> tuple[GrantedEpoch, Entry]:
        """Fence the driver, unless another driver has claimed the prefix since the first try."""
        if not possibly_stale_entry.generation:
            raise precommit_errors.build_unknown_prefix_error(query.decision_log.topic, query.prefix, log_exists=True)
        entries_before_fencing.append(possibly_stale_entry)
        if not _have_same_claim(possibly_stale_entry, entries_before_fencing[0]):
            raise precommit_errors.build_fenced_error(query.driver_id)
        check_entry(possibly_stale_entry)
        query.check_unchanged(description)
        epoch = query.fence(description, CANDIDATE_TIMEOUTS_MS)
        entry = query.read_entry()
        check_entry(entry)
        return epoch, entry

    return query.retry_when_fenced(fence_unless_claimed, query.wait_and_describe_driver_id())


def _have_same_claim(entry: Entry, other: Entry) -> bool:
    return (entry.generation, entry.claim_identity) == (other.generation, other.claim_identity)


def _check_not_decided(entry: Entry) -> None:
    if entry.state is EntryState.DECIDED:
        raise ExactlyOnceError(
            precommit_errors.join_sentences(
                f"{entry.batch} (prefix {entry.prefix}) is decided: its transactions must be committed, and some may "
                "already be committed. Run `pykafka transactions finish` or, if that is no longer possible, `give-up`.",
                precommit_errors.describe_unknown_writer(entry),
            )
        )


class _NothingDecidedError(Exception):
    """Ends an operation because the decision log contains no decided batch that is not done."""


def _require_decision(entry: Entry) -> None:
    if entry.state is not EntryState.DECIDED:
        raise _NothingDecidedError


def _finish_decided_batch(options: Mapping[str, str], prefix: str, topic: str, *, give_up: bool) -> FinishResult | None:
    """Commit the transactions of the decided batch, and record it as done. Return None if no batch is decided.

    Lost transactions can no longer be committed. If any are lost, the batch stays decided unless `give_up` is set. Any
    other rejection raises an error and leaves the log unchanged.
    """
    with _open_query(options, prefix, topic) as query:
        try:
            epoch, entry = _fence_driver(query, _require_decision)
        except _NothingDecidedError:
            return None
        errors_by_id = query.commit(entry, epoch.identity)
        if not all(commit_errors.is_lost(error) for error in errors_by_id.values()):
            raise commit_errors.build_uncommitted_batch_error(entry, errors_by_id)
        if give_up or not errors_by_id:
            final_entry = entry.as_given_up() if give_up else entry.as_done()
            _record_outcome(query, epoch, entry, final_entry)
        decided_ids = [transaction.transactional_id for transaction in entry.transactions]
        committed_ids = tuple(
            transactional_id for transactional_id in decided_ids if transactional_id not in errors_by_id
        )
        return FinishResult(entry, committed_ids, errors_by_id)


def _record_outcome(query: QueryTransactions, epoch: GrantedEpoch, decided_entry: Entry, final_entry: Entry) -> None:
    """Write the final entry of a batch to the decision log, as a claim of this process."""
    claim = _build_claim(final_entry, epoch)
    if is_job_prefix(query.prefix):
        # No later run uses a generated job prefix, so the transactions that the tasks of the job left open are
        # aborted here. A query's next driver aborts those of its own tasks when it starts.
        _take_over(query, epoch.identity, decided_entry, claim)
    else:
        query.claim(epoch.identity, decided_entry, claim)


def _take_over(
    query: QueryTransactions, identity: ProducerIdAndEpoch, previous_entry: Entry, claim: Entry
) -> Sequence[TransactionDescription]:
    """Claim the prefix, abort the open transactions of its tasks, and return these transactions.

    If the prefix belongs to a job without a name, delete the prefix's entry. This is the last step, because the job's
    transactions can be found only through the entry.
    """
    take_over = query.take_over(identity, previous_entry, claim)
    if is_job_prefix(query.prefix):
        query.delete_entry(WriterState(take_over.identity))
    return take_over.aborted_transactions


def _build_claim(entry: Entry, epoch: GrantedEpoch) -> Entry:
    """Return the entry with a claim by this process, which counts as a driver of its own."""
    claimant_name = f"`pykafka transactions` on {platform.node()}, {uuid.uuid4().hex[:8]}"
    return entry.with_claim(
        claimant_name, checkpoint=entry.checkpoint, timeout_ms=epoch.timeout_ms, claim_identity=epoch.identity
    )


def _read_entries(client: BlockingClient, log: DecisionLog, prefix: str | None) -> dict[str, Entry]:
    """Return the entry of this prefix, or of all prefixes if it is None, by prefix."""
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
    numbers_by_prefix: Mapping[str, Collection[int]],
    list_ids_by_producer: Callable[[], Mapping[int, str]],
) -> dict[str, DriverIds]:
    """Describe the driver ids with the given numbers of each prefix.

    Other users may use the same log. If this user may not describe all driver ids, log a warning and return only the
    ids that brokers list. Brokers may also omit an id because they have forgotten it.
    """
    prefixes_by_driver_id = {
        build_driver_id(prefix, number): prefix for prefix, numbers in numbers_by_prefix.items() for number in numbers
    }
    try:
        descriptions = describe_transactions(client, prefixes_by_driver_id)
    except AuthorizationError as error:
        visible_ids = set(list_ids_by_producer().values())
        prefixes_by_driver_id = {
            driver_id: prefix for driver_id, prefix in prefixes_by_driver_id.items() if driver_id in visible_ids
        }
        _log.warning(
            "Only %d of %d prefixes are shown. This user may not describe the driver ids of the others, or the brokers "
            "have forgotten them: %s",
            len(set(prefixes_by_driver_id.values())),
            len(numbers_by_prefix),
            error,
        )
        descriptions = describe_transactions(client, prefixes_by_driver_id)
    ids_by_prefix = {
        prefix: DriverIds(
            prefix,
            describe_transactions=lambda ids: describe_transactions(client, ids),
            list_ids_by_producer=list_ids_by_producer,
        )
        for prefix in dict.fromkeys(prefixes_by_driver_id.values())
    }
    for prefix, driver_ids in ids_by_prefix.items():
        for number in numbers_by_prefix[prefix]:
            driver_ids.record_description(number, descriptions.get(build_driver_id(prefix, number)))
    return ids_by_prefix


def _is_listed_task_id(transactional_id: str, known_prefixes: Iterable[str], only_prefix: str | None) -> bool:
    """Return whether this is a task id of `only_prefix`.

    If `only_prefix` is None, return whether this is a task id of a known prefix or of a generated prefix.
    """
    task_id = parse_task_id(transactional_id)
    if task_id is None:
        return False
    if only_prefix is not None:
        return task_id.prefix == only_prefix
    return task_id.prefix in known_prefixes or task_id.prefix.startswith(GENERATED_PREFIX)
