"""CoordinatorQuestions: asks the coordinators of many transactional ids at once, until each id has a final answer.

An id is in one of four places:

    due          waits until it may be asked, without a pause at first
    looked up    its coordinator is not known, and a broker was asked for it
    under way    its coordinator was asked
    done         it has a final answer: a success, or a refusal that the caller must judge

Every coordinator has a line of its own (reader/blocking_client.py): one that cannot be reached, or says nothing, holds
up the ids that it coordinates and no others. Their coordinators are looked up anew, all in one request. An id that was
refused for now, or whose coordinator was lost, is due again after a pause that grows. Each id that is done renews the
patience for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.producer.transactions import requests
from spark_kafka_sink.producer.transactions.answers import Verdict, verdict
from spark_kafka_sink.producer.transactions.coordinators import COMPLETING_PAUSE_MS
from spark_kafka_sink.producer.transactions.requests import TRANSACTION, Kind, VersionedMessage
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient, Question

PAUSE_MS_MAX = 1_000.0

AnswerT = TypeVar("AnswerT", bound=Message)


@dataclass(frozen=True)
class About(Generic[AnswerT]):
    """What is asked about transactional ids."""

    kind: Kind
    answer_type: type[AnswerT]
    message: Callable[[Sequence[str]], VersionedMessage]
    """The request about these ids: one, or several of one coordinator if they may go `together`."""
    codes: Callable[[AnswerT, Sequence[str]], Mapping[str, int]]
    """What an answer says of each id. One that it does not name is asked for again."""
    together: bool = False
    enough: int = error_codes.NONE
    """An error which says that what was asked for has begun."""

    def follows(self, code: int) -> Verdict:
        if code == self.enough:
            return Verdict.DONE
        return Verdict.RETRY if code == error_codes.UNKNOWN_SERVER_ERROR else verdict(self.kind, code)


class CoordinatorQuestions:
    """Used by one thread. Remembers who coordinates which id."""

    def __init__(self, client: BlockingClient) -> None:
        self.client = client
        self.coordinators: dict[str, Node] = {}
        self.in_doubt: set[str] = set()
        """Ids of which an answer was lost: what was asked for may be carried out yet. Callers take them out."""
        self.one_by_one = False
        """A broker before Kafka 3.0 was met, which looks up one id in a request."""

    def answers(self, about: About[AnswerT], transactional_ids: Iterable[str]) -> dict[str, AnswerT]:
        return _Round(self, about, transactional_ids).run()


class _Round(Generic[AnswerT]):
    """One call of `answers`."""

    def __init__(self, owner: CoordinatorQuestions, about: About[AnswerT], transactional_ids: Iterable[str]) -> None:
        self._owner = owner
        self._client = owner.client
        self._about = about
        self._patience = owner.client.patience(f"the attempt to {about.kind.value}")
        self._due = dict.fromkeys(transactional_ids, self._client.now())  # when the id may be asked
        self._asked = tuple(self._due)
        self._looked_up: dict[Asked, Sequence[str]] = {}
        self._under_way: dict[Asked, Sequence[str]] = {}
        self._done: dict[str, AnswerT] = {}
        self._failures: dict[str, int] = {}
        self._last_failure: KafkaSinkError | None = None

    def run(self) -> dict[str, AnswerT]:
        try:
            while self._due or self._looked_up or self._under_way:
                self._patience.check(self._last_failure)
                self._ask_due(self._client.now())
                for asked in self._client.step(min(self._next_due_ms(), self._patience.until_ms)):
                    self._take(asked)
        finally:
            self._client.drop([*self._looked_up, *self._under_way])
        return {name: self._done[name] for name in self._asked}

    # --- ask

    def _ask_due(self, now: float) -> None:
        coordinators, by_node = self._owner.coordinators, dict[Node, list[str]]()
        must_look_up = False
        for name in [name for name, due_ms in self._due.items() if due_ms <= now]:
            node = coordinators.get(name)
            if node is None:
                must_look_up = True
            else:
                by_node.setdefault(node, []).append(name)
                del self._due[name]
        for node, names in by_node.items():
            for part in [names] if self._about.together else [[name] for name in names]:
                self._under_way[self._client.start(Question(node, *self._about.message(part)))] = part
        if must_look_up and not self._looked_up:
            self._look_up([name for name in self._due if name not in coordinators])

    def _look_up(self, names: Sequence[str]) -> None:
        """Also those that are not due yet: it is one request for all."""
        node = self._client.any_node()
        if node is None:
            self._postpone(names, None)
        elif self._owner.one_by_one:
            for name in names:
                one = FindCoordinatorRequest(key_type=TRANSACTION, key=name)
                versions = VersionRange(TRANSACTION, requests.SEVERAL_KEYS_FROM - 1)
                self._looked_up[self._client.start(Question(node, one, versions))] = [name]
        else:
            all_of_them = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=list(names))
            versions = VersionRange(requests.SEVERAL_KEYS_FROM, FindCoordinatorRequest.VERSIONS.max)
            self._looked_up[self._client.start(Question(node, all_of_them, versions))] = names

    def _next_due_ms(self) -> float:
        """While coordinators are looked up, the ids without one are due when that has ended."""
        known = self._owner.coordinators
        return min(
            (due_ms for name, due_ms in self._due.items() if name in known or not self._looked_up), default=float("inf")
        )

    # --- take what comes

    def _take(self, asked: Asked) -> None:
        names = self._looked_up.pop(asked, None)
        if names is not None:
            self._take_coordinators(asked, names)
            return
        names = self._under_way.pop(asked, None)
        if names is None:
            return  # of a call that was given up
        if isinstance(asked.error, NetworkError):
            self._owner.in_doubt.update(names)
            self._look_up_later(names, asked.error)
            return
        answer = asked.result(self._about.answer_type)
        codes = self._about.codes(answer, names)
        for name in names:
            code = codes.get(name, error_codes.UNKNOWN_SERVER_ERROR)
            follows = self._about.follows(code)
            if follows is Verdict.RETRY:
                self._postpone([name], refused(self._about.kind, name, code))
            elif follows is Verdict.LOOK_UP:
                self._look_up_later([name], refused(self._about.kind, name, code))
            else:
                self._done[name] = answer
                self._patience.renew()

    def _take_coordinators(self, asked: Asked, names: Sequence[str]) -> None:
        if isinstance(asked.error, UnsupportedVersionError) and not self._owner.one_by_one:
            self._owner.one_by_one = True
            return
        if isinstance(asked.error, NetworkError):
            self._postpone(names, asked.error)
            return
        answer = asked.result(FindCoordinatorResponse)
        rows = {row.key: (row.error_code, Node(row.node_id, row.host, row.port)) for row in answer.coordinators}
        if self._owner.one_by_one:
            rows = {names[0]: (answer.error_code, Node(answer.node_id, answer.host, answer.port))}
        for name in names:
            code, coordinator = rows.get(name, (error_codes.COORDINATOR_NOT_AVAILABLE, None))
            if code == error_codes.NONE and coordinator is not None:
                self._owner.coordinators[name] = coordinator
                continue
            failure = refused(Kind.FIND_COORDINATOR, name, code)
            if code != error_codes.UNKNOWN_SERVER_ERROR and verdict(Kind.FIND_COORDINATOR, code) is not Verdict.RETRY:
                raise failure
            self._postpone([name], failure)

    def _look_up_later(self, names: Sequence[str], failure: KafkaSinkError) -> None:
        for name in names:
            self._owner.coordinators.pop(name, None)
        self._postpone(names, failure)

    def _postpone(self, names: Sequence[str], failure: KafkaSinkError | None) -> None:
        now = self._client.now()
        for name in names:
            failures = self._failures.get(name, 0)
            self._failures[name] = failures + 1
            self._due[name] = now + min(COMPLETING_PAUSE_MS * 2.0 ** min(failures, 10), PAUSE_MS_MAX)
        self._last_failure = failure or self._last_failure


def code_of(answer: InitProducerIdResponse | EndTxnResponse, names: Sequence[str]) -> Mapping[str, int]:
    """What the answer about one id says."""
    return {names[0]: answer.error_code}


def may_pass(code: int) -> bool:
    """Whether the question is worth asking again. A failure without a name may pass like any other."""
    return code == error_codes.UNKNOWN_SERVER_ERROR or error_codes.error_code(code).retriable


def refused(kind: Kind, transactional_id: str, code: int) -> BrokerError:
    """The error of a refusal. Brokers before 2.8 have another name for a producer that is fenced."""
    code = error_codes.PRODUCER_FENCED if verdict(kind, code) is Verdict.FENCED else code
    return broker_error(code, f"transactional id {transactional_id}: the attempt to {kind.value} was refused")
