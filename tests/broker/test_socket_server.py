"""SocketServer on real sockets: request order, faults, invalid bytes, and shutdown."""

from __future__ import annotations

import random
import socket

import pytest

from spark_kafka_sink.broker import processor
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages import list_supported_api_keys
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from spark_kafka_sink.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.broker.loopback_client import LoopbackClient, broker_threads, count_open_descriptors
from tests.broker.wire_client import batch, partition_response, produce_request
from tests.simulated_cluster import stored_records
from tests.waiting import eventually

REQUESTS = 60


def applied_order(broker: EmbeddedBroker) -> list[bytes]:
    """Pipeline produce requests with random delays on one connection. Return the values in the order of the log."""
    broker.control.when(api=ApiKey.PRODUCE, times=None).delay(0, 5, execute_first=False)
    values = [b"%03d" % number for number in range(REQUESTS)]
    log = broker.cluster.log("t", 0)
    with LoopbackClient(broker.bootstrap_servers) as client:
        # With acks=0 there are no responses, so the order of responses cannot enforce the order of requests.
        client.send(*((produce_request(batch(value), acks=0), 9) for value in values))
        assert eventually(lambda: log.records_appended == REQUESTS)
    stored: list[bytes] = stored_records(log).column("value").to_pylist()
    assert sorted(stored) == values
    return stored


def test_applies_requests_of_one_connection_in_order_with_concurrent_handlers() -> None:
    with embedded_broker({"t": 1}, seed=7) as broker:
        order = applied_order(broker)
    assert order == sorted(order)


def test_applies_requests_out_of_order_without_muting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.Processor, "_mute", lambda *_: None)
    with embedded_broker({"t": 1}, seed=7) as broker:
        order = applied_order(broker)
    assert order != sorted(order)


def test_unanswered_request_does_not_block_other_connections() -> None:
    with embedded_broker({"t": 1}) as broker:
        broker.control.when(api=ApiKey.PRODUCE, client_id="tests").never_respond()
        with (
            LoopbackClient(broker.bootstrap_servers) as blocked_client,
            LoopbackClient(broker.bootstrap_servers) as other_client,
        ):
            blocked_client.send((produce_request(batch(b"a")), 9))
            assert other_client.request(MetadataRequest(topics=None), 9) is not None


def test_delayed_fetch_occupies_no_handler_and_ends_when_records_arrive() -> None:
    partition = FetchPartition(partition=0, partition_max_bytes=1000)
    poll = FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])])
    with embedded_broker({"t": 1}) as broker:
        readers = [LoopbackClient(broker.bootstrap_servers) for _ in range(10)]
        for reader in readers:
            reader.send((poll, 12))
        with LoopbackClient(broker.bootstrap_servers) as writer:
            assert partition_response(writer.request(produce_request(batch(b"a")), 9)).error_code == 0
        payloads = [reader.receive() for reader in readers]
        for reader in readers:
            reader.__exit__()
    assert all(payload is not None and b"a" in payload for payload in payloads)


def test_stopped_node_refuses_connections_on_its_port_until_started() -> None:
    with embedded_broker({"t": 2}, nodes=2) as broker:
        first, second = broker.bootstrap_servers.split(",")
        with LoopbackClient(first) as client:
            assert client.request(produce_request(batch(b"a"), partition=1), 9) is not None
            broker.control.stop_node(0)
            assert client.receive() is None
            with pytest.raises(ConnectionRefusedError):
                LoopbackClient(first)
        with LoopbackClient(second) as client:
            assert partition_response(client.request(produce_request(batch(b"a"), partition=0), 9)).error_code == 0
        broker.control.start_node(0)
        with LoopbackClient(first) as client:
            response = partition_response(client.request(produce_request(batch(b"a"), partition=0), 9))
            assert response.error_code == error_codes.NOT_LEADER_OR_FOLLOWER


def test_refuses_new_connections_and_keeps_open_ones() -> None:
    with embedded_broker({"t": 1}) as broker, LoopbackClient(broker.bootstrap_servers) as open_client:
        assert open_client.request(MetadataRequest(topics=None), 9) is not None
        broker.control.refuse_connections(0)
        with pytest.raises(ConnectionRefusedError):
            LoopbackClient(broker.bootstrap_servers)
        assert open_client.request(MetadataRequest(topics=None), 9) is not None
        broker.control.accept_connections(0)
        with LoopbackClient(broker.bootstrap_servers) as client:
            assert client.request(MetadataRequest(topics=None), 9) is not None


def test_response_faults_reach_the_socket() -> None:
    with embedded_broker({"t": 1}) as broker:
        control = broker.control
        control.when(api=ApiKey.METADATA, nth=1).drop()
        control.when(api=ApiKey.METADATA, nth=2).cut(at=0.5)
        control.when(api=ApiKey.METADATA, nth=3).garbage(b"HTTP/1.1 400", close=True)
        received = []
        for _ in range(3):
            with LoopbackClient(broker.bootstrap_servers) as client:
                client.send((MetadataRequest(topics=None), 9))
                received.append(read_to_end(client.socket))
    dropped, cut, garbage = received
    assert (dropped, garbage) == (b"", b"HTTP/1.1 400")
    assert 4 < len(cut) < 4 + int.from_bytes(cut[:4], "big")


def test_aborts_timed_out_transaction_without_requests() -> None:
    with embedded_broker({"t": 1}) as broker, LoopbackClient(broker.bootstrap_servers) as client:
        response = client.request(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1), 5)
        identity = response.producer_id, response.producer_epoch
        data = batch(b"a", sequence=0, producer=identity, transactional=True)
        assert partition_response(client.request(produce_request(data, transactional_id="x"), 12)).error_code == 0
        log = broker.cluster.log("t", 0)
        assert eventually(lambda: log.last_stable_offset == log.log_end_offset == 2)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
        pytest.param(b"\xff\xff\xff\xff", id="negative length"),
        pytest.param(b"\x7f\xff\xff\xff", id="two gigabytes"),
        pytest.param(b"\x00\x00\x00\x00", id="empty frame"),
        pytest.param(b"\x00\x00\x00\x02\x00\x00", id="truncated header"),
        pytest.param(b"\x00\x00\x00\x0a\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff", id="unknown API"),
        pytest.param(b"\x00\x00\x00\x0e\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00\xff\xff\xff", id="truncated body"),
    ],
)
def test_invalid_request_closes_only_its_own_connection(data: bytes) -> None:
    with embedded_broker({"t": 1}) as broker, LoopbackClient(broker.bootstrap_servers) as valid_client:
        with LoopbackClient(broker.bootstrap_servers) as invalid_client:
            invalid_client.socket.sendall(data)
            assert read_to_end(invalid_client.socket) == b""
        assert valid_client.request(ApiVersionsRequest(), 3) is not None


def test_survives_random_bytes() -> None:
    source = random.Random(1)
    with embedded_broker({"t": 1}) as broker:
        for _ in range(100):
            body = source.randbytes(source.randrange(60))
            api = source.choice(list_supported_api_keys())
            head = api.to_bytes(2, "big") + source.randrange(14).to_bytes(2, "big") + b"\0\0\0\1\xff\xff"
            with LoopbackClient(broker.bootstrap_servers) as client:
                client.socket.sendall(len(head + body).to_bytes(4, "big") + head + body)
        with LoopbackClient(broker.bootstrap_servers) as client:
            assert client.request(ApiVersionsRequest(), 3) is not None


def test_handler_exception_closes_connection_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with embedded_broker({"t": 1}) as broker:
        with monkeypatch.context() as patch, LoopbackClient(broker.bootstrap_servers) as client:
            patch.setattr(broker.cluster, "list_running_nodes", lambda: 1 / 0)
            assert client.request(MetadataRequest(topics=None), 9) is None
        with LoopbackClient(broker.bootstrap_servers) as client:
            assert client.request(MetadataRequest(topics=None), 9) is not None
    assert "Could not handle a request" in caplog.text


def test_close_leaves_no_threads_and_descriptors() -> None:
    threads, descriptors = broker_threads(), count_open_descriptors()
    for _ in range(3):
        with embedded_broker({"t": 1}, nodes=3) as broker:
            assert broker_threads() - threads
            broker.control.when(api=ApiKey.PRODUCE).never_respond()
            broker.control.when(api=ApiKey.FETCH).delay(1_000_000)
            clients = [LoopbackClient(broker.bootstrap_servers) for _ in range(5)]
            for client in clients:
                client.request(MetadataRequest(topics=None), 9)
                client.send((produce_request(batch(b"a")), 9))
        for client in clients:
            client.socket.close()
    assert broker_threads() <= threads
    assert count_open_descriptors() == descriptors


def test_port_in_use_raises_and_leaves_nothing_open() -> None:
    with embedded_broker() as broker:
        port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
        threads, descriptors = broker_threads(), count_open_descriptors()
        with pytest.raises(OSError, match="in use"):
            embedded_broker(port=port)
        assert broker_threads() <= threads
        assert count_open_descriptors() == descriptors


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while piece := sock.recv(4096):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_stopping_node_keeps_connections_to_other_nodes() -> None:
    request = (MetadataRequest(topics=[]), 9)
    with embedded_broker(nodes=2) as broker:
        first, second = broker.bootstrap_servers.split(",")
        with LoopbackClient(first) as first_client, LoopbackClient(second) as second_client:
            assert first_client.request(*request) is not None
            assert second_client.request(*request) is not None
            broker.control.stop_node(1)
            assert second_client.receive() is None
            assert first_client.request(*request) is not None
