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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import KafkaSinkError, NetworkError, UnsupportedVersionError
from spark_kafka_sink.producer.transactions.coordinators import KnownCoordinators
from spark_kafka_sink.producer.transactions.request_pace import completing_pause_ms
from spark_kafka_sink.producer.transactions.requests import SEVERAL_KEYS_FROM, FindCoordinator
from spark_kafka_sink.producer.transactions.transaction_request import TRANSACTION, CoordinatorKey, TransactionRequest
from spark_kafka_sink.producer.transactions.verdicts import NO_ANSWER, Judgement, Verdict
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.schema import VERSION_LIMIT, VersionRange
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient, Question

_PAUSE_MS_MAX = 1_000.0

_OF_ONE_KEY = VersionRange(TRANSACTION, SEVERAL_KEYS_FROM - 1)
_OF_SEVERAL_KEYS = VersionRange(SEVERAL_KEYS_FROM, FindCoordinatorRequest.VERSIONS.max)

AnswerT = TypeVar("AnswerT", bound=Message)


class CoordinatorQuestions:
    """Used by one thread. Remembers who coordinates which id."""

    def __init__(self, client: BlockingClient) -> None:
        self.client = client
        self.coordinators = KnownCoordinators()
        self.in_doubt: set[str] = set()
        """Ids of which an answer to the last call was lost: what was asked for may be carried out yet."""
        self.one_by_one = False
        """A broker before Kafka 3.0 was met, which looks up one id in a request."""

    def answer(self, request: TransactionRequest[AnswerT], timeout_ms: float | None = None) -> AnswerT:
        """The final answer to a request about one id. `timeout_ms`: of the patience, the client's by default."""
        (answer,) = self.answers([request], timeout_ms=timeout_ms).values()
        return answer

    def answers(
        self,
        requests: Iterable[TransactionRequest[AnswerT]],
        meanwhile: Callable[[], None] = lambda: None,
        timeout_ms: float | None = None,
    ) -> dict[str, AnswerT]:
        """The final answer about each id that these requests are about. `timeout_ms`: as for `answer`.

        `meanwhile` is called when the first requests are on their way. What it starts follows them at once.
        """
        self.in_doubt.clear()
        return _Round(self, {name: request for request in requests for name in request.ids}, timeout_ms).run(meanwhile)


class _Round(Generic[AnswerT]):
    """One call of `answers`."""

    def __init__(
        self,
        owner: CoordinatorQuestions,
        requests: dict[str, TransactionRequest[AnswerT]],
        timeout_ms: float | None = None,
    ) -> None:
        self._owner = owner
        self._client = owner.client
        self._request_of = requests
        action = next((request.action for request in requests.values()), "")
        self._patience = owner.client.patience(f"the attempt to {action}", timeout_ms)
        self._due = dict.fromkeys(requests, self._client.now())  # when the id may be asked
        self._asked = tuple(self._due)
        self._looked_up: dict[Asked, FindCoordinator] = {}
        self._under_way: dict[Asked, TransactionRequest[AnswerT]] = {}
        self._done: dict[str, AnswerT] = {}
        self._refused: KafkaSinkError | None = None  # a look-up, which ends the call when the others have ended
        self._failures: dict[str, int] = {}
        self._last_failure: KafkaSinkError | None = None

    def run(self, meanwhile: Callable[[], None]) -> dict[str, AnswerT]:
        try:
            self._ask_due(self._client.now())
            meanwhile()
            while self._due or self._looked_up or self._under_way:
                self._patience.check(self._last_failure)
                self._ask_due(self._client.now())
                for asked in self._client.step(min(self._next_due_ms(), self._patience.until_ms)):
                    self._take(asked)
        finally:
            self._client.drop([*self._looked_up, *self._under_way])
        if self._refused is not None:
            raise self._refused
        return {name: self._done[name] for name in self._asked}

    # --- ask

    def _ask_due(self, now: float) -> None:
        due = [name for name, due_ms in self._due.items() if due_ms <= now]
        together: dict[tuple[Node, TransactionRequest[AnswerT]], list[str]] = {}
        for name in due:
            node = self._coordinator(name)
            if node is not None:
                together.setdefault((node, self._request_of[name]), []).append(name)
                del self._due[name]
        for (node, request), names in together.items():
            part = request.about(names)
            self._under_way[self._start(node, part, part.versions)] = part
        if not self._looked_up and any(name in self._due for name in due):
            self._look_up([name for name in self._due if self._coordinator(name) is None])

    def _look_up(self, names: Sequence[str]) -> None:
        """Also those that are not due yet: it is one request for all."""
        node = self._client.any_node()
        if node is None:
            self._postpone(names, None)
            return
        for part in [[name] for name in names] if self._owner.one_by_one else [names]:
            request = FindCoordinator(part)
            versions = _OF_ONE_KEY if self._owner.one_by_one else _OF_SEVERAL_KEYS
            self._looked_up[self._start(node, request, versions)] = request

    def _coordinator(self, name: str) -> Node | None:
        return self._owner.coordinators.get(CoordinatorKey(TRANSACTION, name))

    def _start(self, node: Node, request: TransactionRequest[Any], versions: VersionRange | None) -> Asked:
        # Only the versions of a look-up differ in their message.
        message = request.message(versions.max if versions is not None else VERSION_LIMIT)
        return self._client.start(Question(node, message, versions))

    def _next_due_ms(self) -> float:
        """While coordinators are looked up, the ids without one are due when that has ended."""
        due = [ms for name, ms in self._due.items() if not self._looked_up or self._coordinator(name) is not None]
        return min(due, default=float("inf"))

    # --- take what comes

    def _take(self, asked: Asked) -> None:
        """A question in neither dictionary was given up, or belongs to a caller that takes its answer later."""
        if asked in self._looked_up:
            self._take_coordinators(asked, self._looked_up.pop(asked))
        elif asked in self._under_way:
            self._take_answer(asked, self._under_way.pop(asked))

    def _take_answer(self, asked: Asked, request: TransactionRequest[AnswerT]) -> None:
        if isinstance(asked.error, NetworkError):
            self._owner.in_doubt.update(request.ids)
            self._look_up_later(request.ids, asked.error)
            return
        answer = asked.result(request.answer_type)
        judged = request.judged_by_id(answer)
        for name in request.ids:
            judgement = _patient(judged.get(name, NO_ANSWER))
            if judgement.verdict is Verdict.RETRY:
                self._postpone([name], request.refusal(name, judgement))
            elif judgement.verdict is Verdict.LOOK_UP:
                self._look_up_later([name], request.refusal(name, judgement))
            else:
                self._done[name] = answer
                self._patience.renew()

    def _take_coordinators(self, asked: Asked, request: FindCoordinator) -> None:
        if isinstance(asked.error, UnsupportedVersionError) and not self._owner.one_by_one:
            self._owner.one_by_one = True
            return
        if isinstance(asked.error, NetworkError):
            self._postpone(request.keys, asked.error)
            return
        answer = asked.result(request.answer_type)
        found, judged = request.found(answer), request.judged_by_id(answer)
        for name in request.keys:
            if name in found:
                self._owner.coordinators[CoordinatorKey(TRANSACTION, name)] = found[name]
                continue
            judgement = _patient(judged.get(name, NO_ANSWER))
            failure = request.refusal(name, judgement)
            if judgement.verdict is Verdict.RETRY:
                self._postpone([name], failure)
            else:
                self._refused = self._refused or failure
                self._due.pop(name, None)

    def _look_up_later(self, names: Sequence[str], failure: KafkaSinkError) -> None:
        for name in names:
            self._owner.coordinators.pop(CoordinatorKey(TRANSACTION, name), None)
        self._postpone(names, failure)

    def _postpone(self, names: Sequence[str], failure: KafkaSinkError | None) -> None:
        now = self._client.now()
        for name in names:
            failures = self._failures.get(name, 0)
            self._failures[name] = failures + 1
            self._due[name] = now + pause_ms(failures)
        self._last_failure = failure or self._last_failure


def pause_ms(failures: int) -> float:
    """The pause before a failed question is asked again. `failures`: how often it had failed before."""
    return min(completing_pause_ms(failures), _PAUSE_MS_MAX)


def _patient(judgement: Judgement) -> Judgement:
    """A failure without a name may pass: a driver asks again, where a producer gives up."""
    nameless = judgement.code == error_codes.UNKNOWN_SERVER_ERROR
    return judgement._replace(verdict=Verdict.RETRY) if nameless else judgement
