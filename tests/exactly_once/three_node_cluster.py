"""A cluster of three nodes in virtual time, each the coordinator of a third of 300 ids, and a client of it."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import AddPartitions
from tests.fake_system import FakeConnection, FakeSystem, Peer
from tests.simulated_cluster import SimulatedCluster

IDS = [f"task-{number}" for number in range(300)]
DEAD = 2
DEAD_COORDINATOR_IDS = IDS[DEAD::3]
LATENCY_MS = 1.0
ELECTION_MS = 5_000.0


class Cluster(SimulatedCluster):
    """Three nodes, each the coordinator of a third of the ids."""

    def __init__(self, **options: object) -> None:
        options = {"nodes": 3, "topics": {"t": 1}, "transaction_version": 1, **options}
        super().__init__(FakeSystem(latency_ms=LATENCY_MS), **options)  # type: ignore[arg-type]
        self.share(range(3))

    def share(self, nodes: range) -> None:
        for number, name in enumerate(IDS):
            self.control.move_coordinator(name, nodes[number % len(nodes)])

    def client(self, **options: object) -> BlockingClient:
        config = ClientConfig(tuple(self.bootstrap_servers.split(",")))
        return create_client(config, system=self.system, **options)  # type: ignore[arg-type]

    def kill(self, node: int) -> None:
        """Let the node refuse connections; after a while the other nodes become coordinators of its ids."""
        self.refuse_connections(node)
        self.close_connections(node)
        self.system.after(ELECTION_MS, partial(self.elect, node))

    def connections_to(self, node: int) -> list[FakeConnection]:
        host = self.core.nodes[node].host
        return [connection for connection in self.system.connections if connection.socket.address.host == host]

    def suspend(self, node: int, *, elects: bool = True) -> None:
        """Suspend the node as SIGSTOP does: it accepts connections but does not respond."""
        address = self.core.nodes[node]
        for connection in self.connections_to(node):
            connection.stall()
        self.system.listen(str(address.host), int(address.port), Peer())
        if elects:
            self.system.after(ELECTION_MS, partial(self.elect, node))

    def elect(self, node: int) -> None:
        self.control.stop_node(node)
        self.share(range(2))

    def counts(self) -> Counter[tuple[int, ApiKey]]:
        """Return the number of requests of each kind that each node has received."""
        return Counter((node, ApiKey(*struct.unpack_from(">h", frame))) for _, node, frame in self.requests)

    def total(self, api: ApiKey) -> int:
        return sum(count for (_, key), count in self.counts().items() if key is api)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with cluster.client() as client:
        yield client


@pytest.fixture
def prepared(cluster: Cluster, client: BlockingClient) -> list[TransactionIdentity]:
    """Open a transaction under each id, let the client look up all coordinators, and reset the counts."""
    transactions = begin_all(client)
    cluster.requests.clear()
    return transactions


def begin_all(client: BlockingClient, version: int = 1) -> list[TransactionIdentity]:
    """Open a transaction under each id."""
    responses = client.send_all(InitProducerId(name, 900_000) for name in IDS)
    transactions = [TransactionIdentity(name, *parse_producer_id_and_epoch(responses[name]), version) for name in IDS]
    client.send_all(AddPartitions(identity, frozenset([TopicPartition("t", 0)])) for identity in transactions)
    return transactions


def elapsed_ms(cluster: Cluster, since: float) -> float:
    return cluster.system.now() - since
