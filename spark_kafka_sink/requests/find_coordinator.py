"""FindCoordinator: looks up the coordinators of consumer groups or transactional ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.schema import NO_MAX_VERSION, VersionRange
from spark_kafka_sink.requests.request import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE, Request, Role, Route
from spark_kafka_sink.requests.verdicts import COORDINATOR_VERDICTS, Classification, Verdict, select_most_severe

MIN_VERSION_WITH_SEVERAL_KEYS = 4
"""The first version of FindCoordinator that accepts a list of keys (KIP-699)."""
_MIN_VERSION_WITH_KEY_TYPE = 1
"""The first version of FindCoordinator with a key type. Version 0 can look up only consumer groups."""


@dataclass(frozen=True, eq=False)
class FindCoordinator(Request[FindCoordinatorResponse]):
    """Look up coordinators. Brokers before Kafka 3.0 accept only one key per request."""

    api_key = ApiKey.FIND_COORDINATOR
    action = "look up a coordinator"
    verdicts = COORDINATOR_VERDICTS | {
        codes.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
        codes.NOT_COORDINATOR: Verdict.RETRY,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.UNAUTHORIZED,
    }
    coordinator_keys: Sequence[str]
    """Group ids or transactional ids, depending on `key_type`."""
    key_type: int = TRANSACTION_KEY_TYPE

    @property
    def keys(self) -> Sequence[str]:
        return self.coordinator_keys

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    @property
    def versions(self) -> VersionRange:
        if len(self.coordinator_keys) > 1:
            return VersionRange(MIN_VERSION_WITH_SEVERAL_KEYS, NO_MAX_VERSION)
        return VersionRange(0 if self.key_type == GROUP_KEY_TYPE else _MIN_VERSION_WITH_KEY_TYPE, NO_MAX_VERSION)

    def build_message(self, version: int) -> FindCoordinatorRequest:
        if version >= MIN_VERSION_WITH_SEVERAL_KEYS:
            return FindCoordinatorRequest(key_type=self.key_type, coordinator_keys=list(self.coordinator_keys))
        return FindCoordinatorRequest(key=self.coordinator_keys[0], key_type=self.key_type)

    def classify(self, response: FindCoordinatorResponse) -> Classification:
        return select_most_severe(
            classification._replace(item=key) for key, classification in self.classify_keys(response).items()
        )

    def classify_keys(self, response: FindCoordinatorResponse) -> Mapping[str, Classification]:
        if not response.coordinators:
            return {self.coordinator_keys[0]: self.classify_code(response.error_code)}
        return {result.key: self.classify_code(result.error_code) for result in response.coordinators}

    def parse_coordinators(self, response: FindCoordinatorResponse) -> dict[str, Node]:
        """Return the coordinators by key. Keys whose lookup failed are omitted."""
        if not response.coordinators:
            if response.error_code != codes.NONE:
                return {}
            return {self.coordinator_keys[0]: Node(response.node_id, response.host, response.port)}
        return {
            result.key: Node(result.node_id, result.host, result.port)
            for result in response.coordinators
            if result.error_code == codes.NONE
        }

    def describe_subject(self, key: str) -> str:
        return f"transactional id {key}" if self.key_type == TRANSACTION_KEY_TYPE else f"group {key}"
