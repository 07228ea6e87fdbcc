"""DescribeQuorum: describes the cluster's controllers and their replication lag."""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_quorum import (
    METADATA_TOPIC,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from spark_kafka_sink.requests.request import Request, Role, Route
from spark_kafka_sink.requests.verdicts import Classification


class DescribeQuorum(Request[DescribeQuorumResponse]):
    """Describe the controllers. Any broker forwards the request to the active controller."""

    api_key = ApiKey.DESCRIBE_QUORUM
    action = "describe the controllers"

    @property
    def keys(self) -> Sequence[str]:
        return ("",)  # the request has no keys, but the engine needs one

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER

    def build_message(self, version: int) -> DescribeQuorumRequest:
        topic = DescribeQuorumRequestTopicData(
            topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
        )
        return DescribeQuorumRequest(topics=[topic])

    def classify(self, response: DescribeQuorumResponse) -> Classification:
        return self.classify_code(response.error_code)

    def describe_subject(self, key: str) -> str:
        return "controllers"
