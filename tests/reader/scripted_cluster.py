"""Two scripted brokers with the topic t, for readers in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
)
from spark_kafka_sink.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.records.header import parse_header
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.client.metadata_responses import ID_1, metadata_response, partition, topic
from tests.client.scripted_broker import ReceivedRequest, ScriptedBroker
from tests.fake_system import FakeSystem


@dataclass
class Log:
    batches: list[bytes] = field(default_factory=list)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first and last offset of each aborted transaction."""
    start: int = 0
    stable: int | None = None
    leader: int = 0
    errors: list[int] = field(default_factory=list)
    """Error codes of the next responses, in order."""

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).last_offset + 1 if self.batches else self.start


class Cluster:
    """Brokers b0 and b1 with the topic t, one batch per partition and fetch."""

    def __init__(self, *logs: Log) -> None:
        self.logs = list(logs)
        self.system = FakeSystem()
        self.brokers = [ScriptedBroker(), ScriptedBroker()]
        self.isolations: set[int] = set()
        self.fetches = 0
        for number, broker in enumerate(self.brokers):
            broker.on_request = lambda received, number=number: self.serve(number, received)  # type: ignore[misc]
            self.system.listen(f"b{number}", 9092, broker)

    def reader(self, **options: object) -> TopicReader:
        return TopicReader(ClientConfig(("b0:9092",)), system=self.system, **options)  # type: ignore[arg-type]

    def client(self) -> BlockingClient:
        return BlockingClient(ClientConfig(("b0:9092",)), system=self.system)

    def describe(self) -> MetadataResponse:
        partitions = [partition(index, log.leader) for index, log in enumerate(self.logs)]
        return metadata_response(topic("t", partitions, topic_id=ID_1), nodes=2)

    def serve(self, number: int, received: ReceivedRequest) -> bool:
        message = received.message
        if received.api_key is ApiKey.METADATA:
            self.brokers[number].metadata = self.describe()
        elif isinstance(message, ListOffsetsRequest):
            received.respond(self.list_offsets(number, message))
        elif isinstance(message, FetchRequest):
            received.respond(self.fetch(number, message, received.header.api_version))
        return isinstance(message, ListOffsetsRequest | FetchRequest)

    def error(self, number: int, log: Log) -> int:
        if log.errors:
            return log.errors.pop(0)
        return error_codes.NONE if log.leader == number else error_codes.NOT_LEADER_OR_FOLLOWER

    def list_offsets(self, number: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        assert request.replica_id == -1
        self.isolations.add(request.isolation_level)
        responses = []
        for requested in request.topics[0].partitions:
            log = self.logs[requested.partition_index]
            end = log.stable if log.stable is not None and request.isolation_level else log.end
            offset = log.start if requested.timestamp == -2 else end
            code = self.error(number, log)
            responses.append(
                ListOffsetsPartitionResponse(partition_index=requested.partition_index, offset=offset, error_code=code)
            )
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=responses)])

    def fetch(self, number: int, request: FetchRequest, version: int) -> FetchResponse:
        self.fetches += 1
        self.isolations.add(request.isolation_level)
        (requested_topic,) = request.topics
        assert (requested_topic.topic_id == ID_1) if version >= 13 else (requested_topic.topic == "t")
        responses = []
        for requested in requested_topic.partitions:
            log = self.logs[requested.partition]
            code = self.error(number, log)
            batches = [batch for batch in log.batches if parse_header(batch).last_offset >= requested.fetch_offset][:1]
            responses.append(
                FetchResponsePartitionData(
                    partition_index=requested.partition,
                    error_code=code,
                    records=b"".join(batches) if code == 0 else None,
                    aborted_transactions=[
                        AbortedTransaction(producer_id=producer_id, first_offset=first)
                        for producer_id, first, last in log.aborted
                        if last >= requested.fetch_offset
                    ]
                    if request.isolation_level
                    else None,
                )
            )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=ID_1, partitions=responses)])


def rows(table: pa.Table) -> list[tuple[int, int, bytes]]:
    return [(row["partition"], row["offset"], row["value"]) for row in table.to_pylist()]
