"""Which brokers coordinate what."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.coordinators import KNOWN_MAX, KnownCoordinators
from spark_kafka_sink.producer.transactions.transaction_request import TRANSACTION, CoordinatorKey

NODE = Node(1, "b1", 9092)


def test_the_last_ones_are_known_and_the_oldest_are_forgotten() -> None:
    known = KnownCoordinators()
    keys = [CoordinatorKey(TRANSACTION, str(number)) for number in range(KNOWN_MAX + 5)]
    for key in keys:
        known[key] = NODE
    known[keys[-1]] = NODE
    assert list(known) == keys[5:]
