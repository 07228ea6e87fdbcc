"""NewTopic: describes a topic to create, builds its CreateTopics request, and explains rejections by brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)

BROKER_DEFAULT = -1
"""The number of partitions or replicas that stands for the brokers' default."""

_GRANT_REMEDY = "Grant this user the Create permission on the topic, or ask an administrator to create it."
_REMEDIES = {
    error_codes.TOPIC_AUTHORIZATION_FAILED: _GRANT_REMEDY,
    error_codes.CLUSTER_AUTHORIZATION_FAILED: _GRANT_REMEDY,
    error_codes.POLICY_VIOLATION: (
        "A cluster policy (create.topic.policy.class.name) does not allow this topic: choose partitions, "
        "replicas and settings that the policy allows, or ask an administrator to create it."
    ),
    error_codes.INVALID_REPLICATION_FACTOR: (
        "Choose at most as many replicas as there are brokers, or -1 for the brokers' default (Kafka 2.4 or newer)."
    ),
    error_codes.INVALID_PARTITIONS: (
        "Choose a number that the cluster allows, or -1 for the brokers' default (Kafka 2.4 or newer)."
    ),
    error_codes.INVALID_CONFIG: "Correct the setting: names and values are those of Kafka's topic settings.",
}


@dataclass(frozen=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = BROKER_DEFAULT
    """The number of partitions."""
    replicas: int = BROKER_DEFAULT
    """The number of replicas of each partition."""
    configs: tuple[tuple[str, str], ...] = ()
    """The topic's settings, as (name, value) pairs."""

    def __str__(self) -> str:
        """Return text such as "partitions 12, replicas 3, cleanup.policy compact"."""
        counts = [f"partitions {_format_count(self.partitions)}", f"replicas {_format_count(self.replicas)}"]
        settings = [f"{name} {sanitize(value)}" for name, value in self.configs]
        return ", ".join(counts + settings)

    def build_request(self, *, validate_only: bool = False) -> CreateTopicsRequest:
        """Build the CreateTopics request. `validate_only`: brokers check the request but do not create the topic."""
        topic = CreatableTopic(
            name=self.name,
            num_partitions=self.partitions,
            replication_factor=self.replicas,
            assignments=[],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in self.configs],
        )
        return CreateTopicsRequest(topics=[topic], validate_only=validate_only)

    def find_differences(
        self, partition_count: int, replication_factor: int, existing_configs: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield a description of each difference between an existing topic and this one.

        `partition_count`: the existing topic's number of partitions.
        `replication_factor`: the existing topic's number of replicas per partition; the lowest if they differ.
        `existing_configs`: the existing topic's settings that the user is allowed to see. Other settings are not
        compared.
        """
        for name, expected_count, existing_count in (
            ("partitions", self.partitions, partition_count),
            ("replicas", self.replicas, replication_factor),
        ):
            if expected_count not in (BROKER_DEFAULT, existing_count):
                yield f"{existing_count} {name}, not {expected_count}"
        for name, expected_value in self.configs:
            # A setting that the user may not see counts as equal.
            existing_value = existing_configs.get(name, expected_value)
            if existing_value != expected_value:
                yield f"{name} {sanitize(existing_value) or 'without a value'}, not {sanitize(expected_value)}"


def _format_count(count: int) -> str:
    return "(broker default)" if count == BROKER_DEFAULT else str(count)


def format_broker_message(result: CreatableTopicResult) -> str:
    """Return the broker's error message in parentheses, or an empty string if there is none."""
    return f" ({sanitize(result.error_message)})" if result.error_message else ""


def find_remedy(code: int) -> str:
    """Return what to do about an error code in a CreateTopics response."""
    return _REMEDIES.get(code, lookup_error_code(code).advice)
