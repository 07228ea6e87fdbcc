"""What Kafka's own tool says of transactions."""

from __future__ import annotations

from integration.support.kafka_cluster import KafkaCluster

TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"


def ongoing(kafka: KafkaCluster, prefix: str) -> list[str]:
    """Its lines for the transactions that are open, of ids that begin so."""
    listed = kafka.tool(TRANSACTIONS_TOOL, "--bootstrap-server", kafka.bootstrap(), "list")
    return [line for line in listed.splitlines() if "Ongoing" in line and line.startswith(prefix)]
