"""What a person may do with this sink's transactions from outside: look, finish, abort, give up.

For `pykafka transactions`. Looking changes nothing. To finish or to give up is to commit what is decided, and to note
it. To abort is to take over from the driver, as another driver would: it is fenced first, then the open transactions
are listed, then the log says who has taken over, and then exactly what was listed is ended. A query that runs fails at
its next commit with an error that names the reason, and goes on when it is started again.
"""

from __future__ import annotations

import functools
import logging
import platform
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ExactlyOnceError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import commit_errors, refusals
from spark_kafka_sink.exactly_once.clients import lease_client
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import TIMEOUTS_MS
from spark_kafka_sink.exactly_once.driver_ids import DriverIds
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.job_names import is_job_prefix
from spark_kafka_sink.exactly_once.log_writer import Held
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.transaction_names import (
    DECISION_LOG_TOPIC,
    FIRST_DRIVER,
    OWN_PREFIX,
    checked_prefix,
    driver_id,
    split_id,
)
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, list_transactional_ids, owners
from spark_kafka_sink.requests.transaction_description import ONGOING, TransactionDescription

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PrefixSurvey:
    """What is known of one prefix. `entry`: None if the decision log says nothing of it."""

    prefix: str
    entry: Entry | None
    open: tuple[TransactionDescription, ...]
    log_exists: bool = True

    @property
    def decided(self) -> tuple[str, ...]:
        """The transactional ids that are decided to be committed, and may not be so yet."""
        if self.entry is None or self.entry.state is not EntryState.DECIDED:
            return ()
        return tuple(each.transactional_id for each in self.entry.transactions)

    @property
    def undecided(self) -> tuple[TransactionDescription, ...]:
        """Open, and not among the decided: of a batch that is being written, or left over."""
        decided = set(self.decided)
        return tuple(each for each in self.open if each.transactional_id not in decided)


@dataclass(frozen=True)
class Finished:
    """`lost`: what could not be committed any more, by transactional id."""

    entry: Entry
    committed: tuple[str, ...]
    lost: Mapping[str, BrokerError]


def survey(
    options: Mapping[str, str], topic: str = DECISION_LOG_TOPIC, prefix: str | None = None
) -> list[PrefixSurvey]:
    """All prefixes, or this one. `options`: of a producer, by their names."""
    config = ProducerConfig.parse(options).client_config()
    with lease_client(config) as client:
        log = DecisionLog(config, topic, client)
        log_exists = log.exists()
        entries = _entries(client, log, prefix) if log_exists else {}
        ids = [name for name in list_transactional_ids(client, ONGOING) if _is_ours(name, entries, prefix)]
        found = describe_transactions(client, ids).values()
        open_by_prefix: dict[str, list[TransactionDescription]] = {}
        for each in found:
            split = split_id(each.transactional_id)
            if split is not None and each.is_open:
                open_by_prefix.setdefault(split[0], []).append(each)
    names = sorted({*entries, *open_by_prefix} if prefix is None else {prefix})
    return [PrefixSurvey(name, entries.get(name), tuple(open_by_prefix.get(name, ())), log_exists) for name in names]


def finish(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> Finished | None:
    """Commit what is decided and note that it is done. None if nothing is. If a part is lost, nothing is noted."""
    return _finished(options, prefix, topic, give_up=False)


def give_up(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> Finished | None:
    """Commit what can still be committed of what is decided, and note that it is done: the rest is lost.

    ExactlyOnceError if something is refused that is not lost: it could still be committed.
    """
    return _finished(options, prefix, topic, give_up=True)


def abort(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> list[TransactionDescription]:
    """Abort the open transactions of tasks under the prefix, and return them. ExactlyOnceError if they are decided."""
    with _opened(options, prefix, topic) as query:
        driver, granted_ms, entry = _fenced(query, _refuse_decided)
        claim = entry.begun(_person(), "", granted_ms, driver)
        return [each for each in _end_leftovers(query, driver, entry, claim) if each.is_open]


@contextmanager
def _opened(options: Mapping[str, str], prefix: str, topic: str) -> Iterator[QueryTransactions]:
    config = ProducerConfig.parse(options).client_config()
    with QueryTransactions(config, checked_prefix(prefix), topic) as query:
        if not query.log.exists():
            raise refusals.unknown_prefix(topic, prefix, exists=False)
        try:
            yield query
        except ProducerFencedError as error:
            raise ExactlyOnceError(
                f"A newer driver has taken over the query with the prefix {prefix} at this moment. Nothing that "
                "belongs to it was touched. Look again; stop the query first if it should not run."
            ) from error


def _fenced(query: QueryTransactions, check: Callable[[Entry], None]) -> tuple[ProducerIdAndEpoch, int, Entry]:
    """Fence the driver of the prefix: the epoch, which timeout brokers grant, and the newest entry.

    `check` looks at the entry before that, so that no driver is fenced for nothing, and at the entry after it, which
    counts.

    In turns, since a driver that died in its decision has left that open: brokers abort it, and refuse the fence. A
    driver that has claimed the prefix meanwhile is left alone; what the same driver has decided meanwhile is for
    `check`.
    """
    hints: list[Entry] = []

    def turn(seen: TransactionDescription | None, hint: Entry) -> tuple[ProducerIdAndEpoch, int, Entry]:
        if not hint.generation:
            raise refusals.unknown_prefix(query.log.topic, query.prefix, exists=True)
        hints.append(hint)
        if (hint.generation, hint.claimed) != (hints[0].generation, hints[0].claimed):
            raise refusals.fenced(query.driver_id)
        check(hint)
        query.look_again(seen)
        driver, granted_ms = query.fence(seen, TIMEOUTS_MS)
        entry = query.entry()
        check(entry)
        return driver, granted_ms, entry

    return query.in_turns(turn, query.look_when_ended())


def _refuse_decided(entry: Entry) -> None:
    if entry.state is EntryState.DECIDED:
        raise ExactlyOnceError(
            f"{entry.batch} (prefix {entry.prefix}) is decided: its transactions are to be committed, and some may be "
            "so already. Finish it; if that is not possible any more, give it up." + refusals.doubt(entry)
        )


class _NothingDecidedError(Exception):
    """Ends an operation that has nothing to do."""


def _refuse_undecided(entry: Entry) -> None:
    if entry.state is not EntryState.DECIDED:
        raise _NothingDecidedError


def _finished(options: Mapping[str, str], prefix: str, topic: str, *, give_up: bool) -> Finished | None:
    with _opened(options, prefix, topic) as query:
        try:
            driver, granted_ms, entry = _fenced(query, _refuse_undecided)
        except _NothingDecidedError:
            return None
        refused = query.commit(entry, driver)
        if not all(commit_errors.is_lost(error) for error in refused.values()):
            raise commit_errors.not_yet_committed(entry, refused)
        if give_up or not refused:
            done = entry.given_up() if give_up else entry.done()
            claim = done.begun(_person(), "", granted_ms, driver)
            if is_job_prefix(query.prefix):
                _end_leftovers(query, driver, entry, claim)
            else:
                query.claim(driver, entry, claim)
        ids = [each.transactional_id for each in entry.transactions]
        return Finished(entry, tuple(name for name in ids if name not in refused), refused)


def _end_leftovers(
    query: QueryTransactions, driver: ProducerIdAndEpoch, found: Entry, claim: Entry
) -> list[TransactionDescription]:
    """Abort what tasks have open. A job without a name is forgotten then, and not before: the log leads to it."""
    driver, ended = query.take_over(driver, found, claim)
    if is_job_prefix(query.prefix):
        query.write(Held(driver), None)
    return ended


def _person() -> str:
    return f"`pykafka transactions` on {platform.node()}, {uuid.uuid4().hex[:8]}"


def _entries(client: BlockingClient, log: DecisionLog, prefix: str | None) -> dict[str, Entry]:
    listed = functools.cache(lambda: owners(client))
    if prefix is None:
        return log.entries(lambda numbers: _driver_ids(client, numbers, listed))
    ids = DriverIds(prefix, lambda names: describe_transactions(client, names), listed)
    ids.describe_new([FIRST_DRIVER])
    entry = log.entry(ids)
    return {} if entry is None else {prefix: entry}


def _driver_ids(
    client: BlockingClient, numbers: Mapping[str, Collection[int]], listed: Callable[[], Mapping[int, str]]
) -> dict[str, DriverIds]:
    """Describe the drivers' ids of these prefixes with these numbers.

    Others may use the same log. If this user may not see all of its drivers, a warning says so, and the answer has only
    the drivers that brokers list: it cannot be known whether brokers have forgotten the others.
    """
    names = {driver_id(prefix, number): prefix for prefix in numbers for number in numbers[prefix]}
    try:
        found = describe_transactions(client, names)
    except AuthorizationError as error:
        visible = set(listed().values())
        names = {name: prefix for name, prefix in names.items() if name in visible}
        _log.warning(
            "%d of %d prefixes are shown: of the others this user may not see the driver's transactional id, or the "
            "brokers have forgotten it: %s",
            *(len(set(names.values())), len(numbers), error),
        )
        found = describe_transactions(client, names)
    prefixes = dict.fromkeys(names.values())
    known = {prefix: DriverIds(prefix, lambda more: describe_transactions(client, more), listed) for prefix in prefixes}
    for prefix, ids in known.items():
        for number in numbers[prefix]:
            ids.note(number, found.get(driver_id(prefix, number)))
    return known


def _is_ours(transactional_id: str, prefixes: Iterable[str], wanted: str | None) -> bool:
    split = split_id(transactional_id)
    if split is None:
        return False
    if wanted is not None:
        return split[0] == wanted
    return split[0] in prefixes or split[0].startswith(OWN_PREFIX)
