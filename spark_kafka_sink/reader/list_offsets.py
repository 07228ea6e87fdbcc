"""ListOffsets: a request for the first or last offsets of partitions, or for the offsets at a given timestamp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.request import LeaderRoute, Request
from spark_kafka_sink.requests.responses import parse_each_response
from spark_kafka_sink.requests.verdicts import Classification, Verdict, select_most_severe

LATEST_TIMESTAMP = -1
"""Special timestamp that requests the end of a partition."""
EARLIEST_TIMESTAMP = -2
"""Special timestamp that requests the start of a partition."""
_CONSUMER_REPLICA_ID = -1
"""The replica id in requests from clients other than brokers."""


@dataclass(frozen=True, eq=False)
class ListOffsets(Request[ListOffsetsResponse]):
    """Look up one offset of each partition. The keys are partition numbers."""

    api_key = ApiKey.LIST_OFFSETS
    action = "list offsets"
    topic: str
    partitions: Sequence[int]
    timestamp: int
    """Milliseconds since the epoch, LATEST_TIMESTAMP or EARLIEST_TIMESTAMP."""
    isolation: int
    """A value of ISOLATION_LEVELS."""

    @property
    def keys(self) -> Sequence[str]:
        return [str(partition) for partition in self.partitions]

    def route(self, key: str) -> LeaderRoute:
        return LeaderRoute(self.topic, int(key))

    def select_keys(self, keys: Sequence[str]) -> ListOffsets:
        return replace(self, partitions=[int(key) for key in keys])

    def build_message(self, version: int) -> ListOffsetsRequest:
        partitions = [
            ListOffsetsPartition(partition_index=partition, timestamp=self.timestamp) for partition in self.partitions
        ]
        return ListOffsetsRequest(
            replica_id=_CONSUMER_REPLICA_ID,
            isolation_level=self.isolation,
            topics=[ListOffsetsTopic(name=self.topic, partitions=partitions)],
        )

    def classify(self, response: ListOffsetsResponse) -> Classification:
        return select_most_severe(self.classify_keys(response).values())

    def classify_keys(self, response: ListOffsetsResponse) -> Mapping[str, Classification]:
        return {
            str(result.partition_index): self.classify_code(result.error_code)
            for result in _iterate_partitions(response)
        }

    def parse_offsets(self, responses: Mapping[str, ListOffsetsResponse]) -> dict[int, int]:
        """Return each partition's offset; -1 if no record has the requested timestamp or a later one.

        `responses` maps each partition's key to the response of the partition's leader.

        Raise BrokerError if a partition was rejected.
        """
        offsets: dict[int, int] = {}
        for partition_key, results in parse_each_response(responses, _index_results):
            result = results[partition_key]
            classification = self.classify_code(result.error_code)
            if classification.verdict is not Verdict.DONE:
                raise self.build_rejection_error(partition_key, classification)
            offsets[result.partition_index] = result.offset
        return offsets

    def describe_subject(self, key: str) -> str:
        return format_partition(self.topic, int(key))


def list_offsets(
    client: BlockingClient, topic: str, partitions: Sequence[int], timestamp: int, isolation: int
) -> dict[int, int]:
    """Look up one offset of each partition: its start, its end, or the first one at or after a timestamp.

    The offset is -1 if a partition has no record at or after the timestamp. `timestamp` and `isolation` are described
    in ListOffsets.
    """
    client.wait_for_topic(topic)  # raises if the topic does not exist
    request = ListOffsets(topic, partitions, timestamp, isolation)
    return request.parse_offsets(client.send_all([request]))


def _index_results(response: ListOffsetsResponse) -> dict[str, ListOffsetsPartitionResponse]:
    """Return the results by partition key."""
    return {str(result.partition_index): result for result in _iterate_partitions(response)}


def _iterate_partitions(response: ListOffsetsResponse) -> Iterator[ListOffsetsPartitionResponse]:
    return (result for topic in response.topics for result in topic.partitions)
