"""Functions that wait until every broker of a cluster knows about the creation, extension or deletion of a topic.

The controller creates a topic, and each broker learns of it when it has read the record from the metadata log. Until
then, the broker's metadata response may contain no partitions, or partitions without a leader.
"""

from __future__ import annotations

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.requests.node_message import send_to
from tests.waiting import wait_until

RESPONSE_TIMEOUT_MS = 30_000


def fetch_leaders(address: str, topic: str) -> dict[int, int]:
    """Return the leader of each partition that has one, according to the broker at `address`."""
    with BlockingClient(ClientConfig(bootstrap_servers=(address,)), timeout_ms=RESPONSE_TIMEOUT_MS) as client:
        node = client.choose_node()
        assert node is not None
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        (metadata,) = send_to(client, node, MetadataResponse, request).topics
    return {
        partition.partition_index: partition.leader_id
        for partition in metadata.partitions
        if partition.leader_id >= 0 and not partition.error_code
    }


def wait_until_known(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until each broker of `bootstrap` knows the leaders of all partitions of the topic."""
    _wait_for_each_broker(bootstrap, topic, set(range(partitions)))


def wait_until_gone(bootstrap: str, topic: str) -> None:
    """Wait until no broker of `bootstrap` knows the topic."""
    _wait_for_each_broker(bootstrap, topic, set())


def _wait_for_each_broker(bootstrap: str, topic: str, expected: set[int]) -> None:
    for address in bootstrap.split(","):
        _wait_for_broker(address, topic, expected)


def _wait_for_broker(address: str, topic: str, expected: set[int]) -> None:
    def has_expected_leaders() -> bool:
        try:
            return fetch_leaders(address, topic).keys() == expected
        except NetworkError:
            return False  # on a busy machine a broker may not respond in time

    wait_until(has_expected_leaders, lambda: f"{address} never knew partitions {expected} of {topic}")
