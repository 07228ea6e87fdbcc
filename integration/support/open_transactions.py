"""Transactions that are open: what Kafka's own tool says of them, and a wait until there are none."""

from __future__ import annotations

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.transaction_admin import list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from tests.waiting import wait_until

TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"


def ongoing(kafka: KafkaCluster, prefix: str) -> list[str]:
    """The tool's lines for open transactions whose ids begin with the prefix."""
    listed = kafka.tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    return [line for line in listed.splitlines() if "Ongoing" in line and line.startswith(prefix)]


def open_ids(kafka: KafkaCluster, prefix: str) -> set[str]:
    """List the open transactions whose ids begin with the prefix by our own client: each start of the tool takes
    seconds.
    """
    config = ProducerConfig.parse({"bootstrap.servers": kafka.bootstrap()}).client_config()
    with new_client(config) as client:
        return {name for name in list_transactional_ids(client, ONGOING) if name.startswith(prefix)}


def wait_until_ended(kafka: KafkaCluster, prefix: str) -> None:
    """Wait until no transaction of such an id is open, as our own client sees it."""
    config = ProducerConfig.parse({"bootstrap.servers": kafka.bootstrap()}).client_config()
    with new_client(config) as client:
        wait_until(lambda: not any(name.startswith(prefix) for name in list_transactional_ids(client, ONGOING)))
