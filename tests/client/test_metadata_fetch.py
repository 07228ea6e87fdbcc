"""Metadata requests that get no response, which are repeated at another broker after a second, or an error."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from spark_kafka_sink.client.node_choice import UNRESPONSIVE_AFTER_MS
from spark_kafka_sink.errors import MetadataTimeoutError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from tests.client.metadata_responses import metadata_response
from tests.client.rig import Rig, ready_rig, rig_with_requests
from tests.client.scripted_broker import ReceivedRequest


def rig_awaiting_metadata(*, after_ms: float, **options: Any) -> Rig:
    """Build a Rig that awaits the metadata response of node 0, which takes `after_ms`. Other nodes respond at once."""
    rig = ready_rig(**options)
    delay_metadata(rig, 0, after_ms)
    rig.metadata.request_update()
    rig.poll_until(lambda: metadata_request_counts(rig) == [2, 0, 0], step_ms=1)
    return rig


def delay_metadata(rig: Rig, node_id: int, after_ms: float) -> None:
    """Delay the broker's metadata responses from now on."""

    def hold(received: ReceivedRequest) -> bool:
        if received.api_key is not ApiKey.METADATA:
            return False
        if after_ms < math.inf:
            received.respond(rig.brokers[node_id].metadata, after_ms=after_ms)
        return True

    rig.brokers[node_id].on_request = hold


def metadata_request_counts(rig: Rig) -> list[int]:
    """Return the number of metadata requests that each broker received."""
    return [len(broker.find_requests(ApiKey.METADATA)) for broker in rig.brokers]


def await_metadata_update(rig: Rig, limit_ms: float) -> None:
    before = rig.metadata.version
    rig.poll_until(lambda: rig.metadata.version > before, limit_ms=limit_ms)


def test_queries_another_broker_when_first_does_not_respond() -> None:
    rig = rig_awaiting_metadata(after_ms=math.inf)
    assert metadata_request_counts(rig) == [2, 0, 0]
    await_metadata_update(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    assert sorted(metadata_request_counts(rig)[1:]) == [0, 1]
    assert rig.client.in_flight_request_count(0) == 1, "the request is in flight until request.timeout.ms"


def test_ignores_late_response_of_first_broker() -> None:
    rig = rig_awaiting_metadata(after_ms=3 * UNRESPONSIVE_AFTER_MS)
    rig.broker.metadata = metadata_response(nodes=1)
    await_metadata_update(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    version = rig.metadata.version
    rig.pass_time(3 * UNRESPONSIVE_AFTER_MS)
    assert rig.client.in_flight_request_count(0) == 0
    assert (rig.metadata.version, len(rig.metadata.snapshot.nodes)) == (version, 3)


def test_accepts_slow_response_of_first_broker() -> None:
    rig = rig_awaiting_metadata(after_ms=1.5 * UNRESPONSIVE_AFTER_MS)
    for node_id in (1, 2):
        delay_metadata(rig, node_id, math.inf)
    await_metadata_update(rig, 2 * UNRESPONSIVE_AFTER_MS)


def test_waits_for_broker_that_responds_to_earlier_requests() -> None:
    rig = rig_with_requests(6, max_in_flight_requests_per_connection=10)
    delay_metadata(rig, 0, math.inf)
    rig.metadata.request_update()
    rig.poll_until(lambda: metadata_request_counts(rig) == [2, 0, 0], step_ms=1)
    for received in rig.broker.find_requests(ApiKey.INIT_PRODUCER_ID):
        rig.pass_time(UNRESPONSIVE_AFTER_MS / 2)
        received.respond(InitProducerIdResponse())
    assert metadata_request_counts(rig) == [2, 0, 0]
    rig.pass_time(1.1 * UNRESPONSIVE_AFTER_MS)
    assert sum(metadata_request_counts(rig)) == 3


def test_queries_each_unresponsive_broker_once() -> None:
    rig = rig_awaiting_metadata(after_ms=math.inf)
    for node_id in (1, 2):
        delay_metadata(rig, node_id, math.inf)
    rig.pass_time(2.9 * UNRESPONSIVE_AFTER_MS)
    assert sum(metadata_request_counts(rig)) == 3
    rig.pass_time(0.2 * UNRESPONSIVE_AFTER_MS)
    assert metadata_request_counts(rig) == [2, 1, 1]
    rig.pass_time(20 * UNRESPONSIVE_AFTER_MS)
    assert metadata_request_counts(rig) == [2, 1, 1]


def test_slow_cluster_gets_one_request_per_query() -> None:
    rig = rig_awaiting_metadata(after_ms=1.5 * UNRESPONSIVE_AFTER_MS)
    for node_id in (1, 2):
        delay_metadata(rig, node_id, 1.5 * UNRESPONSIVE_AFTER_MS)
    counts = []
    for _ in range(4):
        await_metadata_update(rig, 2 * UNRESPONSIVE_AFTER_MS)
        rig.pass_time(3 * UNRESPONSIVE_AFTER_MS)
        counts.append(sum(metadata_request_counts(rig)))
        rig.metadata.request_update()
    assert counts == [3, 4, 5, 6], "the first query was sent to two brokers, each later one to a single broker"


def test_detects_unresponsive_broker_quickly_after_recovery() -> None:
    rig = rig_awaiting_metadata(after_ms=math.inf)
    await_metadata_update(rig, 1.5 * UNRESPONSIVE_AFTER_MS)
    rig.pass_time(40 * UNRESPONSIVE_AFTER_MS)
    for node_id in range(3):
        delay_metadata(rig, node_id, 0)
    rig.metadata.request_update()
    await_metadata_update(rig, UNRESPONSIVE_AFTER_MS)
    for node_id in range(3):
        rig.make_ready(node_id)
        delay_metadata(rig, node_id, math.inf)
    before = sum(metadata_request_counts(rig))
    rig.metadata.request_update()
    rig.poll_until(lambda: sum(metadata_request_counts(rig)) == before + 1, step_ms=1)
    rig.pass_time(1.1 * UNRESPONSIVE_AFTER_MS)
    assert sum(metadata_request_counts(rig)) == before + 2


def test_query_continues_when_one_connection_is_lost() -> None:
    rig = rig_awaiting_metadata(after_ms=math.inf)
    for node_id in (1, 2):
        delay_metadata(rig, node_id, UNRESPONSIVE_AFTER_MS / 2)
    rig.poll_until(lambda: sum(metadata_request_counts(rig)) == 3, step_ms=1)
    rig.end_connection(0)
    await_metadata_update(rig, UNRESPONSIVE_AFTER_MS)
    assert sum(metadata_request_counts(rig)) == 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (error_codes.UNKNOWN_SERVER_ERROR, "A broker rejected the metadata request with UNKNOWN_SERVER_ERROR."),
        (error_codes.REBOOTSTRAP_REQUIRED, "A broker responded that clients must bootstrap again"),
    ],
)
def test_wait_that_times_out_names_error_of_metadata_response(code: int, message: str) -> None:
    rig = Rig(1, metadata_recovery_strategy="none")
    rig.broker.metadata.error_code = code
    rig.pass_time(10_000)
    with pytest.raises(MetadataTimeoutError, match=re.escape(message)):
        rig.metadata.await_update(rig.metadata.version, 0)
    assert 1 < len(rig.broker.find_requests(ApiKey.METADATA)) < 110, "the client backs off between its requests"
    rig.broker.metadata.error_code = error_codes.NONE
    rig.bootstrap()
