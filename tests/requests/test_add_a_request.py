"""Recipe of docs/developing.md, "Add a request to the cluster", carried out with DescribeProducers.

The test writes a message, a request and a handler of the embedded broker, each into a folder that it adds to the search
path of its package. That happens in a process of its own, before the packages are used.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MESSAGE = """
from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int16, int32, int64, nullable_string, string


@dataclass(kw_only=True, slots=True)
class TopicRequest(Struct):
    name: str = string("0+")
    partition_indexes: list[int] = array("int32", "0+")


@dataclass(kw_only=True, slots=True)
class DescribeProducersRequest(Message):
    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    VERSIONS = VersionRange(0, 0)
    FIRST_FLEXIBLE_VERSION = 0

    topics: list[TopicRequest] = array(TopicRequest, "0+")


@dataclass(kw_only=True, slots=True)
class ActiveProducer(Struct):
    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+")
    last_timestamp: int = int64("0+")
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+")


@dataclass(kw_only=True, slots=True)
class PartitionResponse(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+")
    active_producers: list[ActiveProducer] = array(ActiveProducer, "0+")


@dataclass(kw_only=True, slots=True)
class TopicResponse(Struct):
    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeProducersResponse(Message):
    API_KEY = ApiKey.DESCRIBE_PRODUCERS
    VERSIONS = VersionRange(0, 0)
    FIRST_FLEXIBLE_VERSION = 0

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")
"""

REQUEST = '''
from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from spark_kafka_sink.requests.request import LeaderRoute, Request


@dataclass(frozen=True)
class DescribeProducers(Request[DescribeProducersResponse]):
    """The producers that have written to a partition, as its leader knows them."""

    api_key = ApiKey.DESCRIBE_PRODUCERS
    action = "describe its producers"
    topic: str
    partition: int

    @property
    def keys(self):
        return (f"{self.topic}-{self.partition}",)

    def route(self, key):
        return LeaderRoute(self.topic, self.partition)

    def build_message(self, version):
        return DescribeProducersRequest(topics=[TopicRequest(name=self.topic, partition_indexes=[self.partition])])

    def classify(self, response):
        return self.classify_code(response.topics[0].partitions[0].error_code)
'''

HANDLER = """
from spark_kafka_sink.protocol.messages.describe_producers import (
    ActiveProducer,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)


def handle(context, request):
    topics = [
        TopicResponse(name=topic.name, partitions=[_describe(context, topic.name, i) for i in topic.partition_indexes])
        for topic in request.topics
    ]
    return DescribeProducersResponse(topics=topics)


def _describe(context, topic, index):
    partition, error = context.get_partition_or_error_code(context.cluster.find_topic(topic), index)
    producers = [] if partition is None else partition.log._producers
    active = [ActiveProducer(producer_id=producer_id) for producer_id in producers]
    return PartitionResponse(partition_index=index, error_code=error, active_producers=active)
"""

PROGRAM = """
import sys

from spark_kafka_sink import requests
from spark_kafka_sink.broker import handlers
from spark_kafka_sink.protocol import messages

for package, name in ((messages, "messages"), (requests, "requests"), (handlers, "handlers")):
    package.__path__.append(f"{sys.argv[1]}/{name}")

from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.requests.describe_producers import DescribeProducers
from spark_kafka_sink.testing import embedded_broker

with embedded_broker(nodes=3, topics={"t": 3}) as broker:
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for partition in range(3):
            producer.send("t", b"v", partition=partition)
    rejection = broker.control.when(api="DESCRIBE_PRODUCERS").fail("NOT_LEADER_OR_FOLLOWER")
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    with create_client(config) as client:
        client.wait_for_topic("t")
        responses = client.send_all([DescribeProducers("t", partition) for partition in range(3)])
    print(sorted((key, len(response.topics[0].partitions[0].active_producers)) for key, response in responses.items()))
    print("rejections:", rejection.affected_count)
"""


FILES = (
    ("messages", "describe_producers.py", MESSAGE),
    ("requests", "describe_producers.py", REQUEST),
    ("handlers", "api_61_describe_producers.py", HANDLER),
)


def test_new_request_needs_one_file_for_message_request_and_handler(tmp_path: Path) -> None:
    for package, file, text in FILES:
        (tmp_path / package).mkdir()
        (tmp_path / package / file).write_text(f"from __future__ import annotations\n{text}")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == ["[('t-0', 1), ('t-1', 1), ('t-2', 1)]", "rejections: 1"], result.stderr
