"""KnownCoordinators: which broker coordinates which transactional id or group."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.transaction_request import CoordinatorKey

KNOWN_MAX = 1_000


class KnownCoordinators(dict[CoordinatorKey, Node]):
    """The last ones that were looked up. The oldest are forgotten when there are too many."""

    def __setitem__(self, key: CoordinatorKey, node: Node) -> None:
        if key not in self and len(self) >= KNOWN_MAX:
            del self[next(iter(self))]
        super().__setitem__(key, node)
