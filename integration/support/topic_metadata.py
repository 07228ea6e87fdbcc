"""What each broker of a cluster knows of a topic.

A topic that was just created is known to the controller first, and to each broker when it has read that far in the
cluster's own log. Until then a client that asks one of them may see no partitions, or partitions without a leader.
"""

from __future__ import annotations

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.requests.node_message import send_to
from tests.waiting import wait_until

ANSWER_MS = 30_000


def leaders(address: str, topic: str) -> dict[int, int]:
    """Partition -> its leader, as the broker at `address` knows it; without those that have none."""
    with BlockingClient(ClientConfig(bootstrap_servers=(address,)), timeout_ms=ANSWER_MS) as client:
        node = client.choose_node()
        assert node is not None
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        (found,) = send_to(client, node, MetadataResponse, request).topics
    return {one.partition_index: one.leader_id for one in found.partitions if one.leader_id >= 0 and not one.error_code}


def wait_until_known(bootstrap: str, topic: str, partitions: int) -> None:
    """Return when each broker of `bootstrap` knows a leader of each of the topic's partitions."""
    _wait_for_each_broker(bootstrap, topic, set(range(partitions)))


def wait_until_gone(bootstrap: str, topic: str) -> None:
    """Return when no broker of `bootstrap` knows the topic."""
    _wait_for_each_broker(bootstrap, topic, set())


def _wait_for_each_broker(bootstrap: str, topic: str, expected: set[int]) -> None:
    for address in bootstrap.split(","):

        def is_so(address: str = address) -> bool:
            try:
                return leaders(address, topic).keys() == expected
            except NetworkError:
                return False  # on a busy machine a broker may be slow to answer

        wait_until(is_so, lambda address=address: f"{address} never knew partitions {expected} of {topic}")  # type: ignore[misc]
