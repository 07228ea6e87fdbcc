"""Hundreds of transactional ids on three nodes, in virtual time.

A node that is dead, suspended or no longer the coordinator delays only its own ids, and only a little.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from unittest.mock import Mock, patch

import pytest

from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import AuthorizationError, KafkaSinkError, MetadataTimeoutError
from spark_kafka_sink.exactly_once.clients import NODE_TIMEOUT_MS
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_admin import (
    TransactionListing,
    describe_transactions,
    end_transactions,
    fetch_ids_by_producer,
    init_producer_id,
    list_transactional_ids,
)
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import EndTransaction
from tests.exactly_once.three_node_cluster import (
    DEAD,
    DEAD_COORDINATOR_IDS,
    ELECTION_MS,
    IDS,
    LATENCY_MS,
    Cluster,
    begin_all,
    elapsed_ms,
)
from tests.exactly_once.three_node_cluster import client as client
from tests.exactly_once.three_node_cluster import cluster as cluster
from tests.exactly_once.three_node_cluster import prepared as prepared

ABORTED = 30
"""The number of transactions that are aborted while a coordinator rejects each of a step's requests."""


def test_pipelines_requests_to_each_node(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    started = cluster.system.now()
    assert end_transactions(client, prepared, commit=True) == {}
    # Fifty requests are in flight at once, so a hundred requests to a node take two or three round trips.
    assert elapsed_ms(cluster, started) <= 5 * 2 * LATENCY_MS
    assert cluster.counts() == {(node, ApiKey.END_TXN): 100 for node in range(3)}


def test_listing_follows_requests_of_earlier_call(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    """A list that is requested after a commit does not contain the committed transactions."""
    ends = client.begin([EndTransaction(identity, commit=True) for identity in prepared[:30]])
    listing = TransactionListing(client, ONGOING)
    client.finish(ends)
    assert sorted(row.transactional_id for row in listing.wait_for_transactions()) == sorted(IDS[30:])
    assert cluster.total(ApiKey.LIST_TRANSACTIONS) == 3


def test_looks_up_unknown_coordinators_in_one_request(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    with cluster.client() as other_client:
        assert end_transactions(other_client, prepared, commit=True) == {}
    assert cluster.total(ApiKey.FIND_COORDINATOR) == 1
    assert cluster.total(ApiKey.END_TXN) == 300


def test_spreads_requests_for_any_broker_over_connected_nodes(cluster: Cluster, client: BlockingClient) -> None:
    TransactionListing(client, ONGOING).wait_for_transactions()  # connects to all nodes
    for call in [client.begin([InitProducerId(None)]) for _ in range(60)]:
        client.finish(call)
    counts = cluster.counts()
    assert [counts[node, ApiKey.INIT_PRODUCER_ID] for node in range(3)] == [20, 20, 20]


def test_coordinator_describes_all_its_ids_in_one_response(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    descriptions = describe_transactions(client, [*IDS, "unknown"])
    assert {name: description.id_and_epoch for name, description in descriptions.items()} == {
        identity.transactional_id: identity.id_and_epoch for identity in prepared
    }
    assert all(description.is_open for description in descriptions.values())
    assert cluster.total(ApiKey.DESCRIBE_TRANSACTIONS) <= 4  # includes the lookup of the unknown id's coordinator


def test_dead_node_delays_only_its_own_ids(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.kill(DEAD)
    started = cluster.system.now()
    assert end_transactions(client, prepared, commit=True) == {}
    assert ELECTION_MS <= elapsed_ms(cluster, started) <= ELECTION_MS + 1_100  # the last pause, and the end
    of_others = [at for at, node, frame in cluster.requests if struct.unpack_from(">h", frame)[0] == ApiKey.END_TXN]
    assert sum(at <= started + 10 * LATENCY_MS for at in of_others) == 200
    assert len(of_others) == 300
    attempts = [at for at, address in cluster.system.connects if address.host == f"broker{DEAD}" and at > started]
    assert len(attempts) <= 15, "requests to the dead node share connection attempts"
    assert cluster.total(ApiKey.FIND_COORDINATOR) <= 15


def test_leaves_suspended_node_after_election(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.suspend(DEAD)
    started = cluster.system.now()
    assert end_transactions(client, prepared, commit=True) == {}
    assert elapsed_ms(cluster, started) <= ELECTION_MS + 2 * UNRESPONSIVE_AFTER_MS
    in_time = [at for at, node, _ in cluster.requests if node != DEAD and at <= started + 10 * LATENCY_MS]
    assert len(in_time) >= 200, "requests to other nodes were not delayed"
    assert describe_transactions(client, IDS)[DEAD_COORDINATOR_IDS[0]].state == "CompleteCommit"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("strike", [Cluster.kill, Cluster.suspend])
def test_aborts_listed_transactions_after_election(version: int, strike: Callable[[Cluster, int], None]) -> None:
    cluster = Cluster(transaction_version=version)
    with cluster.client() as client:
        begun = begin_all(client, version)
        described = list(describe_transactions(client, IDS).values())
        assert all(description.is_open for description in described)
        strike(cluster, DEAD)
        strike_ms = cluster.system.now()
        abort_transactions(client, described)
        assert elapsed_ms(cluster, strike_ms) <= ELECTION_MS + 2 * UNRESPONSIVE_AFTER_MS
        descriptions = describe_transactions(client, IDS)
    assert not any(description.is_open for description in descriptions.values())
    assert all(descriptions[identity.transactional_id].id_and_epoch != identity.id_and_epoch for identity in begun), (
        "all are fenced"
    )


def test_timeout_of_unresponsive_node_grows_with_each_attempt(
    cluster: Cluster, prepared: list[TransactionIdentity]
) -> None:
    """Longer timeouts give a busy node or a slow network time to respond."""
    with cluster.client() as client:
        describe_transactions(client, IDS)
        cluster.suspend(DEAD, elects=False)
        cluster.system.after(8 * NODE_TIMEOUT_MS, partial(cluster.elect, DEAD))
        started = cluster.system.now()
        end_transactions(client, prepared, commit=True)
        attempts = [at - started for at, address in cluster.system.connects if address.host == f"broker{DEAD}"]
        later = [at for at in attempts if at > 0]
        assert later[0] == pytest.approx(NODE_TIMEOUT_MS, abs=500)
        assert later[1] == pytest.approx(NODE_TIMEOUT_MS + 2 * NODE_TIMEOUT_MS, abs=1_000)
        assert len(later) <= 3


def test_keeps_slow_node_that_responds(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.control.when(api=ApiKey.END_TXN, node=DEAD, times=None).delay(1_500)
    started = cluster.system.now()
    assert end_transactions(client, prepared, commit=True) == {}
    assert elapsed_ms(cluster, started) == pytest.approx(100 * 1_500, rel=0.1), "longer than the timeout of 120 s"
    assert cluster.counts()[DEAD, ApiKey.END_TXN] == 100


def test_looks_up_moved_coordinators_together(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    for name in DEAD_COORDINATOR_IDS:
        cluster.control.move_coordinator(name, 0)
    started = cluster.system.now()
    assert end_transactions(client, prepared, commit=True) == {}
    assert elapsed_ms(cluster, started) <= 100
    assert cluster.total(ApiKey.FIND_COORDINATOR) <= 3
    assert cluster.counts()[DEAD, ApiKey.END_TXN] == 100
    assert cluster.counts()[0, ApiKey.END_TXN] == 200


def test_does_not_look_up_coordinators_at_suspended_node(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    for seed in range(5):
        with cluster.client() as client:
            describe_transactions(client, IDS[seed : seed + 3])
            cluster.suspend(DEAD, elects=False)
            started = cluster.system.now()
            descriptions = describe_transactions(client, [name for name in IDS if name not in DEAD_COORDINATOR_IDS])
            assert len(descriptions) == 200
            assert elapsed_ms(cluster, started) <= NODE_TIMEOUT_MS + 500
        cluster.accept_connections(DEAD)


def test_retries_unknown_server_error(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    for api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS):
        cluster.control.when(api=api, times=2).fail(error_codes.UNKNOWN_SERVER_ERROR)
    cluster.control.when(api=ApiKey.FIND_COORDINATOR).fail(error_codes.UNKNOWN_SERVER_ERROR)
    assert end_transactions(client, prepared, commit=True) == {}
    assert len(describe_transactions(client, IDS)) == 300
    assert len(list_transactional_ids(client)) == 300
    assert init_producer_id(client, "new", 60_000).epoch == 0


def test_persistent_failure_ends_at_timeout(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    cluster.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.UNKNOWN_SERVER_ERROR)
    with cluster.client(timeout_ms=10_000) as client, pytest.raises(MetadataTimeoutError, match="UNKNOWN_SERVER_ERROR"):
        end_transactions(client, prepared[:3], commit=True)


def test_does_not_send_timed_out_request_later(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    with cluster.client(timeout_ms=2_000) as client:
        describe_transactions(client, IDS)
        cluster.suspend(DEAD, elects=False)
        cluster.requests.clear()
        with pytest.raises(MetadataTimeoutError, match=r"broker 2.* has not responded for 2000 ms"):
            end_transactions(
                client,
                [identity for identity in prepared if identity.transactional_id in DEAD_COORDINATOR_IDS],
                commit=True,
            )
        cluster.accept_connections(DEAD)
        describe_transactions(client, IDS)
    assert cluster.total(ApiKey.END_TXN) == 0


def test_does_not_send_interrupted_request_later(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    """The client is reused for the next batch."""
    with patch.object(client, "poll_until", Mock(side_effect=KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
        end_transactions(client, prepared, commit=True)
    assert len(describe_transactions(client, IDS)) == 300
    assert cluster.total(ApiKey.END_TXN) == 0


def test_rejected_lookup_does_not_stop_other_ids(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.control.when(api=ApiKey.FIND_COORDINATOR).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    dead_coordinator_identities = [
        identity for identity in prepared if identity.transactional_id in DEAD_COORDINATOR_IDS
    ]
    with pytest.raises(AuthorizationError):
        end_transactions(
            client, [*dead_coordinator_identities, TransactionIdentity("not looked up", 0, 0, 1)], commit=False
        )
    assert cluster.counts()[DEAD, ApiKey.END_TXN] == len(dead_coordinator_identities)


def test_missing_permission_fails_without_waiting(cluster: Cluster, client: BlockingClient) -> None:
    cluster.control.when(api=ApiKey.FIND_COORDINATOR).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(AuthorizationError, match="look up a coordinator"):
        describe_transactions(client, IDS)


def test_reports_fenced_task_for_error_of_old_brokers(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity]
) -> None:
    cluster.control.when(api=ApiKey.END_TXN).fail(error_codes.INVALID_PRODUCER_EPOCH)
    assert [error.code for error in end_transactions(client, prepared[:1], commit=True).values()] == [
        error_codes.PRODUCER_FENCED
    ]
    with pytest.raises(Exception, match="PRODUCER_FENCED"):
        init_producer_id(client, IDS[0], 60_000, ProducerIdAndEpoch(prepared[0].producer_id, 77))


@pytest.mark.parametrize("is_lost", [True, False])
def test_retries_failed_lookup_with_growing_backoff(cluster: Cluster, is_lost: bool) -> None:
    with cluster.client(timeout_ms=10_000) as client:
        list_transactional_ids(client)
        rule = cluster.control.when(api=ApiKey.FIND_COORDINATOR, times=None)
        if is_lost:
            rule.drop(execute_first=False)
        else:
            rule.fail(error_codes.COORDINATOR_NOT_AVAILABLE)
        started = cluster.system.now()
        with pytest.raises(KafkaSinkError, match=r"Last failure: .*(COORDINATOR_NOT_AVAILABLE|closed the connection)"):
            describe_transactions(client, IDS)
        assert elapsed_ms(cluster, started) == pytest.approx(10_000, abs=100)
    assert 10 <= cluster.total(ApiKey.FIND_COORDINATOR) <= 20


def test_waits_while_no_broker_is_reachable(cluster: Cluster, prepared: list[TransactionIdentity]) -> None:
    with cluster.client() as client:
        fetch_ids_by_producer(client)  # now the client knows the brokers, but no coordinator
        for node in range(3):
            cluster.refuse_connections(node)
            cluster.close_connections(node)
            cluster.system.after(ELECTION_MS, partial(cluster.accept_connections, node))
        started = cluster.system.now()
        assert len(describe_transactions(client, IDS)) == 300
        assert elapsed_ms(cluster, started) >= ELECTION_MS


@pytest.mark.parametrize(
    ("api", "nth"),
    [
        (ApiKey.END_TXN, 1),
        (ApiKey.INIT_PRODUCER_ID, 1),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 1),
        (ApiKey.END_TXN, ABORTED + 1),
    ],
)
def test_each_step_of_abort_ends_at_its_timeout(
    cluster: Cluster, client: BlockingClient, prepared: list[TransactionIdentity], api: ApiKey, nth: int
) -> None:
    """The transaction markers of a suspended leader may take minutes."""
    described = list(describe_transactions(client, IDS[:ABORTED]).values())
    cluster.control.when(api=api, nth=nth, times=None).fail(error_codes.CONCURRENT_TRANSACTIONS)
    started = cluster.system.now()
    with pytest.raises(KafkaSinkError, match="CONCURRENT_TRANSACTIONS"):
        abort_transactions(client, described, timeout_ms=5_000)
    assert 5_000 <= elapsed_ms(cluster, started) <= 7_000
