"""NewTopic: a topic that is to be made if it is missing, what a broker is asked for it, and its refusals in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from spark_kafka_sink.words import cleaned

BROKERS_CHOOSE = -1
"""In place of a number of partitions or replicas: that of the brokers' own settings."""

_GRANT = "Grant this user the right Create on the topic, or let an administrator create it."
_REMEDIES = {
    error_codes.TOPIC_AUTHORIZATION_FAILED: _GRANT,
    error_codes.CLUSTER_AUTHORIZATION_FAILED: _GRANT,
    error_codes.POLICY_VIOLATION: (
        "A policy of the cluster (create.topic.policy.class.name) forbids such a topic: give it the partitions, "
        "replicas and settings that the policy allows, or let an administrator create it."
    ),
    error_codes.INVALID_REPLICATION_FACTOR: (
        "A topic has at most as many replicas as there are brokers; -1 leaves it to the brokers (Kafka 2.4 or newer)."
    ),
    error_codes.INVALID_PARTITIONS: (
        "Choose a number that the cluster takes; -1 leaves it to the brokers (Kafka 2.4 or newer)."
    ),
    error_codes.INVALID_CONFIG: "Correct the setting: names and values are those of Kafka's topics.",
}


@dataclass(frozen=True)
class NewTopic:
    name: str
    partitions: int = BROKERS_CHOOSE
    replicas: int = BROKERS_CHOOSE
    configs: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """partitions 12, replicas 3, cleanup.policy compact."""
        numbers = (("partitions", self.partitions), ("replicas", self.replicas))
        parts = [f"{what} {'as the brokers choose' if n == BROKERS_CHOOSE else n}" for what, n in numbers]
        return ", ".join([*parts, *(f"{name} {cleaned(value)}" for name, value in self.configs)])

    def request(self, *, validate_only: bool = False) -> CreateTopicsRequest:
        topic = CreatableTopic(
            name=self.name,
            num_partitions=self.partitions,
            replication_factor=self.replicas,
            assignments=[],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in self.configs],
        )
        return CreateTopicsRequest(topics=[topic], validate_only=validate_only)

    def differences(self, partitions: int, replicas: int, configs: Mapping[str, str | None]) -> Iterator[str]:
        """How an existing topic differs. `configs`: those that could be seen."""
        for what, wanted, found in (("partitions", self.partitions, partitions), ("replicas", self.replicas, replicas)):
            if wanted not in (BROKERS_CHOOSE, found):
                yield f"{found} {what}, not {wanted}"
        for name, value in self.configs:
            shown = configs.get(name)
            if name in configs and shown != value:
                yield f"{name} {cleaned(shown) or 'without a value'}, not {cleaned(value)}"


def in_brackets(result: CreatableTopicResult) -> str:
    """The broker's own words, in brackets, if it has any."""
    return f" ({cleaned(result.error_message)})" if result.error_message else ""


def remedy(code: int) -> str:
    """What to do when a broker has not created a topic for this reason."""
    return _REMEDIES.get(code, error_code(code).advice)
