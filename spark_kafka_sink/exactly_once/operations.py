"""What a person may do with this sink's transactions from outside: look, finish, abort, give up.

For `pykafka transactions`. Looking changes nothing. Everything else fences the driver of the prefix first, so that
no other process decides meanwhile. A query that runs fails at its next commit with an error that names the reason, and
goes on when it is started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.entries import Entry, EntryState
from spark_kafka_sink.exactly_once.names import DECISION_LOG_TOPIC, OWN_PREFIX, checked_prefix, split_id, task_id
from spark_kafka_sink.exactly_once.prefix import Prefix
from spark_kafka_sink.exactly_once.transactions_client import ONGOING, TransactionDescription, TransactionsClient
from spark_kafka_sink.producer.config import ProducerConfig


@dataclass(frozen=True)
class PrefixSurvey:
    """What is known of one prefix. `entry`: None if the decision log says nothing of it."""

    prefix: str
    entry: Entry | None
    open: tuple[TransactionDescription, ...]

    @property
    def decided(self) -> tuple[str, ...]:
        """The transactional ids that are decided to be committed, and may not be so yet."""
        if self.entry is None or self.entry.state is not EntryState.DECIDED:
            return ()
        return tuple(task_id(self.prefix, each.task) for each in self.entry.transactions)

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
    with TransactionsClient(config) as client:
        log = DecisionLog(config, topic, client.blocking)
        entries = dict(log.glance()) if log.exists() else {}
        found = client.describe(client.ids(lambda name: _is_ours(name, entries, prefix), ONGOING)).values()
        open_by_prefix: dict[str, list[TransactionDescription]] = {}
        for each in found:
            split = split_id(each.transactional_id)
            if split is not None and each.is_open:
                open_by_prefix.setdefault(split[0], []).append(each)
    names = sorted({*entries, *open_by_prefix} if prefix is None else {prefix})
    return [PrefixSurvey(name, entries.get(name), tuple(open_by_prefix.get(name, ()))) for name in names]


def finish(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> Finished | None:
    """Commit what is decided and note that it is done. None if nothing is. If a part is lost, nothing is noted."""
    with Prefix(options, checked_prefix(prefix), topic) as held:
        return _finished(held, give_up=False)


def give_up(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> Finished | None:
    """Commit what can still be committed of what is decided, and note that it is done: the rest is lost."""
    with Prefix(options, checked_prefix(prefix), topic) as held:
        return _finished(held, give_up=True)


def abort(options: Mapping[str, str], prefix: str, topic: str = DECISION_LOG_TOPIC) -> list[TransactionDescription]:
    """Abort the open transactions of tasks under the prefix, and return them. ExactlyOnceError if they are decided."""
    with Prefix(options, checked_prefix(prefix), topic) as held:
        held.fence()
        entry = held.entry() if held.log.exists() else Entry(prefix)
        if entry.state is EntryState.DECIDED:
            raise ExactlyOnceError(
                f"{entry.batch} (prefix {prefix}) is decided: its transactions are to be committed, and some may be so "
                "already. Finish it; if that is not possible any more, give it up."
            )
        found = held.leftovers()
        held.abort(found)
        return [each for each in found if each.is_open]


def _finished(held: Prefix, *, give_up: bool) -> Finished | None:
    driver = held.fence()
    entry = held.entry() if held.log.exists() else Entry(held.name)
    if entry.state is not EntryState.DECIDED:
        return None
    lost = held.commit(entry)
    ids = [task_id(held.name, each.task) for each in entry.transactions]
    if give_up or not lost:
        held.write(driver, entry.done())
    return Finished(entry, tuple(name for name in ids if name not in lost), lost)


def _is_ours(transactional_id: str, prefixes: Iterable[str], wanted: str | None) -> bool:
    split = split_id(transactional_id)
    if split is None:
        return False
    if wanted is not None:
        return split[0] == wanted
    return split[0] in prefixes or split[0].startswith(OWN_PREFIX)
