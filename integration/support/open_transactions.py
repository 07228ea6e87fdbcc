"""Open transactions of a cluster, as listed by Kafka's own tool and by the package's client."""

from __future__ import annotations

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.transaction_admin import list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from tests.waiting import wait_until

TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"


def list_ongoing_lines(kafka: KafkaCluster, prefix: str) -> list[str]:
    """Run Kafka's tool, and return its lines about open transactions whose ids begin with the prefix."""
    output = kafka.run_tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    return [line for line in output.splitlines() if "Ongoing" in line and line.startswith(prefix)]


def wait_until_ended(kafka: KafkaCluster, prefix: str) -> None:
    """Wait until no open transaction has an id that begins with the prefix.

    This uses the package's client, because each start of Kafka's tool takes seconds.
    """
    config = ProducerConfig.parse({"bootstrap.servers": kafka.bootstrap()}).client_config()
    with create_client(config) as client:
        wait_until(lambda: not any(name.startswith(prefix) for name in list_transactional_ids(client, ONGOING)))
