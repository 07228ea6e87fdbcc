"""The client against the core of the embedded broker with its real handlers, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from spark_kafka_sink.broker.control import FaultBuilder
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, DisconnectedError
from spark_kafka_sink.protocol.error_codes import KAFKA_STORAGE_ERROR, LEADER_NOT_AVAILABLE
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.requests.blocking import BlockingClient
from tests.fake_system import FakeSystem
from tests.reader.stored_batches import batch
from tests.requests.node_message import send_to
from tests.simulated_cluster import SimulatedCluster

VERSIONS_WITH_TOPIC_NAMES = VersionRange(3, 12)

FAULTS: dict[str, Callable[[FaultBuilder], object]] = {
    "dropped before": lambda fault: fault.drop(),
    "dropped after": lambda fault: fault.drop(execute_first=True),
    "cut in mid-frame": lambda fault: fault.cut(),
    "cut after two bytes": lambda fault: fault.cut(0.01),
    "HTTP": lambda fault: fault.garbage(),
    "2 GB announced": lambda fault: fault.announce_length(),
    "-1 announced": lambda fault: fault.announce_length(-1),
    "wrong correlation id": lambda fault: fault.wrong_correlation_id(),
    "no response": lambda fault: fault.never_respond(),
    "throttled": lambda fault: fault.throttle(2_000),
    "late": lambda fault: fault.delay(5_000),
}


def config(cluster: SimulatedCluster) -> ClientConfig:
    return ClientConfig(tuple(cluster.bootstrap_servers.split(",")), request_timeout_ms=10_000)


def write(cluster: SimulatedCluster, topic: str, partition: int, *values: bytes) -> None:
    with BlockingClient(config(cluster), system=cluster.system) as client:
        client.wait_for_topic(topic)
        leader = client.find_leader(topic, partition)
        assert leader is not None
        data = PartitionProduceData(index=partition, records=[batch(0, *values)])
        request = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        response = send_to(client, leader, ProduceResponse, request, versions=VERSIONS_WITH_TOPIC_NAMES)
        assert response.responses[0].partition_responses[0].error_code == 0


def read(cluster: SimulatedCluster, topic: str = "t") -> list[bytes]:
    with TopicReader(config(cluster), system=cluster.system) as reader:
        return reader.read(topic).column("value").to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 2})
    write(cluster, "t", 0, b"a", b"b")
    write(cluster, "t", 1, b"c")
    return cluster


def test_reads_written_records(cluster: SimulatedCluster) -> None:
    assert read(cluster) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("api", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.FETCH])
@pytest.mark.parametrize("fault", FAULTS)
def test_single_fault_in_any_response_only_delays_the_read(cluster: SimulatedCluster, api: ApiKey, fault: str) -> None:
    rule = FAULTS[fault](cluster.control.when(api=api))
    assert read(cluster) == [b"a", b"b", b"c"]
    assert rule.affected_count == 1  # type: ignore[attr-defined]
    assert not cluster.system.open_sockets


def test_reads_all_records_despite_random_faults(cluster: SimulatedCluster) -> None:
    for fault in FAULTS.values():
        fault(cluster.control.when(times=None, probability=0.03))
    for _ in range(10):
        assert read(cluster) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("code", [LEADER_NOT_AVAILABLE, KAFKA_STORAGE_ERROR])
def test_retries_temporary_errors(cluster: SimulatedCluster, code: int) -> None:
    cluster.control.when(api=ApiKey.FETCH, times=3).fail(code)
    assert read(cluster) == [b"a", b"b", b"c"]


def test_finds_moved_leader(cluster: SimulatedCluster) -> None:
    with TopicReader(config(cluster), system=cluster.system) as reader:
        reader.partitions("t")
        for partition in range(2):
            for node in (1, 0, 1):
                cluster.control.move_leader("t", partition, node)
        assert reader.read("t").num_rows == 3


def test_reconnects_to_restarted_node(cluster: SimulatedCluster) -> None:
    with TopicReader(config(cluster), system=cluster.system) as reader:
        assert reader.read("t").num_rows == 3
        cluster.control.stop_node(0)
        cluster.system.after(3_000, partial(cluster.control.start_node, 0))
        assert reader.read("t").num_rows == 3


def test_reads_recreated_topic_and_reports_deleted_topic(cluster: SimulatedCluster) -> None:
    with TopicReader(config(cluster), system=cluster.system) as reader:
        assert reader.read("t").num_rows == 3
        cluster.control.delete_topic("t")
        cluster.control.create_topic("t", 2)
        write(cluster, "t", 1, b"new")
        assert reader.read("t").column("value").to_pylist() == [b"new"]
        cluster.control.delete_topic("t")
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            reader.read("t")


def test_rejects_topic_recreated_during_read(cluster: SimulatedCluster) -> None:
    write(cluster, "t", 0, b"d", b"e")
    with TopicReader(config(cluster), system=cluster.system) as reader:
        tables = reader.batches("t", partitions=[0], stop={0: 100})
        assert next(tables).num_rows == 4
        cluster.control.delete_topic("t")
        cluster.control.create_topic("t", 2)
        write(cluster, "t", 0, b"1", b"2", b"3", b"4")
        with pytest.raises(BrokerError, match="deleted and recreated while it was being read"):
            list(tables)
        assert reader.read("t").column("value").to_pylist() == [b"1", b"2", b"3", b"4"]


def test_error_of_lost_request_names_broker(cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    with pytest.raises(DisconnectedError, match=r"broker[01]:909[23]"):
        write(cluster, "t", 0, b"maybe")
    assert read(cluster) == [b"a", b"b", b"maybe", b"c"], "only the response was lost"
