"""BlockingClient: a NetworkClient for one thread that asks one question at a time and waits for the answer.

For reading topics and asking about transactions: where nothing else is to be done meanwhile. A question that failed may
be asked again; `patience` says for how long, and ends with everything that is known about why.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, TypeVar

from spark_kafka_sink.client.cluster import Node, TopicInfo
from spark_kafka_sink.client.in_flight import ClientRequest, ClientResponse
from spark_kafka_sink.client.metadata import new_metadata
from spark_kafka_sink.client.network_client import new_network_client
from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError, MetadataTimeoutError, NetworkError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.schema import VersionRange

UNKNOWN_TOPIC_MS_MAX = 5_000.0
"""A topic that was created a moment ago may be unknown to a broker for so long."""

AnswerT = TypeVar("AnswerT", bound=Message)


class Question(NamedTuple):
    node: Node
    message: Message
    versions: VersionRange | None = None


class BlockingClient:
    """A context manager. Used by one thread."""

    def __init__(self, config: ClientConfig, *, timeout_ms: float = 60_000, system: System | None = None) -> None:
        self._system = system if system is not None else OperatingSystem()
        self._timeout_ms = timeout_ms
        self._backoff_ms = config.retry_backoff_ms
        self._arrived: list[ClientResponse] = []  # and not looked at yet
        self.metadata = new_metadata(config, system=self._system, allow_auto_topic_creation=False)
        self._client = new_network_client(config, self.metadata, system=self._system)

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def topic(self, name: str, *, fresh: bool = False) -> TopicInfo:
        """Wait until the topic's partitions are known. BrokerError if it does not exist, or may not be read.

        `fresh`: what is known is not enough, it may have been deleted, or got more partitions.
        """
        patience = self.patience(f"metadata of topic {name}")
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
                    raise broker_error(info.error_code, f"topic {name}")
                self.metadata.request_update()
            patience.wait(self.metadata.topic_error(name), self._backoff_ms)

    def leader(self, topic: str, partition: int) -> Node | None:
        """None if no leader is known; then the next wait brings news."""
        leader = self.metadata.snapshot.leader(topic, partition)
        if leader is None:
            self.metadata.request_update()
        return leader

    def any_node(self) -> Node | None:
        return self._client.least_loaded_node(self._system.now())

    def feature(self, name: str) -> int:
        """The level of a feature that the cluster has agreed on; 0 if it has none, or has not been asked yet."""
        return self._client.finalized_features.levels.get(name, 0)

    def ask(
        self, node: Node, answer_type: type[AnswerT], message: Message, *, versions: VersionRange | None = None
    ) -> AnswerT:
        """One question. NetworkError if the node cannot be reached or is lost; it may be asked again."""
        return _answer(self._response(self._send(Question(node, message, versions))), answer_type)

    def ask_all(self, answer_type: type[AnswerT], questions: Sequence[Question]) -> list[AnswerT | NetworkError]:
        """Send all requests without waiting in between. Returns the answer or error of each, in their order."""
        sent = [self._sent_or_error(question) for question in questions]
        return [self._answer_or_error(request, answer_type) for request in sent]

    def attempt(
        self, node: Node, answer_type: type[AnswerT], message: Message, *, versions: VersionRange | None = None
    ) -> AnswerT | NetworkError:
        """Ask one question, and return a NetworkError instead of raising it, since the caller may try again."""
        try:
            return self.ask(node, answer_type, message, versions=versions)
        except NetworkError as error:
            return error

    def patience(self, what: str) -> Patience:
        """Limits the time spent on `what` without any progress."""
        return Patience(self, what, self._timeout_ms)

    def now(self) -> float:
        return self._system.now()

    def pause(self, pause_ms: float) -> None:
        """Let the client work while there is nothing to ask; news of metadata end the pause."""
        version, until = self.metadata.version, self._system.now() + pause_ms
        while (now := self._system.now()) < until and self.metadata.version == version:
            self._poll(until - now)

    def _sent_or_error(self, question: Question) -> ClientRequest | NetworkError:
        try:
            return self._send(question)
        except NetworkError as error:
            return error

    def _answer_or_error(
        self, sent: ClientRequest | NetworkError, answer_type: type[AnswerT]
    ) -> AnswerT | NetworkError:
        if isinstance(sent, NetworkError):
            return sent
        try:
            return _answer(self._response(sent), answer_type)
        except NetworkError as error:
            return error

    def _send(self, question: Question) -> ClientRequest:
        now = self._connect(question.node)
        request = self._client.new_client_request(question.node.id, question.message, now, versions=question.versions)
        self._client.send(request, now)
        return request

    def _connect(self, node: Node) -> float:
        """Wait until the node is ready; returns the time at which it is."""
        deadline = self._system.now() + self._timeout_ms
        tried = False
        while not self._client.ready(node, now := self._system.now()):
            failed = self._client.connection_failed(node.id)
            if (failed and tried) or now >= deadline:
                raise DisconnectedError(f"{node} cannot be reached. {self.metadata.unreachable_words()}")
            tried = tried or not failed
            self._poll(min(self._backoff_ms, deadline - now))
        return now

    def _response(self, request: ClientRequest) -> ClientResponse:
        while True:
            for position, response in enumerate(self._arrived):
                if response.request is request:
                    return self._arrived.pop(position)
            self._poll(request.timeout_ms)

    def _poll(self, timeout_ms: float) -> None:
        self.metadata.raise_if_fatal()
        self._arrived += self._client.poll(timeout_ms, self._system.now())
        self.metadata.raise_if_fatal()


def _answer(response: ClientResponse, answer_type: type[AnswerT]) -> AnswerT:
    if response.version_error is not None:
        raise response.version_error
    if response.authentication_error is not None:
        raise response.authentication_error
    if not isinstance(response.message, answer_type):
        raise DisconnectedError(response.reason)
    return response.message


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

    def wait(self, failure: KafkaSinkError | None, pause_ms: float) -> None:
        """Pause before the next attempt. `failure` is what became of the last one, if it was an error."""
        if self.waited_ms >= self._timeout_ms:
            words = f"{self._what}: nothing within {self._timeout_ms:.0f} ms. "
            words += (
                f"The last failure: {failure}" if failure is not None else self._client.metadata.unreachable_words()
            )
            kind = NetworkError if isinstance(failure, NetworkError) else MetadataTimeoutError
            raise kind(words) from failure
        self._client.pause(pause_ms)
