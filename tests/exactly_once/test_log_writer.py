"""Records of a log are written in a transaction of their own, over the client's connections, whatever becomes of its
requests; and by the holder of the epoch and the sequence alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from spark_kafka_sink.broker.control import FaultBuilder
from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.requests.transaction_description import ONGOING
from tests.exactly_once.embedded_query import write_with
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

DRIVER, LOG = "p-driver", "log"


def cluster_of_version(version: int) -> SimulatedCluster:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={LOG: 2}, transaction_version=version)
    cluster.control.move_leader(LOG, 0, 0)
    cluster.control.move_coordinator(DRIVER, 1)
    return cluster


def client_of(cluster: SimulatedCluster, **options: object) -> BlockingClient:
    config = ClientConfig(tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=10_000)
    return new_client(config, system=cluster.system, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> SimulatedCluster:
    return cluster_of_version(request.param)


@pytest.fixture
def client(cluster: SimulatedCluster) -> Iterator[BlockingClient]:
    with client_of(cluster) as client:
        yield client


@pytest.fixture
def begun(client: BlockingClient) -> WriterState:
    return WriterState(init_producer_id(client, DRIVER, 60_000), 0)


def write(client: BlockingClient, before: WriterState, *values: bytes | None) -> WriterState:
    return write_with(client, DRIVER, before, (LOG, 0), [(b"key", value) for value in values])


def seen(cluster: SimulatedCluster) -> list[bytes | None]:
    return cluster.values(LOG, 0, committed=True)


def is_of_version_2(cluster: SimulatedCluster) -> bool:
    return cluster.core.config.transaction_version == 2


def test_commits_consecutive_transactions(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    written = write(client, begun, b"a")
    assert seen(cluster) == [b"a"]
    written = write(client, written, b"b", None, b"c")
    written = write(client, written, b"d")
    assert seen(cluster) == [b"a", b"b", None, b"c", b"d"]
    assert cluster.table(LOG, committed=True).column("key").to_pylist() == [b"key"] * 5
    (producer_id, epoch), sequence = written
    if is_of_version_2(cluster):
        assert (producer_id, epoch, sequence) == (begun.id_and_epoch.producer_id, begun.id_and_epoch.epoch + 3, 0)
    else:
        assert (*begun.id_and_epoch, 5) == (producer_id, epoch, sequence)


def test_records_of_a_transaction_are_one_batch(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    write(client, begun, b"a", b"b")
    log = cluster.log(LOG)
    headers = [header for batch in log.read(0, 2**62).batches for header, _ in decode_batches(batch)]
    assert [(header.record_count, header.is_transactional, header.is_control) for header in headers] == [
        (2, True, False),
        (1, True, True),
    ]
    assert (headers[0].producer_id, headers[0].producer_epoch, headers[0].base_sequence) == (*begun.id_and_epoch, 0)


FAULTS: dict[str, Callable[[FaultBuilder], object]] = {
    "lost before": lambda fault: fault.drop(),
    "lost after": lambda fault: fault.drop(applied=True),
    "never answered": lambda fault: fault.never_answer(),
    "carried out, never answered": lambda fault: fault.never_answer(applied=True),
    "a failure without a name": lambda fault: fault.fail(codes.UNKNOWN_SERVER_ERROR),
    "carried out, and a failure": lambda fault: fault.fail(codes.UNKNOWN_SERVER_ERROR, after_applying=True),
    "still ending": lambda fault: fault.fail(codes.CONCURRENT_TRANSACTIONS),
    "garbage": lambda fault: fault.garbage(),
}


@pytest.mark.parametrize("api", [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN])
@pytest.mark.parametrize("fault", FAULTS)
def test_writes_record_once_despite_one_fault(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState, api: ApiKey, fault: str
) -> None:
    rule = FAULTS[fault](cluster.control.when(api=api))
    written = write(client, begun, b"a")
    has_no_such = api is ApiKey.ADD_PARTITIONS_TO_TXN and is_of_version_2(cluster)
    assert rule.struck == (0 if has_no_such else 1)  # type: ignore[attr-defined]
    assert seen(cluster) == [b"a"]
    write(client, written, b"b")
    assert seen(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("code", [codes.NOT_LEADER_OR_FOLLOWER, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_retries_unknown_server_error_of_leader(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState, code: int
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, times=3).fail(code, after_applying=True)
    write(client, begun, b"a")
    assert seen(cluster) == [b"a"]


def test_follows_moved_leader_and_coordinator(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    written = write(client, begun, b"a")
    for node in (0, 1):
        cluster.control.stop_node(node)
        cluster.control.move_coordinator(DRIVER, 1 - node)
        written = write(client, written, b"%d" % node)
        cluster.control.start_node(node)
    assert seen(cluster) == [b"a", b"0", b"1"]


def test_uses_new_epoch_after_unconfirmed_end(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    cluster.control.when(api=ApiKey.END_TXN).drop(applied=True)
    written = write(client, begun, b"a")
    after = write(client, written, b"b")
    assert after.id_and_epoch != begun.id_and_epoch
    assert seen(cluster) == [b"a", b"b"]


def test_new_epoch_keeps_the_transaction_timeout() -> None:
    """Brokers may grant less than a minute, and the timeout of a driver's id says what the id is."""
    cluster = cluster_of_version(1)
    cluster.core.coordinator.max_timeout_ms = 20_000
    with client_of(cluster) as client:
        begun = WriterState(init_producer_id(client, DRIVER, 19_999), 0)
        cluster.control.when(api=ApiKey.END_TXN).drop(applied=True)
        after = write(client, write(client, begun, b"a"), b"b")
        assert after.id_and_epoch != begun.id_and_epoch
        assert describe_transactions(client, [DRIVER])[DRIVER].timeout_ms == 19_999


def test_forgotten_id_gets_no_new_epoch() -> None:
    cluster = cluster_of_version(1)
    with client_of(cluster) as client:
        before = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
        cluster.control.when(api=ApiKey.END_TXN).drop(applied=True)
        before = write(client, before, b"a")
        del cluster.core.coordinator.transactions[DRIVER]
        with pytest.raises(BrokerError, match="transactional id p-driver: TRANSACTIONAL_ID_NOT_FOUND"):
            write(client, before, b"b")


@pytest.mark.parametrize("version", [1, 2])
def test_first_request_uses_transaction_version_of_cluster(version: int) -> None:
    cluster = cluster_of_version(version)
    with client_of(cluster) as client:
        before = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
    cluster.requests.clear()
    with client_of(cluster) as client:
        write(client, before, b"a")
    adds = [frame for _, _, frame in cluster.requests if frame[:2] == struct.pack(">h", ApiKey.ADD_PARTITIONS_TO_TXN)]
    assert len(adds) == (1 if version == 1 else 0)


def test_uses_new_epoch_after_upgrade_to_version_2(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of_version(1)
    with client_of(cluster) as client:
        begun = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
        written = write(client, begun, b"a")
        assert written.id_and_epoch == begun.id_and_epoch
        cluster.core.coordinator.version = 2
        monkeypatch.setattr(BlockingClient, "transaction_version", 2)
        written = write(client, written, b"b")
        assert written == WriterState(begun.id_and_epoch._replace(epoch=begun.id_and_epoch.epoch + 2), 0)
    assert seen(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("nth", [0, 1])
def test_fenced_writer_writes_nothing(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState, nth: int
) -> None:
    for _ in range(nth):
        begun = write(client, begun, b"before")
    newer = WriterState(init_producer_id(client, DRIVER, 60_000), 0)
    with pytest.raises(ProducerFencedError) as refused:
        write(client, begun, b"late")
    assert refused.value.code in (codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)
    write(client, newer, b"newer")
    assert seen(cluster) == [b"before"] * nth + [b"newer"]


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
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState, code: int
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    with pytest.raises(ProducerFencedError) as refused:
        write(client, begun, b"a")
    assert refused.value.code == code
    assert not [frame for _, _, frame in cluster.requests if frame[:2] == bytes([0, ApiKey.END_TXN])]
    if not is_of_version_2(cluster):
        assert describe_transactions(client, [DRIVER])[DRIVER].state == ONGOING


def test_rejects_sequence_gap(cluster: SimulatedCluster, client: BlockingClient, begun: WriterState) -> None:
    written = write(client, begun, b"a")
    with pytest.raises(ProducerFencedError) as refused:
        write(client, WriterState(written.id_and_epoch, written.next_sequence + 5), b"gap")
    assert refused.value.code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert seen(cluster) == [b"a"]


def test_rejected_end_raises(cluster: SimulatedCluster, client: BlockingClient, begun: WriterState) -> None:
    cluster.control.when(api=ApiKey.END_TXN).fail(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match=r"p-driver: the attempt to end the transaction was rejected"):
        write(client, begun, b"a")
    assert seen(cluster) == []


def test_too_large_record_raises_without_fencing_error(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE") as refused:
        write(client, begun, b"a")
    assert not isinstance(refused.value, ProducerFencedError)


def test_unavailable_log_times_out_with_the_cause(cluster: SimulatedCluster, begun: WriterState) -> None:
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    with (
        client_of(cluster, timeout_ms=5_000) as client,
        pytest.raises(
            KafkaSinkError,
            match=r"log-0: the attempt to append the batch: timed out after 5000 ms.*NOT_ENOUGH",
        ),
    ):
        write(client, begun, b"a")
    assert rule.struck < 20, "the pauses grow"


def test_deleted_log_fails_early_with_its_name(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    written = write(client, begun, b"a")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    cluster.system.after(500, partial(cluster.control.delete_topic, LOG))
    since = cluster.system.now()
    with pytest.raises(BrokerError, match=r"topic log.*UNKNOWN_TOPIC"):
        write(client, written, b"b")
    assert cluster.system.now() - since < 60_000


def test_finds_moved_leader_although_previous_one_responds(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    written = write(client, begun, b"a")
    cluster.control.move_leader(LOG, 0, 1)
    since = cluster.system.now()
    write(client, written, b"b")
    assert cluster.system.now() - since < 10_000
    assert seen(cluster) == [b"a", b"b"]


def test_waits_for_leader_election(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, missing = ClusterSnapshot.leader, [None, None]

    def leader(snapshot: ClusterSnapshot, topic: str, partition: int) -> Node | None:
        return missing.pop() if missing else known(snapshot, topic, partition)

    monkeypatch.setattr(ClusterSnapshot, "leader", leader)
    write(client, begun, b"a")
    assert seen(cluster) == [b"a"]


def test_confirmed_end_is_not_in_doubt_after_lost_responses(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    if is_of_version_2(cluster):
        return  # each transaction has an epoch of its own
    cluster.control.when(api=ApiKey.ADD_PARTITIONS_TO_TXN).drop(applied=True)
    after = write(client, write(client, begun, b"a"), b"b")
    assert after == (begun.id_and_epoch, 2)


def test_produce_version_matches_transaction_version(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    """From version 12 on brokers add the partition to a transaction by themselves."""
    write(client, begun, b"a")
    produce = [frame for _, _, frame in cluster.requests if frame[:2] == bytes([0, ApiKey.PRODUCE])]
    assert [int.from_bytes(frame[2:4], "big") >= 12 for frame in produce] == [is_of_version_2(cluster)]


def test_leaves_unresponsive_leader_when_another_is_elected(
    cluster: SimulatedCluster, client: BlockingClient, begun: WriterState
) -> None:
    written = write(client, begun, b"a")
    cluster.control.when(api=ApiKey.PRODUCE, node=0, times=None).never_answer(applied=True)
    cluster.system.after(4_000, partial(cluster.control.move_leader, LOG, 0, 1))
    since = cluster.system.now()
    write(client, written, b"b")
    assert cluster.system.now() - since <= 12_000
    assert seen(cluster) == [b"a", b"b"]
