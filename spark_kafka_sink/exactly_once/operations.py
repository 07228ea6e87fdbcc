"""What a person may do with this sink's transactions from outside: look, finish, abort, give up.

For `pykafka transactions`. Looking changes nothing. To finish or to give up is to commit what is decided, and to note
it. To abort is to take over from the driver, as another driver would: it is fenced first, then the open transactions
are listed, then the log says who has taken over, and then exactly what was listed is ended. A query that runs fails at
its next commit with an error that names the reason, and goes on when it is started again.
"""

from __future__ import annotations

import logging
import platform
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ExactlyOnceError,
    KafkaSinkError,
    ProducerFencedError,
)
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.clients import lent
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import TIMEOUTS_MS
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.job_names import is_abandoned, is_job_prefix, whose
from spark_kafka_sink.exactly_once.log_writer import Held
from spark_kafka_sink.exactly_once.names import (
    DECISION_LOG_TOPIC,
    OWN_PREFIX,
    checked_prefix,
    driver_id,
    split_id,
)
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions, has_claimed
from spark_kafka_sink.exactly_once.transactions_client import TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.transaction_description import ONGOING, TransactionDescription

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
    with lent(config) as client:
        log = DecisionLog(config, topic, client.blocking)
        log_exists = log.exists()
        entries = _entries(client, log, prefix) if log_exists else {}
        found = client.describe(client.ids(lambda name: _is_ours(name, entries, prefix), ONGOING)).values()
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


def free_abandoned_jobs(options: Mapping[str, str], topic: str) -> None:
    """Finish or abort what jobs without a name have left on this machine, whose driver's process has ended."""
    with lent(ProducerConfig.parse(options).client_config()) as client:
        names = (split_id(name) for name in client.ids(lambda name: True, ONGOING))
    for prefix in sorted({split[0] for split in names if split is not None and is_abandoned(split[0])}):
        _free(options, prefix, topic)


def _free(options: Mapping[str, str], prefix: str, topic: str) -> None:
    try:
        finished = finish(options, prefix, topic)
        if finished is not None and finished.lost:
            raise refusals.not_committed(finished.entry, finished.lost)
        if finished is None:
            abort(options, prefix, topic)
        _log.info("%s has ended and left transactions open (prefix %s): they are ended now", whose(prefix), prefix)
    except KafkaSinkError as error:
        _log.warning("what %s has left open (prefix %s) is not ended: %s", whose(prefix), prefix, error)


@contextmanager
def _opened(options: Mapping[str, str], prefix: str, topic: str) -> Iterator[QueryTransactions]:
    with QueryTransactions(options, checked_prefix(prefix), topic) as query:
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

    def turn(seen: TransactionDescription | None) -> tuple[ProducerIdAndEpoch, int, Entry]:
        hint = query.entry()
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
        if not all(refusals.is_lost(error) for error in refused.values()):
            raise refusals.not_yet_committed(entry, refused)
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


def _entries(client: TransactionsClient, log: DecisionLog, prefix: str | None) -> dict[str, Entry]:
    if prefix is None:
        return log.entries(lambda prefixes: _drivers(client, prefixes), client.owners)
    driver = client.describe([driver_id(prefix)]).get(driver_id(prefix))
    producer_ids = () if driver is None else (driver.id_and_epoch.producer_id,)
    is_claimed = driver is not None and has_claimed(driver)
    entry = log.entry(prefix, producer_ids, client.owners, is_claimed=is_claimed)
    return {} if entry is None else {prefix: entry}


def _drivers(client: TransactionsClient, prefixes: Sequence[str]) -> dict[str, TransactionDescription | None]:
    """Who holds the drivers' ids of these prefixes; None of one that brokers do not know.

    Others may use the same log. If this user may not see all of its drivers, a warning says so, and the answer has only
    the drivers that brokers list: it cannot be known whether brokers have forgotten the others.
    """
    names = {driver_id(prefix): prefix for prefix in prefixes}
    try:
        found = client.describe(names)
    except AuthorizationError as error:
        visible = set(client.owners().values())
        names = {name: prefix for name, prefix in names.items() if name in visible}
        _log.warning(
            "%d of %d prefixes are shown: of the others this user may not see the driver's transactional id, or the "
            "brokers have forgotten it: %s",
            *(len(names), len(prefixes), error),
        )
        found = client.describe(names)
    return {prefix: found.get(name) for name, prefix in names.items()}


def _is_ours(transactional_id: str, prefixes: Iterable[str], wanted: str | None) -> bool:
    split = split_id(transactional_id)
    if split is None:
        return False
    if wanted is not None:
        return split[0] == wanted
    return split[0] in prefixes or split[0].startswith(OWN_PREFIX)
