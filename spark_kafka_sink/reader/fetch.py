"""Fetch: a request for a topic's records, from a given offset in each partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.request import LeaderRoute, Request
from spark_kafka_sink.requests.responses import find_distinct_responses, parse_each_response
from spark_kafka_sink.requests.verdicts import Classification, Verdict, select_most_severe

MAX_FETCH_BYTES = 50 * 1024 * 1024
"""The default limit for the size of a response."""
MAX_PARTITION_BYTES = 8 * 1024 * 1024
"""The limit for the records of each partition in a response."""
MAX_FETCH_WAIT_MS = 500
"""The default time for which a broker may delay its response while there are no records."""

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
ISOLATION_LEVELS = {READ_UNCOMMITTED: 0, READ_COMMITTED: 1}
"""The isolation levels in requests, by Kafka's name."""

_VERSIONS_WITH_TOPIC_NAMES = VersionRange(FetchRequest.VERSIONS.min, 12)
"""The versions with topic names. Later versions have topic ids instead."""


@dataclass(frozen=True, eq=False)
class Fetch(Request[FetchResponse]):
    """Fetch records of one topic. The request's keys are partition numbers, as text.

    `isolation`: a value of ISOLATION_LEVELS.
    """

    api_key = ApiKey.FETCH
    action = "fetch records"
    topic: str
    topic_id: UUID
    offsets: Mapping[int, int]
    """Offset to fetch from, by partition."""
    isolation: int
    max_wait_ms: int = MAX_FETCH_WAIT_MS
    """The longest time by which the broker may delay its response while there are no records."""
    max_bytes: int = MAX_FETCH_BYTES
    """Limit for each response; the first batch may exceed it."""

    @property
    def keys(self) -> Sequence[str]:
        return [str(partition) for partition in self.offsets]

    def route(self, key: str) -> LeaderRoute:
        return LeaderRoute(self.topic, int(key))

    def select_keys(self, keys: Sequence[str]) -> Fetch:
        return replace(self, offsets={int(key): self.offsets[int(key)] for key in keys})

    @property
    def versions(self) -> VersionRange | None:
        return _VERSIONS_WITH_TOPIC_NAMES if self.topic_id == NO_TOPIC_ID else None

    def build_message(self, version: int) -> FetchRequest:
        partitions = [
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MAX_PARTITION_BYTES)
            for partition, offset in self.offsets.items()
        ]
        return FetchRequest(
            max_wait_ms=self.max_wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation,
            topics=[FetchTopic(topic=self.topic, topic_id=self.topic_id, partitions=partitions)],
        )

    def classify(self, response: FetchResponse) -> Classification:
        return select_most_severe(self.classify_keys(response).values())

    def classify_keys(self, response: FetchResponse) -> Mapping[str, Classification]:
        if response.error_code != codes.NONE:
            return dict.fromkeys(self.keys, self.classify_code(response.error_code))
        return {
            str(data.partition_index): self.classify_code(data.error_code) for data in _iterate_partitions([response])
        }

    def parse_partition_data(self, responses: Mapping[str, FetchResponse]) -> list[FetchResponsePartitionData]:
        """Return the data of all partitions that were not rejected.

        `responses` maps each partition's key to the response of the partition's leader.
        """
        return [
            data
            for data in _iterate_partitions(find_distinct_responses(responses))
            if data.error_code == codes.NONE and str(data.partition_index) in responses
        ]

    def find_rejection_error(self, responses: Mapping[str, FetchResponse]) -> BrokerError | None:
        """Return the error of the first partition that was rejected, or None.

        `responses` maps each partition's key to the response of the partition's leader.
        """
        for partition_key, classifications in parse_each_response(responses, self.classify_keys):
            classification = classifications[partition_key]
            if classification.verdict is not Verdict.DONE:
                return self.build_rejection_error(partition_key, classification)
        return None

    def describe_subject(self, key: str) -> str:
        return format_partition(self.topic, int(key))


def _iterate_partitions(responses: Iterable[FetchResponse]) -> Iterator[FetchResponsePartitionData]:
    return (data for response in responses for topic in response.responses for data in topic.partitions)
