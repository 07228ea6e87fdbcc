"""Requests about topics: the fields of their messages, and the responses that are final."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from spark_kafka_sink.requests.request import Role
from spark_kafka_sink.requests.topics import (
    CreateTopic,
    DescribeTopic,
    DescribeTopicConfigs,
    DescribeTopics,
    ValidateTopic,
)
from spark_kafka_sink.requests.verdicts import Verdict


@pytest.mark.parametrize(("version", "has_operations"), [(7, False), (8, True)])
def test_requests_authorized_operations_in_versions_that_have_them(version: int, has_operations: bool) -> None:
    message = DescribeTopics(["t"], include_operations=True).build_message(version)
    assert message.include_topic_authorized_operations == has_operations
    assert not DescribeTopics(["t"]).build_message(version).include_topic_authorized_operations


def test_description_creates_topics_only_on_request() -> None:
    assert not DescribeTopics(["t"]).build_message(9).allow_auto_topic_creation
    assert DescribeTopics(["t"], auto_create=True).build_message(9).allow_auto_topic_creation


@pytest.mark.parametrize(
    ("kind", "route", "verdict"),
    [(CreateTopic, Role.CONTROLLER, Verdict.RETRY), (ValidateTopic, Role.ANY_BROKER, Verdict.DONE)],
)
def test_any_broker_validates_topic_and_controller_creates_it(
    kind: type[CreateTopic], route: Role, verdict: Verdict
) -> None:
    request = kind(NewTopic("t", 3, 1))
    assert request.route("t") is route
    assert request.build_message(7).validate_only == (kind is ValidateTopic)
    response = CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=codes.NOT_CONTROLLER)])
    assert request.classify(response).verdict is verdict


def test_any_broker_describes_topics_and_their_settings() -> None:
    requests = [DescribeTopic("t"), DescribeTopics(["t", "u"]), DescribeTopicConfigs("t", ["cleanup.policy"])]
    assert [(list(request.keys), request.route(request.keys[0])) for request in requests] == [
        (["t"], Role.ANY_BROKER),
        ([""], Role.ANY_BROKER),
        (["t"], Role.ANY_BROKER),
    ]
    assert CreateTopic(NewTopic("t", 3, 1)).keys == ("t",)


def test_description_of_several_topics_is_final_despite_errors() -> None:
    topic = MetadataResponseTopic(name="t", error_code=codes.LEADER_NOT_AVAILABLE)
    assert DescribeTopics(["t"]).classify(MetadataResponse(topics=[topic])).verdict is Verdict.DONE
