"""ProducerIdCall: requests a producer id while records wait for one, with backoff after failures."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from spark_kafka_sink.errors import AuthorizationError, DecodeError, KafkaSinkError, UnsupportedVersionError
from spark_kafka_sink.producer.sending.producer_id_call import ProducerIdCall
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from tests.fake_system import FakeSystem
from tests.producer.sending.sender_cases import find_requests, pass_time, send, simulated, wait
from tests.producer.virtual_time import create_simulated_producer, get_loop
from tests.simulated_cluster import SimulatedCluster


def test_broker_without_producer_ids_ends_the_producer_immediately() -> None:
    system = FakeSystem(latency_ms=2)
    limits = {ApiKey.INIT_PRODUCER_ID: VersionRange(7, 9)}
    cluster = SimulatedCluster(system, topics={"t": 1}, version_limits=limits)
    producer = create_simulated_producer(cluster, linger_ms=0)
    future = send(producer, b"1")
    wait(producer, future)
    assert isinstance(future.exception(0), UnsupportedVersionError)
    assert system.now() < 5_000
    with pytest.raises(KafkaSinkError):
        send(producer, b"2").result(0)


def test_requests_no_producer_id_while_no_record_waits_for_one() -> None:
    cluster, producer = simulated(delivery_timeout_ms=3_000, request_timeout_ms=1_000)
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    future = send(producer, b"1")
    wait(producer, future)
    assert future.exception(0) is not None
    requests, rounds = len(find_requests(cluster, InitProducerIdRequest)), get_loop(producer).rounds
    pass_time(producer, 60_000)
    assert len(find_requests(cluster, InitProducerIdRequest)) == requests
    assert get_loop(producer).rounds - rounds < 100


def test_backs_off_after_rejection_although_next_record_waits() -> None:
    cluster, producer = simulated(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    rule = cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    begun = cluster.system.now()
    for _ in range(20):
        future = send(producer, b"1")
        wait(producer, future)
        assert isinstance(future.exception(0), AuthorizationError)
    assert cluster.system.now() - begun > 10_000
    assert len(find_requests(cluster, InitProducerIdRequest)) == 20
    rule.remove()
    future = send(producer, b"2")
    wait(producer, future)
    assert future.exception(0) is None


def test_backoff_restarts_after_success() -> None:
    failure_counts: list[int] = []

    def retry_backoff_ms(failure_count: int) -> float:
        failure_counts.append(failure_count)
        return 100.0

    call = ProducerIdCall(lambda: True, Mock(), Mock(), retry_backoff_ms)
    rejected = codes.CLUSTER_AUTHORIZATION_FAILED
    for error_code in (rejected, rejected, codes.NONE, rejected):
        response = InitProducerIdResponse(error_code=error_code, producer_id=7, producer_epoch=0)
        call.handle_result(InitProducerId(None), "", response, 0)
    assert failure_counts == [0, 1, 0]


@pytest.mark.parametrize("id_and_epoch", [(-5, 0), (7, -1)])
def test_passes_on_no_negative_id_or_epoch(id_and_epoch: tuple[int, int]) -> None:
    set_producer_id_and_epoch, on_failure = Mock(), Mock()
    call = ProducerIdCall(lambda: True, set_producer_id_and_epoch, on_failure, lambda failure_count: 100.0)
    producer_id, epoch = id_and_epoch
    response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
    call.handle_result(InitProducerId(None), "", response, 0)
    set_producer_id_and_epoch.assert_not_called()
    assert isinstance(on_failure.call_args.args[0], DecodeError)
