"""Requests that describe topics and their settings, create topics, and validate a creation without executing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.diagnostics.text import format_partition
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

_MIN_METADATA_VERSION_WITH_OPERATIONS = 8
"""The first version of Metadata that can return the operations that a user may perform on a topic (KIP-430)."""


class TopicRequest(Request):  # type: ignore[type-arg]  # each subclass names its response type
    """A request about one topic. The topic's name is the request's key."""

    topic: str

    @property
    def keys(self) -> Sequence[str]:
        return (self.topic,)

    def describe_subject(self, key: str) -> str:
        return format_partition(topic=key)


@dataclass(frozen=True, eq=False)
class DescribeTopic(TopicRequest):
    """Describe a topic. A response that the topic does not exist is final; it is not treated as an error."""

    api_key = ApiKey.METADATA
    action = "describe the topic"
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE, codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.DONE}
    topic: str

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def build_message(self, version: int) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)], allow_auto_topic_creation=False)

    def classify(self, response: MetadataResponse) -> Classification:
        return self.classify_code(response.topics[0].error_code) if response.topics else MISSING_IN_RESPONSE


@dataclass(frozen=True, eq=False)
class DescribeTopics(Request[MetadataResponse]):
    """Describe several topics. The response has an error code for each of them.

    `topics`: None for all topics that the user may describe.
    `auto_create`: whether brokers may create missing topics.
    `include_operations`: whether to include the operations that the user may perform on each topic.
    """

    api_key = ApiKey.METADATA
    action = "describe topics"
    topics: Sequence[str] | None
    auto_create: bool = False
    include_operations: bool = False

    @property
    def keys(self) -> Sequence[str]:
        return ("",)  # topics are not retried one by one: the caller evaluates them in the response

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def build_message(self, version: int) -> MetadataRequest:
        requested_topics = None if self.topics is None else [MetadataRequestTopic(name=topic) for topic in self.topics]
        return MetadataRequest(
            topics=requested_topics,
            allow_auto_topic_creation=self.auto_create,
            include_topic_authorized_operations=self.include_operations
            and version >= _MIN_METADATA_VERSION_WITH_OPERATIONS,
        )

    def classify(self, response: MetadataResponse) -> Classification:
        return Classification(Verdict.DONE, codes.NONE)


@dataclass(frozen=True, eq=False)
class CreateTopic(TopicRequest):
    """Create a topic. A response that the topic already exists is final; it is not treated as an error."""

    api_key = ApiKey.CREATE_TOPICS
    action = "create the topic"
    verdicts: ClassVar[VerdictTable] = {codes.NONE: Verdict.DONE, codes.TOPIC_ALREADY_EXISTS: Verdict.DONE}
    new_topic: NewTopic

    @property
    def topic(self) -> str:  # type: ignore[override]
        return self.new_topic.name

    def route(self, key: str) -> Route:
        return Role.CONTROLLER

    def build_message(self, version: int) -> CreateTopicsRequest:
        return self.new_topic.build_request()

    def classify(self, response: CreateTopicsResponse) -> Classification:
        return self.classify_code(response.topics[0].error_code) if response.topics else MISSING_IN_RESPONSE


class ValidateTopic(CreateTopic):
    """Validate the creation of a topic without creating it.

    The request may go to any broker, because every broker can check the user's permissions, and callers need no more.
    If the broker responds with NOT_CONTROLLER, this is therefore a final response: the request is not retried.
    """

    action = "validate the topic"
    verdicts: ClassVar[VerdictTable] = CreateTopic.verdicts | {codes.NOT_CONTROLLER: Verdict.DONE}

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def build_message(self, version: int) -> CreateTopicsRequest:
        return self.new_topic.build_request(validate_only=True)


@dataclass(frozen=True, eq=False)
class DescribeTopicConfigs(TopicRequest):
    """Describe a topic's settings.

    `settings`: the names of the settings to describe.
    """

    api_key = ApiKey.DESCRIBE_CONFIGS
    action = "describe the topic's settings"
    topic: str
    settings: Sequence[str]

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def build_message(self, version: int) -> DescribeConfigsRequest:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=self.topic, configuration_keys=[*self.settings]
        )
        return DescribeConfigsRequest(resources=[resource])

    def classify(self, response: DescribeConfigsResponse) -> Classification:
        return self.classify_code(response.results[0].error_code) if response.results else MISSING_IN_RESPONSE

    @staticmethod
    def parse_values(response: DescribeConfigsResponse) -> dict[str, str]:
        """Return the values of the settings by name. Settings without a value are omitted."""
        return {
            config.name: config.value
            for result in response.results
            for config in result.configs
            if config.name and config.value is not None
        }
