"""Injected faults as a client observes them: the requests that a rule selects, and its effect."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.control import HTTP_RESPONSE
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.broker.outcome import ChannelResponse
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.headers import encode_request, peek_correlation_id
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.broker.cluster_cases import NOT_LEADER, produce
from tests.broker.cluster_cases import client as client
from tests.broker.cluster_cases import cluster as cluster
from tests.broker.cluster_cases import system as system
from tests.broker.wire_client import WireClient, batch, produce_request
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


def test_strikes_only_the_nth_selected_requests(client: WireClient, cluster: SimulatedCluster) -> None:
    rule = cluster.control.when(api=ApiKey.PRODUCE, topic="t", nth=2, times=2).fail(NOT_LEADER)
    assert produce(client, topic="other") == 0
    assert [produce(client) for _ in range(4)] == [0, NOT_LEADER, NOT_LEADER, 0]
    assert (rule.affected_count, len(cluster.values("t"))) == (2, 2)


def test_cuts_second_response_as_documented_in_testing_page(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when("PRODUCE", nth=2).cut(at=0.5)
    assert [produce(client) for _ in range(2)] == [0, None]


def test_strikes_until_rule_is_removed(client: WireClient, cluster: SimulatedCluster) -> None:
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(NOT_LEADER)
    assert [produce(client), produce(client)] == [NOT_LEADER, NOT_LEADER]
    rule.remove()
    assert produce(client) == 0
    cluster.control.when(times=None).fail(NOT_LEADER)
    cluster.control.clear()
    assert produce(client) == 0


def test_ignores_requests_to_other_nodes_clients_and_partitions(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(node=1).fail(NOT_LEADER)
    cluster.control.when(client_id="somebody else").fail(NOT_LEADER)
    cluster.control.when(topic="t", partition=1).fail(NOT_LEADER)
    assert produce(client) == 0


def test_injects_error_after_records_are_stored(client: WireClient, cluster: SimulatedCluster) -> None:
    code = error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    cluster.control.when(api=ApiKey.PRODUCE).fail(code, execute_first=True)
    assert produce(client) == code
    assert cluster.values("t") == [b"a"]


@pytest.mark.parametrize("version", [12, 13])
def test_injects_error_after_execution_for_one_partition_only(
    client: WireClient, cluster: SimulatedCluster, version: int
) -> None:
    """The request goes to node 0, which leads partition 0 of both topics."""
    code = error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=0).fail(code, execute_first=True)
    partitions = {
        topic: [PartitionProduceData(index=n, records=batch(b"a")) for n in (0, 1)] for topic in ("t", "other")
    }
    topics = [
        TopicProduceData(name=topic if version < 13 else "", partition_data=partitions[topic]) for topic in partitions
    ]
    for topic, name in zip(topics, partitions, strict=True):
        topic.topic_id = cluster.core.topic(name).id
    response = client.request(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), version)
    codes = [[partition.error_code for partition in topic.partition_responses] for topic in response.responses]
    assert codes == [[code, NOT_LEADER], [0, NOT_LEADER]]


@pytest.mark.parametrize(("applied", "stored"), [(False, []), (True, [b"a"])])
def test_dropped_request_closes_connection(
    client: WireClient, cluster: SimulatedCluster, applied: bool, stored: list[bytes]
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=applied)
    assert produce(client) is None
    assert cluster.values("t") == stored


def test_cut_response_closes_connection_in_the_middle(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, times=2).cut()
    assert produce(client) is None
    assert cluster.values("t") == [b"a"]
    sent = raw_response(cluster)
    assert 4 < len(sent) < 4 + int.from_bytes(sent[:4], "big")


@pytest.mark.parametrize("length", [2**31 - 1, -1])
def test_client_disconnects_when_frame_length_is_invalid(
    client: WireClient, cluster: SimulatedCluster, length: int
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).announce_length(length)
    client.send(produce_request(batch(b"a")), 9)
    assert client.wait() is None


def test_sends_garbage_without_a_frame(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE, times=2).garbage()
    assert produce(client) is None
    assert raw_response(cluster) == HTTP_RESPONSE


def test_sends_response_with_wrong_correlation_id(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).wrong_correlation_id()
    correlation_id = client.send(produce_request(batch(b"a")), 9)
    payload = client.wait()
    assert payload is not None
    assert peek_correlation_id(payload) != correlation_id


@pytest.mark.parametrize(("applied", "stored"), [(False, []), (True, [b"a"])])
def test_never_respond_keeps_connection_open_and_reads_no_further_request(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem, applied: bool, stored: list[bytes]
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).never_respond(execute_first=applied)
    for _ in range(2):
        client.send(produce_request(batch(b"a")), 9)
        client.selector.poll(10)
    system.advance(500_000)
    client.selector.poll(0)
    assert (client.selector.completed_receives, dict(client.selector.disconnected)) == ([], {})
    assert cluster.values("t") == stored


@pytest.mark.parametrize(("execute_first", "stored"), [(False, []), (True, [b"a"])])
def test_delays_response_exactly_before_or_after_execution(
    client: WireClient, cluster: SimulatedCluster, system: FakeSystem, execute_first: bool, stored: list[bytes]
) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).delay(500, execute_first=execute_first)
    start = system.now()
    client.send(produce_request(batch(b"a")), 9)
    sent_at = system.now()
    for _ in range(3):
        client.selector.poll(100)
    assert cluster.values("t") == stored
    assert client.wait() is not None
    assert cluster.values("t") == [b"a"]
    assert 500 <= system.now() - sent_at <= system.now() - start <= 510


def test_injects_throttle_time_into_response(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).throttle(700)
    assert client.request(produce_request(batch(b"a")), 9).throttle_time_ms == 700
    assert client.request(produce_request(batch(b"a")), 9).throttle_time_ms == 0


def test_injects_errors_into_any_api(client: WireClient, cluster: SimulatedCluster) -> None:
    code = error_codes.COORDINATOR_NOT_AVAILABLE
    cluster.control.when(api=ApiKey.FIND_COORDINATOR).fail(code)
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(code)
    response = client.request(FindCoordinatorRequest(coordinator_keys=["x"], key_type=1))
    assert [coordinator.error_code for coordinator in response.coordinators] == [code]
    assert client.request(InitProducerIdRequest(transactional_id=None), 5).error_code == code


def test_random_faults_depend_on_seed() -> None:
    def outcome(seed: int) -> list[int | None]:
        system = FakeSystem()
        cluster = SimulatedCluster(system, topics={"t": 1}, seed=seed)
        cluster.control.when(api=ApiKey.PRODUCE, times=None, probability=0.5).fail(NOT_LEADER)
        client = WireClient(system)
        return [produce(client) for _ in range(40)]

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)
    assert set(outcome(1)) == {0, NOT_LEADER}


def test_rejects_partition_without_topic(cluster: SimulatedCluster) -> None:
    with pytest.raises(ValueError, match="partition requires topic"):
        cluster.control.when(partition=1)


def raw_response(cluster: SimulatedCluster) -> bytes:
    """Return the raw bytes that the broker would write instead of a response."""
    frame = b"".join(encode_request(produce_request(batch(b"a")), 9, 1, "tests"))
    outcome = handle_request(cluster.core, cluster.control, 0, memoryview(bytearray(frame)), 0)
    assert isinstance(outcome, ChannelResponse)
    assert outcome.raw_bytes is not None
    return outcome.raw_bytes


def test_client_reports_decode_error_for_enormous_length(client: WireClient, cluster: SimulatedCluster) -> None:
    cluster.control.when(api=ApiKey.PRODUCE).announce_length()
    client.send(produce_request(batch(b"a")), 9)
    assert client.wait() is None
    error = client.selector.disconnected["0"].error
    assert isinstance(error, DecodeError)
