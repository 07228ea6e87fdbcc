"""Topic administration: check whether a topic exists, create it, and fetch its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_kafka_sink.client.new_topic import NewTopic, find_remedy, format_broker_message
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.deadline import compute_pause_ms
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.topics import CreateTopic, DescribeTopic, DescribeTopicConfigs
from spark_kafka_sink.requests.verdicts import Verdict


def begin_describing(client: BlockingClient, topic: str) -> Call[MetadataResponse]:
    """Send the first request of `topic_exists` or `create_if_missing` without waiting for the response."""
    return client.begin([DescribeTopic(topic)])


def topic_exists(
    client: BlockingClient, topic: str, *, role: str = "", describe_call: Call[MetadataResponse] | None = None
) -> bool:
    """Return whether the topic exists. Raise BrokerError if a broker rejects the request to describe it.

    `role`: what the topic is, for error messages, such as "the decision log"; empty to name only the topic.
    `describe_call`: the result of an earlier `begin_describing`, if any.
    """
    response = client.finish(describe_call or begin_describing(client, topic))[topic]
    classification = DescribeTopic(topic).classify(response)
    if classification.verdict is not Verdict.DONE:
        raise build_broker_error(classification.code, _format_topic(topic, role))
    return classification.code == error_codes.NONE


def create_if_missing(
    client: BlockingClient,
    new_topic: NewTopic,
    *,
    role: str = "",
    prerequisite_request: Request[Any] | None = None,
    describe_call: Call[MetadataResponse] | None = None,
) -> bool:
    """Create the topic if it does not exist. Return whether it was missing.

    It is not an error if another client creates the topic at the same time. Raise BrokerError if the brokers reject the
    creation, and MetadataTimeoutError if the topic is still missing when the client's timeout has passed.

    `role` and `describe_call`: see `topic_exists`.
    `prerequisite_request`: a request to send before the topic is created. If the brokers do not support it, its error
    is raised and no topic is created.
    """
    if topic_exists(client, new_topic.name, role=role, describe_call=describe_call):
        return False
    if prerequisite_request is not None:
        client.send(prerequisite_request)
    deadline = client.create_deadline(f"the creation of {format_partition(new_topic.name)}")
    failure_count = 0
    # Retry the creation, because brokers that are still deleting a topic of this name report that it exists.
    while True:
        _create(client, new_topic, role)
        if topic_exists(client, new_topic.name, role=role):
            break
        deadline.wait_or_raise(failure=None, pause_ms=compute_pause_ms(failure_count))
        failure_count += 1
    client.wait_for_topic(new_topic.name, refresh=True)  # The cached metadata may contain a deleted topic of this name.
    return True


def _create(client: BlockingClient, new_topic: NewTopic, role: str) -> None:
    """Create the topic, or do nothing if it exists. Raise BrokerError if the brokers reject the creation."""
    (result,) = client.send(CreateTopic(new_topic)).topics
    if result.error_code not in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
        subject = _format_topic(new_topic.name, role) + ("," if role else "")
        context = f"{subject} does not exist and could not be created{format_broker_message(result)}"
        raise build_broker_error(result.error_code, context, find_remedy(result.error_code))


def _format_topic(topic: str, role: str) -> str:
    """Return the topic's name for error messages, followed by its role, if any."""
    return f"{format_partition(topic)}, {role}" if role else format_partition(topic)


def fetch_topic_settings(client: BlockingClient, topic: str, settings: Sequence[str]) -> dict[str, str]:
    """Return the values of these settings by name. Settings that the broker does not report are omitted.

    Raise AuthorizationError if the user is not allowed to describe the topic's settings.
    """
    request = DescribeTopicConfigs(topic, settings)
    response = client.send(request)
    classification = request.classify(response)
    if classification.verdict is not Verdict.DONE:
        raise request.build_rejection_error(topic, classification)
    return request.parse_values(response)
