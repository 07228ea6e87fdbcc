"""Lists of all transactions while brokers join or die and coordinators move."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthorizationError, KafkaSinkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import (
    TransactionListing,
    describe_transactions,
    end_transactions,
    init_producer_id,
    list_transactional_ids,
)
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tests.exactly_once.three_node_cluster import (
    DEAD,
    DEAD_COORDINATOR_IDS,
    ELECTION_MS,
    IDS,
    LATENCY_MS,
    Cluster,
    elapsed_ms,
)
from tests.exactly_once.three_node_cluster import client as client
from tests.exactly_once.three_node_cluster import cluster as cluster
from tests.exactly_once.three_node_cluster import prepared as prepared


def test_prefetched_list_includes_broker_that_joined(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.elect(DEAD)
    assert DEAD not in {node.id for node in client.fetch_nodes()}
    cluster.control.start_node(DEAD)
    cluster.share(range(3))
    cluster.requests.clear()
    rows = TransactionListing(client, ONGOING).wait_for_transactions()
    assert sorted(row.transactional_id for row in rows) == sorted(IDS)
    assert cluster.total(ApiKey.LIST_TRANSACTIONS) == 3


def test_listed_transactions_have_their_epochs(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    end_transactions(client, prepared[:100], commit=True)
    init_producer_id(client, "another", 60_000)
    ids = list_transactional_ids(client, ONGOING, EMPTY)
    descriptions = describe_transactions(client, [name for name in ids if name.startswith("task")]).values()
    assert {(description.transactional_id, description.id_and_epoch) for description in descriptions} == {
        (identity.transactional_id, identity.id_and_epoch) for identity in prepared[100:]
    }


def test_list_is_requested_before_its_rows_are_awaited(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    TransactionListing(client, ONGOING)
    client.fetch_nodes()
    assert cluster.total(ApiKey.LIST_TRANSACTIONS) == 3


def test_rejected_list_fails_without_waiting(cluster: Cluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.LIST_TRANSACTIONS).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    started = cluster.system.now()
    with pytest.raises(AuthorizationError, match="the attempt to list transactions was rejected"):
        list_transactional_ids(client)
    assert elapsed_ms(cluster, started) <= 100


def test_successors_list_transactions_of_dead_broker(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.kill(DEAD)
    started = cluster.system.now()
    assert list_transactional_ids(client) == sorted(IDS)
    assert ELECTION_MS <= elapsed_ms(cluster, started) <= ELECTION_MS + 1_100
    assert cluster.total(ApiKey.LIST_TRANSACTIONS) <= 2 * 15, "the requests are retried with backoff"


def test_list_includes_restarted_broker(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    """In a rolling restart, a list without the restarted broker would leave transactions open until they time out."""
    cluster.elect(DEAD)
    with cluster.client() as client:
        describe_transactions(client, IDS)
        cluster.control.start_node(DEAD)
        cluster.share(range(3))
        assert list_transactional_ids(client) == sorted(IDS)


def test_retried_list_includes_broker_that_joined_since_the_first_try(
    cluster: Cluster, prepared: list[TransactionIdentity]
) -> None:
    cluster.elect(DEAD)

    def start_node() -> None:
        cluster.control.start_node(DEAD)
        cluster.share(range(3))

    with cluster.client() as client:
        assert DEAD not in {node.id for node in client.fetch_nodes()}
        describe_transactions(client, IDS)  # connects to the other brokers
        cluster.control.when(api=ApiKey.LIST_TRANSACTIONS).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
        cluster.system.after(5 * LATENCY_MS, start_node)
        assert list_transactional_ids(client) == sorted(IDS)


def test_next_list_has_transactions_that_moved_during_listing(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    def move_coordinators(request: object) -> bool:
        for name in DEAD_COORDINATOR_IDS:
            cluster.control.move_coordinator(name, 0)
        return True

    cluster.control.when(api=ApiKey.LIST_TRANSACTIONS, node=DEAD, matches=move_coordinators).delay(0)
    assert list_transactional_ids(client) == sorted(set(IDS) - set(DEAD_COORDINATOR_IDS))
    assert list_transactional_ids(client) == sorted(IDS)


def test_retries_failed_list_with_growing_backoff(cluster: Cluster) -> None:
    cluster.control.when(api=ApiKey.LIST_TRANSACTIONS, times=None).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    with cluster.client(timeout_ms=10_000) as client:
        client.wait_for_topic("t")
        with pytest.raises(KafkaSinkError, match=r"Last failure: .*COORDINATOR_LOAD_IN_PROGRESS"):
            list_transactional_ids(client)
        assert client._engine._calls == [], "no request of the call is sent later"
    assert 3 * 10 <= cluster.total(ApiKey.LIST_TRANSACTIONS) <= 3 * 20
