"""The requests about topics: describe, create, validate, read their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from spark_kafka_sink.protocol.messages.describe_configs import (
    TOPIC_RESOURCE,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.requests.request import Request, Role, Route
from spark_kafka_sink.requests.verdicts import MISSING_IN_RESPONSE, Classification, Verdict, VerdictTable
from spark_kafka_sink.words import placed

_OPERATIONS_FROM = 8
"""Metadata describes what a user may do with a topic from this version on (KIP-430)."""


class TopicRequest(Request):  # type: ignore[type-arg]  # of its response, which each request names
    """A request about one topic, which is its key."""

    name: str

    @property
    def keys(self) -> Sequence[str]:
        return (self.name,)

    def subject(self, key: str) -> str:
        return placed(key)


@dataclass(frozen=True, eq=False)
class DescribeTopic(TopicRequest):
    """Describe a topic. That it does not exist is a final response, not an error."""

    api_key = ApiKey.METADATA
    action = "describe the topic"
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE, codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.DONE}
    name: str

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def message(self, version: int) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name=self.name)], allow_auto_topic_creation=False)

    def classify(self, response: MetadataResponse) -> Classification:
        return self.classify_code(response.topics[0].error_code) if response.topics else MISSING_IN_RESPONSE


@dataclass(frozen=True, eq=False)
class DescribeTopics(Request[MetadataResponse]):
    """Describe topics, each of which may have an error of its own. `names`: None for all that this user may see.

    `auto_create`: brokers may create missing topics. `with_operations`: describe what this user may do with each.
    """

    api_key = ApiKey.METADATA
    action = "describe topics"
    names: Sequence[str] | None
    auto_create: bool = False
    with_operations: bool = False

    @property
    def keys(self) -> Sequence[str]:
        return ("",)

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def message(self, version: int) -> MetadataRequest:
        topics = None if self.names is None else [MetadataRequestTopic(name=name) for name in self.names]
        return MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=self.auto_create,
            include_topic_authorized_operations=self.with_operations and version >= _OPERATIONS_FROM,
        )

    def classify(self, response: MetadataResponse) -> Classification:
        return Classification(Verdict.DONE, codes.NONE)


@dataclass(frozen=True, eq=False)
class CreateTopic(TopicRequest):
    api_key = ApiKey.CREATE_TOPICS
    action = "create the topic"
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE, codes.TOPIC_ALREADY_EXISTS: Verdict.DONE}
    topic: NewTopic

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.topic.name

    def route(self, key: str) -> Route:
        return Role.CONTROLLER

    def message(self, version: int) -> CreateTopicsRequest:
        return self.topic.request()

    def classify(self, response: CreateTopicsResponse) -> Classification:
        return self.classify_code(response.topics[0].error_code) if response.topics else MISSING_IN_RESPONSE


class ValidateTopic(CreateTopic):
    """Ask a broker whether it would create the topic. None is created.

    Any broker checks the user's rights. NOT_CONTROLLER is a final response: nothing depends on the rest.
    """

    action = "validate the topic"
    verdicts: ClassVar[VerdictTable] = CreateTopic.verdicts | {codes.NOT_CONTROLLER: Verdict.DONE}

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def message(self, version: int) -> CreateTopicsRequest:
        return self.topic.request(validate_only=True)


@dataclass(frozen=True, eq=False)
class DescribeTopicConfigs(TopicRequest):
    api_key = ApiKey.DESCRIBE_CONFIGS
    action = "see its settings"
    name: str
    settings: Sequence[str]

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def message(self, version: int) -> DescribeConfigsRequest:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=self.name, configuration_keys=[*self.settings]
        )
        return DescribeConfigsRequest(resources=[resource])

    def classify(self, response: DescribeConfigsResponse) -> Classification:
        return self.classify_code(response.results[0].error_code) if response.results else MISSING_IN_RESPONSE

    @staticmethod
    def values(response: DescribeConfigsResponse) -> dict[str, str]:
        """Return the settings that the response shows, by name."""
        return {
            each.name: each.value
            for result in response.results
            for each in result.configs
            if each.name and each.value is not None
        }
