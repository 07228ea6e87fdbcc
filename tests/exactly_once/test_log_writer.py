"""LogWriter writes records of a log in a transaction of its own, over the client's connections.

Only the process that holds the epoch and the sequence number can write, even if requests or responses are lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker.control import FaultBuilder
from spark_kafka_sink.client.cluster import NO_TOPIC_ID, ClusterSnapshot, Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.log_writer import AppendBatch, LogWriter, WriterState
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tests.exactly_once.embedded_query import get_log_writer, write_records
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

DRIVER, LOG = "p-driver", "log"


def create_cluster(version: int) -> SimulatedCluster:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={LOG: 2}, transaction_version=version)
    cluster.control.move_leader(LOG, 0, 0)
    cluster.control.move_coordinator(DRIVER, 1)
    return cluster


def connect_client(cluster: SimulatedCluster, **options: object) -> BlockingClient:
    config = ClientConfig(tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=10_000)
    return create_client(config, system=cluster.system, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> SimulatedCluster:
    return create_cluster(request.param)


@pytest.fixture
def client(cluster: SimulatedCluster) -> Iterator[BlockingClient]:
    with connect_client(cluster) as client:
        yield client


@pytest.fixture
def initial_state(client: BlockingClient) -> WriterState:
    return WriterState(init_producer_id(client, DRIVER, 60_000), 0)


def write(client: BlockingClient, state: WriterState, *values: bytes | None) -> WriterState:
    return write_records(client, DRIVER, state, (LOG, 0), [(b"key", value) for value in values])


def read_values(cluster: SimulatedCluster) -> list[bytes | None]:
    return cluster.values(LOG, 0, committed=True)


def uses_version_2(cluster: SimulatedCluster) -> bool:
    return cluster.core.config.transaction_version == 2


def test_commits_consecutive_transactions(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    state = write(client, initial_state, b"a")
    assert read_values(cluster) == [b"a"]
    state = write(client, state, b"b", None, b"c")
    state = write(client, state, b"d")
    assert read_values(cluster) == [b"a", b"b", None, b"c", b"d"]
    assert cluster.table(LOG, committed=True).column("key").to_pylist() == [b"key"] * 5
    (producer_id, epoch), sequence = state
    if uses_version_2(cluster):
        assert (producer_id, epoch, sequence) == (
            initial_state.id_and_epoch.producer_id,
            initial_state.id_and_epoch.epoch + 3,
            0,
        )
    else:
        assert (*initial_state.id_and_epoch, 5) == (producer_id, epoch, sequence)


def test_records_of_a_transaction_are_one_batch(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    write(client, initial_state, b"a", b"b")
    log = cluster.log(LOG)
    headers = [header for batch in log.read(0, 2**62).batches for header, _ in decode_batches(batch)]
    assert [(header.record_count, header.is_transactional, header.is_control) for header in headers] == [
        (2, True, False),
        (1, True, True),
    ]
    assert (headers[0].producer_id, headers[0].producer_epoch, headers[0].base_sequence) == (
        *initial_state.id_and_epoch,
        0,
    )


FAULTS: dict[str, Callable[[FaultBuilder], object]] = {
    "lost before": lambda fault: fault.drop(),
    "lost after": lambda fault: fault.drop(execute_first=True),
    "no response": lambda fault: fault.never_respond(),
    "executed, no response": lambda fault: fault.never_respond(execute_first=True),
    "a failure without a name": lambda fault: fault.fail(codes.UNKNOWN_SERVER_ERROR),
    "carried out, and a failure": lambda fault: fault.fail(codes.UNKNOWN_SERVER_ERROR, execute_first=True),
    "still ending": lambda fault: fault.fail(codes.CONCURRENT_TRANSACTIONS),
    "garbage": lambda fault: fault.garbage(),
}


@pytest.mark.parametrize("api", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN])
@pytest.mark.parametrize("fault", FAULTS)
def test_writes_record_once_despite_one_fault(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState, api: ApiKey, fault: str
) -> None:
    rule = FAULTS[fault](cluster.control.when(api=api))
    state = write(client, initial_state, b"a")
    is_never_sent = api is ApiKey.ADD_PARTITIONS_TO_TXN and uses_version_2(cluster)
    assert rule.affected_count == (0 if is_never_sent else 1)  # type: ignore[attr-defined]
    assert read_values(cluster) == [b"a"]
    write(client, state, b"b")
    assert read_values(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("code", [codes.NOT_LEADER_OR_FOLLOWER, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_retries_unknown_server_error_of_leader(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState, code: int
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, times=3).fail(code, execute_first=True)
    write(client, initial_state, b"a")
    assert read_values(cluster) == [b"a"]


def test_follows_moved_leader_and_coordinator(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    state = write(client, initial_state, b"a")
    for node in (0, 1):
        cluster.control.stop_node(node)
        cluster.control.move_coordinator(DRIVER, 1 - node)
        state = write(client, state, b"%d" % node)
        cluster.control.start_node(node)
    assert read_values(cluster) == [b"a", b"0", b"1"]


def test_uses_new_epoch_after_unconfirmed_end(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
    state = write(client, initial_state, b"a")
    new_state = write(client, state, b"b")
    assert new_state.id_and_epoch != initial_state.id_and_epoch
    assert read_values(cluster) == [b"a", b"b"]


def test_new_epoch_keeps_the_transaction_timeout() -> None:
    """Brokers may grant less than a minute, and the timeout of a driver id contains its marks."""
    cluster = create_cluster(1)
    cluster.core.coordinator.max_timeout_ms = 20_000
    with connect_client(cluster) as client:
        initial_state = WriterState(init_producer_id(client, DRIVER, 19_999), 0)
        cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
        new_state = write(client, write(client, initial_state, b"a"), b"b")
        assert new_state.id_and_epoch != initial_state.id_and_epoch
        assert describe_transactions(client, [DRIVER])[DRIVER].timeout_ms == 19_999


def test_forgotten_id_gets_no_new_epoch() -> None:
    cluster = create_cluster(1)
    with connect_client(cluster) as client:
        state = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
        cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
        state = write(client, state, b"a")
        del cluster.core.coordinator.transactions[DRIVER]
        with pytest.raises(BrokerError, match="transactional id p-driver: TRANSACTIONAL_ID_NOT_FOUND"):
            write(client, state, b"b")


@pytest.mark.parametrize("version", [1, 2])
def test_first_request_uses_transaction_version_of_cluster(version: int) -> None:
    cluster = create_cluster(version)
    with connect_client(cluster) as client:
        state = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
    cluster.requests.clear()
    with connect_client(cluster) as client:
        write(client, state, b"a")
    add_requests = [
        frame for _, _, frame in cluster.requests if frame[:2] == struct.pack(">h", ApiKey.ADD_PARTITIONS_TO_TXN)
    ]
    assert len(add_requests) == (1 if version == 1 else 0)


def test_uses_new_epoch_after_upgrade_to_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = create_cluster(1)
    with connect_client(cluster) as client:
        initial_state = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
        state = write(client, initial_state, b"a")
        assert state.id_and_epoch == initial_state.id_and_epoch
        cluster.core.coordinator.version = 2
        monkeypatch.setattr(BlockingClient, "transaction_version", 2)
        state = write(client, state, b"b")
        assert state == WriterState(initial_state.id_and_epoch._replace(epoch=initial_state.id_and_epoch.epoch + 2), 0)
    assert read_values(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("write_count", [0, 1])
def test_fenced_writer_writes_nothing(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState, write_count: int
) -> None:
    for _ in range(write_count):
        initial_state = write(client, initial_state, b"before")
    new_state = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
    with pytest.raises(ProducerFencedError) as error_info:
        write(client, initial_state, b"late")
    assert error_info.value.code in (codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)
    write(client, new_state, b"newer")
    assert read_values(cluster) == [b"before"] * write_count + [b"newer"]


@pytest.mark.parametrize(
    "code",
    [
        codes.PRODUCER_FENCED,
        codes.INVALID_PRODUCER_EPOCH,
        codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        codes.INVALID_TXN_STATE,
        codes.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_rejected_batch_raises_reason_and_ends_no_transaction(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState, code: int
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    with pytest.raises(ProducerFencedError) as error_info:
        write(client, initial_state, b"a")
    assert error_info.value.code == code
    assert not [frame for _, _, frame in cluster.requests if frame[:2] == bytes([0, ApiKey.END_TXN])]
    if not uses_version_2(cluster):
        assert describe_transactions(client, [DRIVER])[DRIVER].state == ONGOING


def test_rejects_sequence_gap(cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState) -> None:
    state = write(client, initial_state, b"a")
    with pytest.raises(ProducerFencedError) as error_info:
        write(client, WriterState(state.id_and_epoch, state.next_sequence + 5), b"gap")
    assert error_info.value.code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert read_values(cluster) == [b"a"]


def test_rejected_end_raises(cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState) -> None:
    cluster.control.when(api=ApiKey.END_TXN).fail(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match=r"p-driver: the attempt to end the transaction was rejected"):
        write(client, initial_state, b"a")
    assert read_values(cluster) == []


def test_negative_epoch_in_response_to_commit_raises(client: BlockingClient, initial_state: WriterState) -> None:
    end = EndTxnResponse(producer_id=initial_state.id_and_epoch.producer_id, producer_epoch=-1)
    transaction = get_log_writer(client).begin_transaction(
        DRIVER, initial_state, TopicPartition(LOG, 0), [(b"key", b"a")]
    )
    transaction.wait()
    with patch.object(LogWriter, "_end_transaction", return_value=end):
        if client.transaction_version < 2:  # the response contains no epoch
            transaction.commit()
        else:
            with pytest.raises(DecodeError, match="with the epoch -1: neither may be negative"):
                transaction.commit()


def test_too_large_record_raises_without_fencing_error(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE") as error_info:
        write(client, initial_state, b"a")
    assert not isinstance(error_info.value, ProducerFencedError)


def test_unavailable_log_times_out_with_the_cause(cluster: SimulatedCluster, initial_state: WriterState) -> None:
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    with (
        connect_client(cluster, timeout_ms=5_000) as client,
        pytest.raises(
            KafkaSinkError,
            match=r"log-0: the attempt to append the batch: timed out after 5000 ms.*NOT_ENOUGH",
        ),
    ):
        write(client, initial_state, b"a")
    assert rule.affected_count < 20, "the pauses grow"


def test_deleted_log_fails_early_with_its_name(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    state = write(client, initial_state, b"a")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    cluster.system.after(500, partial(cluster.control.delete_topic, LOG))
    started_ms = cluster.system.now()
    with pytest.raises(BrokerError, match=r"topic log.*UNKNOWN_TOPIC"):
        write(client, state, b"b")
    assert cluster.system.now() - started_ms < 60_000


def test_finds_moved_leader_although_previous_one_responds(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    state = write(client, initial_state, b"a")
    cluster.control.move_leader(LOG, 0, 1)
    started_ms = cluster.system.now()
    write(client, state, b"b")
    assert cluster.system.now() - started_ms < 10_000
    assert read_values(cluster) == [b"a", b"b"]


def test_waits_for_leader_election(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_leader, missing_leaders = ClusterSnapshot.leader, [None, None]

    def leader(snapshot: ClusterSnapshot, topic: str, partition: int) -> Node | None:
        return missing_leaders.pop() if missing_leaders else find_leader(snapshot, topic, partition)

    monkeypatch.setattr(ClusterSnapshot, "leader", leader)
    write(client, initial_state, b"a")
    assert read_values(cluster) == [b"a"]


def test_confirmed_end_is_not_in_doubt_after_lost_responses(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    if uses_version_2(cluster):
        return  # Each transaction has its own epoch.
    cluster.control.when(api=ApiKey.ADD_PARTITIONS_TO_TXN).drop(execute_first=True)
    new_state = write(client, write(client, initial_state, b"a"), b"b")
    assert new_state == (initial_state.id_and_epoch, 2)


def test_produce_version_matches_transaction_version(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    """From version 12 of Produce on, brokers add the partition to the transaction themselves."""
    write(client, initial_state, b"a")
    produce_requests = [frame for _, _, frame in cluster.requests if frame[:2] == bytes([0, ApiKey.PRODUCE])]
    assert [int.from_bytes(frame[2:4], "big") >= 12 for frame in produce_requests] == [uses_version_2(cluster)]


def test_produce_request_identifies_the_topic_by_its_id(client: BlockingClient, initial_state: WriterState) -> None:
    """Otherwise a record could be appended to a topic that was created under the same name since."""
    topic_id = client.wait_for_topic(LOG).topic_id
    assert topic_id != NO_TOPIC_ID
    identity = TransactionIdentity(DRIVER, *initial_state.id_and_epoch, 2)
    request = AppendBatch(client.metadata, identity, TopicPartition(LOG, 0), b"")
    assert request.build_message(13).topic_data[0].topic_id == topic_id
    assert request.versions.max >= 13


def test_abandoned_records_are_not_sent_again(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_LEADER_OR_FOLLOWER)
    writer = get_log_writer(client)
    writer.begin_transaction(DRIVER, initial_state, TopicPartition(LOG, 0), [(b"key", b"a")]).abandon()
    cluster.control.clear()
    client.pause(10_000)
    assert cluster.values(LOG, 0) == []


def test_partition_that_may_not_be_added_raises(client: BlockingClient, cluster: SimulatedCluster) -> None:
    state = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
    cluster.control.when(api=ApiKey.ADD_PARTITIONS_TO_TXN).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    if uses_version_2(cluster):
        write(client, state, b"a")  # needs no such request
    else:
        with pytest.raises(BrokerError, match="the attempt to add partitions to the transaction"):
            write(client, state, b"a")


def test_leaves_unresponsive_leader_when_another_is_elected(
    cluster: SimulatedCluster, client: BlockingClient, initial_state: WriterState
) -> None:
    state = write(client, initial_state, b"a")
    cluster.control.when(api=ApiKey.PRODUCE, node=0, times=None).never_respond(execute_first=True)
    cluster.system.after(4_000, partial(cluster.control.move_leader, LOG, 0, 1))
    started_ms = cluster.system.now()
    write(client, state, b"b")
    assert cluster.system.now() - started_ms <= 12_000
    assert read_values(cluster) == [b"a", b"b"]
