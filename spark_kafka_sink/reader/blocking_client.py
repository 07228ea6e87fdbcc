"""BlockingClient: a NetworkClient for one thread that puts questions to nodes and waits for the answers.

For reading topics and asking about transactions: where nothing else is to be done meanwhile. Questions go out in one
stream for each node, to all nodes at the same time, and the answers are taken as they come (`start`, `step`). A node
that cannot be reached fails all its questions after one attempt to connect. A node that says nothing for
`silence_ms` is given up as well, and gets twice that time when it is asked again; meanwhile the cluster's metadata
are asked for, and a node that has left the cluster is not waited for any longer.

A question that failed may be asked again; `patience` says for how long, and ends with everything that is known about
why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from spark_kafka_sink.client.cluster import Node, TopicInfo
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import new_metadata
from spark_kafka_sink.client.network_client import new_network_client
from spark_kafka_sink.client.node_choice import SUSPICIOUS_MS
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.client.versions import TRANSACTION_VERSION
from spark_kafka_sink.closing import Closing
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError, MetadataTimeoutError, NetworkError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.words import placed

UNKNOWN_TOPIC_MS_MAX = 5_000.0
"""A topic that was created a moment ago may be unknown to a broker for so long."""
_LEAST_WAIT_MS = 1.0
_NO_LIMIT_MS = 2.0**40
"""Of a single request: the limit is on the silence of its node. It may wait for many others."""

AnswerT = TypeVar("AnswerT", bound=Message)


class Question(NamedTuple):
    node: Node
    message: Message
    versions: VersionRange | None = None


@dataclass(eq=False)
class Asked:
    """A question on its way. It has ended when it has an answer, or an error."""

    question: Question
    since_ms: float
    answer: Message | None = None
    error: KafkaSinkError | None = None

    @property
    def has_ended(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self, answer_type: type[AnswerT]) -> AnswerT:
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        assert isinstance(self.answer, answer_type)
        return self.answer


@dataclass(eq=False)
class _Line:
    """The questions to one node that have not ended."""

    node: Node
    waiting: deque[Asked] = field(default_factory=deque)
    sent: dict[int, Asked] = field(default_factory=dict)
    """By correlation id."""
    tried: bool = False
    """A connection was there, or was attempted, since the first of these questions was put."""
    heard_ms: float = 0.0


class BlockingClient(Closing):
    """A context manager. Used by one thread. `silence_ms`: request.timeout.ms if it is not given."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_ms: float = 60_000,
        silence_ms: float | None = None,
        system: System | None = None,
    ) -> None:
        self._system = system if system is not None else OperatingSystem()
        self._timeout_ms = timeout_ms
        self._backoff_ms = config.retry_backoff_ms
        self._silence_ms_max = float(config.request_timeout_ms)
        self._silence_ms = min(self._silence_ms_max, silence_ms or self._silence_ms_max)
        self._lines: dict[int, _Line] = {}
        self._ended: list[Asked] = []  # and not returned yet
        self._times_silent: dict[int, int] = {}  # how often in a row a node was given up because it said nothing
        self.metadata = new_metadata(config, system=self._system, allow_auto_topic_creation=False)
        self._client = new_network_client(config, self.metadata, system=self._system)

    def close(self) -> None:
        self._client.close()

    def topic(self, name: str, *, fresh: bool = False) -> TopicInfo:
        """Wait until the topic's partitions are known. BrokerError if it does not exist, or may not be read.

        `fresh`: what is known is not enough, it may have been deleted, or got more partitions.
        """
        patience = self.patience(f"metadata of {placed(name)}")
        known = self.metadata.contains_topic(name)
        self.metadata.add_topic(name, self._system.now())
        older = self.metadata.request_update(reset_backoff=True) if fresh and known else -1
        while True:
            info = self.metadata.snapshot.topics.get(name)
            if info is not None and self.metadata.version > older:
                if info.partitions:
                    return info
                self.metadata.raise_for_topic(name)
                if patience.waited_ms > UNKNOWN_TOPIC_MS_MAX:
                    raise broker_error(info.error_code, placed(name))
                self.metadata.request_update()
            patience.wait(self.metadata.topic_error(name), self._backoff_ms)

    def leader(self, topic: str, partition: int) -> Node | None:
        """None if no leader is known; then the next wait brings news."""
        leader = self.metadata.snapshot.leader(topic, partition)
        if leader is None:
            self.metadata.request_update()
        return leader

    def all_nodes(self, older: int | None = None) -> list[Node]:
        """The brokers that the cluster has now. `older`: what `metadata.request_update` returned, if a caller has asked
        already."""
        patience = self.patience("metadata of the cluster")
        if older is None:
            older = self.metadata.request_update(reset_backoff=True)
        while self.metadata.version <= older:
            patience.wait(None, self._backoff_ms)
        return list(self.metadata.snapshot.nodes.values())

    def any_node(self) -> Node | None:
        """A node to ask what every broker knows: one that is connected and answers, if there is one."""
        now = self._system.now()
        connected = [node for node in self.metadata.snapshot.nodes.values() if self._client.versions(node.id)]
        if connected:
            return min(connected, key=lambda node: (self._client.silence_ms(node.id, now), self._count(node.id)))
        return self._client.least_loaded_node(now)

    @property
    def transaction_version(self) -> int:
        """Of transactions: what the cluster has agreed on, as far as it is known: 2 or 1."""
        return 2 if self._client.finalized_features.levels.get(TRANSACTION_VERSION, 0) >= 2 else 1

    def ask(
        self, node: Node, answer_type: type[AnswerT], message: Message, *, versions: VersionRange | None = None
    ) -> AnswerT:
        """One question. NetworkError if the node cannot be reached or is lost; it may be asked again."""
        asked = self.start(Question(node, message, versions))
        self._finish([asked])
        return asked.result(answer_type)

    def wait(self, answer_type: type[AnswerT], asked: Sequence[Asked]) -> list[AnswerT | NetworkError]:
        """Wait for questions that were started. Returns the answer or error of each, in their order."""
        self._finish(asked)
        return [each.error if isinstance(each.error, NetworkError) else each.result(answer_type) for each in asked]

    def attempt(
        self, node: Node, answer_type: type[AnswerT], message: Message, *, versions: VersionRange | None = None
    ) -> AnswerT | NetworkError:
        """Ask one question, and return a NetworkError instead of raising it, since the caller may try again."""
        try:
            return self.ask(node, answer_type, message, versions=versions)
        except NetworkError as error:
            return error

    def patience(self, what: str, timeout_ms: float | None = None) -> Patience:
        """Limits the time spent on `what` without any progress."""
        return Patience(self, what, self._timeout_ms if timeout_ms is None else timeout_ms)

    def trouble(self) -> str:
        """What is known of why there is no answer: which nodes say nothing, or could not be reached."""
        now = self._system.now()
        silent = [
            f"{line.node} has said nothing for {self._client.silence_ms(line.node.id, now):.0f} ms"
            for line in self._lines.values()
            if (line.waiting or line.sent) and self._client.silence_ms(line.node.id, now) >= SUSPICIOUS_MS
        ]
        return ". ".join(silent) + "." if silent else self.metadata.unreachable_words()

    def now(self) -> float:
        return self._system.now()

    def wall_ms(self) -> int:
        return self._system.wall_ms()

    def pause(self, pause_ms: float) -> None:
        """Let the client work while there is nothing to ask; news of metadata end the pause."""
        version, until = self.metadata.version, self._system.now() + pause_ms
        while (now := self._system.now()) < until and self.metadata.version == version:
            self._work(now, until - now)

    # --- many questions at the same time

    def start(self, question: Question) -> Asked:
        """Put the question in the line for its node. It is sent, and answered, in the calls of `step` that follow."""
        line = self._lines.setdefault(question.node.id, _Line(question.node))
        line.node = question.node  # perhaps at another address by now
        if not line.waiting and not line.sent:
            line.tried = False
        asked = Asked(question, self._system.now())
        line.waiting.append(asked)
        return asked

    def step(self, until_ms: float) -> list[Asked]:
        """Work until a question has ended, or until that time. Returns the questions that have ended."""
        while not self._ended and (now := self._system.now()) < until_ms:
            self._work(now, until_ms - now)
        ended, self._ended = self._ended, []
        return ended

    def drop(self, questions: Iterable[Asked]) -> None:
        """Do not send those of these questions that were not sent yet: the caller has given up."""
        unwanted = {id(each) for each in questions if not each.has_ended}
        for line in self._lines.values():
            line.waiting = deque(each for each in line.waiting if id(each) not in unwanted)

    def _finish(self, questions: Sequence[Asked]) -> None:
        try:
            while not all(each.has_ended for each in questions):
                self.step(float("inf"))
        finally:
            self.drop(questions)

    def _work(self, now: float, timeout_ms: float) -> None:
        before = len(self._ended)  # in a pause: questions that are answered, and for which no caller waits yet
        for line in self._lines.values():
            self._send(line, now)
        if len(self._ended) == before:
            self._poll(max(0.0, min(timeout_ms, self._give_up_silent(now))))

    def _send(self, line: _Line, now: float) -> None:
        """Send the first that waits; the next one can be sent when this one is written."""
        if not line.waiting:
            return
        node = line.node
        if self._client.ready(node, now):
            line.tried = True
            asked = line.waiting.popleft()
            _, message, versions = asked.question
            request = self._client.new_client_request(node.id, message, now, timeout_ms=_NO_LIMIT_MS, versions=versions)
            line.sent[request.correlation_id] = asked
            self._client.send(request, now)
            return
        failed = self._client.connection_failed(node.id)
        if failed and line.tried:
            self._fail(line, f"{node} cannot be reached. {self.metadata.unreachable_words()}")
        elif now - max(line.heard_ms, line.waiting[0].since_ms) >= self._timeout_ms:
            self._fail(line, f"{node} was not ready in {self._timeout_ms:.0f} ms. {self.metadata.unreachable_words()}")
        line.tried = line.tried or not failed

    def _fail(self, line: _Line, why: str) -> None:
        """All that waits fails. What was sent fails when its connection is lost."""
        self._end(line.waiting, DisconnectedError(why))
        line.waiting = deque()

    def _end(self, questions: Iterable[Asked], error: KafkaSinkError) -> None:
        for each in questions:
            each.error = error
            self._ended.append(each)

    def _give_up_silent(self, now: float) -> float:
        """Leave nodes that have said nothing for too long. Returns how long until this must be looked at again."""
        known = self.metadata.snapshot
        look_again_ms = self._backoff_ms if any(line.waiting for line in self._lines.values()) else SUSPICIOUS_MS
        for node_id in {*self._lines, *known.nodes}:
            silence_ms = self._client.silence_ms(node_id, now)
            limit_ms = min(self._silence_ms * 2.0 ** min(self._times_silent.get(node_id, 0), 30), self._silence_ms_max)
            if silence_ms >= limit_ms:
                self._times_silent[node_id] = self._times_silent.get(node_id, 0) + 1
                self._leave(node_id, f"did not answer within {limit_ms:.0f} ms", now)
            elif silence_ms >= SUSPICIOUS_MS:
                self.metadata.request_update()
                if not known.is_bootstrap and node_id not in known.nodes:
                    self._leave(node_id, "said nothing, and has left the cluster", now)
            if 0 < silence_ms < limit_ms:
                # What is left may be less than the clock can tell: then the time would never come.
                look_again_ms = min(look_again_ms, max(limit_ms - silence_ms, _LEAST_WAIT_MS))
        return look_again_ms

    def _leave(self, node_id: int, why: str, now: float) -> None:
        line = self._lines.get(node_id)
        name = line.node if line is not None else self.metadata.snapshot.nodes.get(node_id, f"node {node_id}")
        self._client.disconnect(node_id, f"{name} {why}", now)
        if line is not None:
            self._fail(line, f"{name} {why}")

    def _poll(self, timeout_ms: float) -> None:
        self.metadata.raise_if_fatal()
        for response in self._client.poll(timeout_ms, self._system.now()):
            self._take(response)
        self.metadata.raise_if_fatal()

    def _take(self, response: ClientResponse) -> None:
        line = self._lines[response.request.node_id]
        asked = line.sent.pop(response.request.correlation_id)
        if response.message is not None:
            self._times_silent.pop(line.node.id, None)
            line.heard_ms, asked.answer = response.received_ms, response.message
            self._ended.append(asked)
        else:
            lost = DisconnectedError(response.reason)
            self._end([asked], response.version_error or response.authentication_error or lost)

    def _count(self, node_id: int) -> int:
        line = self._lines.get(node_id)
        return 0 if line is None else len(line.waiting) + len(line.sent)


class Patience:
    """How long something has been waited for, and the error when that was too long."""

    def __init__(self, client: BlockingClient, what: str, timeout_ms: float) -> None:
        self._client = client
        self._what = what
        self._timeout_ms = timeout_ms
        self._since_ms = client.now()

    @property
    def waited_ms(self) -> float:
        return self._client.now() - self._since_ms

    def renew(self) -> None:
        """There was progress."""
        self._since_ms = self._client.now()

    @property
    def until_ms(self) -> float:
        return self._since_ms + self._timeout_ms

    def check(self, failure: KafkaSinkError | None) -> None:
        """Raise if there was no progress for too long. `failure` is what became of the last attempt."""
        if self.waited_ms >= self._timeout_ms:
            words = f"{self._what}: nothing within {self._timeout_ms:.0f} ms. "
            words += f"The last failure: {failure}" if failure is not None else self._client.trouble()
            kind = NetworkError if isinstance(failure, NetworkError) else MetadataTimeoutError
            raise kind(words) from failure

    def wait(self, failure: KafkaSinkError | None, pause_ms: float) -> None:
        """Pause before the next attempt. `failure` is what became of the last one, if it was an error."""
        self.check(failure)
        self._client.pause(pause_ms)
