"""Fetch: the records of partitions, each from an offset on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from spark_kafka_sink.client.cluster import NO_TOPIC_ID
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
from spark_kafka_sink.requests.request import Leader, Request
from spark_kafka_sink.requests.verdicts import Classification, Verdict, most_severe
from spark_kafka_sink.words import placed

FETCH_BYTES_MAX = 50 * 1024 * 1024
PARTITION_BYTES_MAX = 8 * 1024 * 1024
FETCH_WAIT_MS_MAX = 500

_NAME_VERSIONS = VersionRange(FetchRequest.VERSIONS.min, 12)
"""The versions in which a topic has a name. Later versions have topic ids alone."""


@dataclass(frozen=True, eq=False)
class Fetch(Request[FetchResponse]):
    """Its keys are the partitions. `isolation`: as in the protocol, 0 for read_uncommitted and 1 for read_committed."""

    api_key = ApiKey.FETCH
    action = "fetch its records"
    topic: str
    topic_id: UUID
    offsets: Mapping[int, int]
    """The offset to fetch from, by partition."""
    isolation: int
    max_wait_ms: int = FETCH_WAIT_MS_MAX
    """How long the broker may delay its response while there are no records."""
    max_bytes: int = FETCH_BYTES_MAX
    """The limit of each response."""

    @property
    def keys(self) -> Sequence[str]:
        return [str(partition) for partition in self.offsets]

    def route(self, key: str) -> Leader:
        return Leader(self.topic, int(key))

    def subset(self, keys: Sequence[str]) -> Fetch:
        return replace(self, offsets={int(key): self.offsets[int(key)] for key in keys})

    @property
    def versions(self) -> VersionRange | None:
        return _NAME_VERSIONS if self.topic_id == NO_TOPIC_ID else None

    def message(self, version: int) -> FetchRequest:
        partitions = [
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=PARTITION_BYTES_MAX)
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
        return most_severe(self.classify_keys(response).values())

    def classify_keys(self, response: FetchResponse) -> Mapping[str, Classification]:
        if response.error_code != codes.NONE:
            return dict.fromkeys(self.keys, self.classify_code(response.error_code))
        return {str(data.partition_index): self.classify_code(data.error_code) for data in _partitions([response])}

    def fetched(self, responses: Mapping[str, FetchResponse]) -> list[FetchResponsePartitionData]:
        """Return the data of the partitions that were not rejected, given the responses by key."""
        return [
            data
            for data in _partitions(_distinct(responses))
            if data.error_code == codes.NONE and str(data.partition_index) in responses
        ]

    def rejected(self, responses: Mapping[str, FetchResponse]) -> BrokerError | None:
        """Return the error of the first partition whose final response rejects the request."""
        read = {id(response): self.classify_keys(response) for response in _distinct(responses)}
        for key, response in responses.items():
            classification = read[id(response)][key]
            if classification.verdict is not Verdict.DONE:
                return self.rejection(key, classification)
        return None

    def subject(self, key: str) -> str:
        return placed(self.topic, int(key))


def _distinct(responses: Mapping[str, FetchResponse]) -> list[FetchResponse]:
    """Return each response once: a leader's response is about all its partitions."""
    return list({id(response): response for response in responses.values()}.values())


def _partitions(responses: Iterable[FetchResponse]) -> Iterator[FetchResponsePartitionData]:
    return (data for response in responses for topic in response.responses for data in topic.partitions)
