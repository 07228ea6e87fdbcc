"""TopicAdmin: is a topic there, make it, see its settings. Each question is asked until there is a final answer."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.client.cluster import NO_TOPIC_ID, Node
from spark_kafka_sink.client.new_topic import NewTopic, in_brackets, remedy
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import broker_error
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsResponse
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.reader.blocking_client import Asked, BlockingClient, Question
from spark_kafka_sink.words import placed

# No producer has this id: the answer is empty.
LISTS_TRANSACTIONS = (ListTransactionsResponse, ListTransactionsRequest(producer_id_filters=[-1]))
"""What a broker must know before a topic is made for an exactly-once write; one that is too old makes none."""

_ASK_AGAIN_MS = 100.0


class TopicAdmin:
    """Asks about one topic. Used by one thread. `what`: more about it, for errors: ", the log of what is decided".

    `needed`: a question that a broker must know, with the type of its answer; it is asked before the topic is made.
    """

    def __init__(
        self, client: BlockingClient, name: str, what: str = "", needed: tuple[type[Message], Message] | None = None
    ) -> None:
        self.name = name
        self._where = f"{placed(name)}{what}"
        self._client = client
        self._needed = needed
        self._topic_id = NO_TOPIC_ID
        self._ahead: Asked | None = None

    def ask_ahead(self) -> None:
        """Put the question whether it is there, and do not wait: the next call takes the answer."""
        node = self._client.any_node()
        self._ahead = None if node is None else self._client.start(self._question(node))

    def exists(self) -> bool:
        patience = self._client.patience(placed(self.name))
        while (failure := self._missing()) is not None:
            if _is_unknown(failure):
                return False
            patience.wait(failure, _ASK_AGAIN_MS)
        return True

    def create_if_missing(self, wanted: NewTopic) -> bool:
        """Whether it was missing; then it is there now. BrokerError if it may not be created."""
        patience = self._client.patience(placed(self.name))
        was_missing = False
        while (failure := self._missing()) is not None:
            was_missing = was_missing or _is_unknown(failure)
            refused = self._create(wanted) if _is_unknown(failure) else failure
            if refused is not None:
                patience.wait(refused, _ASK_AGAIN_MS)
        if self._client.topic(self.name).topic_id != self._topic_id:
            self._client.topic(self.name, fresh=True)  # the one that was known has been deleted
        return was_missing

    def settings(self, names: Sequence[str]) -> dict[str, str]:
        """The values of these settings, as far as the broker shows them. AuthorizationError if they may not be seen."""
        patience = self._client.patience(f"the {', '.join(names)} of {placed(self.name)}")
        while True:
            failure: BrokerError | NetworkError
            try:
                return self._asked_settings(names)
            except NetworkError as error:
                failure = error
            except BrokerError as error:
                if not error_codes.error_code(error.code).retriable:
                    raise
                failure = error
            patience.wait(failure, _ASK_AGAIN_MS)

    # --- parts

    def _missing(self) -> KafkaSinkError | None:
        """Why the topic cannot be read now; raised, if it will not pass."""
        if self._ahead is None:
            self.ask_ahead()
        asked, self._ahead = self._ahead, None
        answer = None if asked is None else self._client.wait(MetadataResponse, [asked])[0]
        if answer is None or isinstance(answer, NetworkError):
            return answer or NetworkError("no broker can be asked")
        code = answer.topics[0].error_code if answer.topics else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if code == error_codes.NONE:
            self._topic_id = answer.topics[0].topic_id
            return None
        error = broker_error(code, self._where)
        if not error_codes.error_code(code).retriable:
            raise error
        return error

    def _question(self, node: Node) -> Question:
        topics = [MetadataRequestTopic(name=self.name)]
        return Question(node, MetadataRequest(topics=topics, allow_auto_topic_creation=False))

    def _create(self, wanted: NewTopic) -> KafkaSinkError | None:
        node = self._client.metadata.snapshot.controller or self._client.any_node()
        if node is None:
            return NetworkError("no broker can be asked")
        known = None if self._needed is None else self._client.attempt(node, *self._needed)
        if isinstance(known, NetworkError):
            return known
        answer = self._client.attempt(node, CreateTopicsResponse, wanted.request())
        if isinstance(answer, NetworkError):
            return answer
        (row,) = answer.topics
        if row.error_code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
            return None
        where = f"{self._where}{',' if ',' in self._where else ''}"
        error = broker_error(
            row.error_code,
            f"{where} does not exist and could not be created{in_brackets(row)}",
            remedy(row.error_code),
        )
        if error_codes.error_code(row.error_code).retriable:
            return error
        raise error

    def _asked_settings(self, names: Sequence[str]) -> dict[str, str]:
        node = self._client.any_node()
        if node is None:
            raise NetworkError("no broker can be asked")
        resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=self.name, configuration_keys=[*names])
        answer = self._client.ask(node, DescribeConfigsResponse, DescribeConfigsRequest(resources=[resource]))
        found: dict[str, str] = {}
        for result in answer.results:
            if result.error_code != error_codes.NONE:
                context = f"{placed(self.name)}: the attempt to see its settings was refused"
                raise broker_error(result.error_code, context)
            found |= {each.name: each.value for each in result.configs if each.name and each.value is not None}
        return found


def _is_unknown(failure: KafkaSinkError) -> bool:
    return isinstance(failure, BrokerError) and failure.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
