from __future__ import annotations

import math

import pytest

from spark_kafka_sink.client.client_request import ClientRequest
from spark_kafka_sink.client.in_flight import InFlightRequest, InFlightRequests
from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.protocol.headers import encode_response
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def in_flight(
    correlation_id: int, *, node_id: int = 1, sent_ms: float = 0.0, timeout_ms: float = 1_000, written: bool = True
) -> InFlightRequest:
    request = ClientRequest(
        node_id=node_id,
        message=InitProducerIdRequest(),
        correlation_id=correlation_id,
        created_ms=sent_ms,
        timeout_ms=timeout_ms,
    )
    return InFlightRequest(request, version=4, is_internal=False, sent_ms=sent_ms, is_written=written)


def encode_init_producer_id_response(correlation_id: int) -> memoryview:
    return memoryview(b"".join(encode_response(InitProducerIdResponse(producer_id=7), 4, correlation_id)))


def tracked(*requests: InFlightRequest, max_per_node: int = 5) -> InFlightRequests:
    tracker = InFlightRequests(max_per_node)
    for request in requests:
        tracker.add(request)
    return tracker


def test_response_completes_oldest_request() -> None:
    first, second = in_flight(1), in_flight(2)
    requests = tracked(first, second)
    assert requests.complete_next(1, encode_init_producer_id_response(1))[0] is first
    taken, message = requests.complete_next(1, encode_init_producer_id_response(2))
    assert taken is second
    assert isinstance(message, InitProducerIdResponse)
    assert message.producer_id == 7
    assert requests.count() == requests.count(1) == 0


def test_rejects_response_out_of_order_and_keeps_requests() -> None:
    requests = tracked(in_flight(1), in_flight(2))
    with pytest.raises(DecodeError, match=r"it is for request 2 instead of request 1 \(INIT_PRODUCER_ID\)"):
        requests.complete_next(1, encode_init_producer_id_response(2))
    assert requests.count(1) == 2


def test_rejects_response_without_request() -> None:
    with pytest.raises(DecodeError, match="no request is in flight"):
        tracked(in_flight(1, node_id=2)).complete_next(1, encode_init_producer_id_response(1))


@pytest.mark.parametrize("cut", range(4))
def test_rejects_response_shorter_than_header(cut: int) -> None:
    with pytest.raises(DecodeError):
        tracked(in_flight(1)).complete_next(1, encode_init_producer_id_response(1)[:cut])


def test_complete_last_sent_returns_newest_request() -> None:
    first, second = in_flight(1), in_flight(2)
    requests = tracked(first, second)
    assert requests.complete_last_sent(1) is second
    assert requests.complete_last_sent(1) is first
    with pytest.raises(IllegalStateError):
        requests.complete_last_sent(1)


def test_can_send_more_only_when_last_request_is_written_and_below_limit() -> None:
    requests = InFlightRequests(2)
    assert requests.can_send_more(1)
    newest = in_flight(1, written=False)
    requests.add(newest)
    assert not requests.can_send_more(1), "a channel writes one request at a time"
    newest.is_written = True
    assert requests.can_send_more(1)
    requests.add(in_flight(2))
    assert not requests.can_send_more(1), "two requests are in flight"
    assert requests.can_send_more(2), "another node is another connection"
    requests.complete_next(1, encode_init_producer_id_response(1))
    assert requests.can_send_more(1)


def test_clear_returns_requests_of_node_in_order() -> None:
    first, second, other = in_flight(1), in_flight(2), in_flight(3, node_id=2)
    requests = tracked(first, other, second)
    assert requests.clear(1) == [first, second]
    assert requests.clear(1) == []
    assert requests.count() == requests.count(2) == 1


def test_reports_nodes_with_timed_out_requests() -> None:
    requests = tracked(
        in_flight(1, timeout_ms=1_000), in_flight(2, timeout_ms=200), in_flight(3, node_id=2, timeout_ms=5_000)
    )
    assert requests.next_deadline_check_ms() == 200
    assert list(requests.collect_timed_out_requests(199)) == []
    assert list(requests.collect_timed_out_requests(200)) == [1]
    assert list(requests.collect_timed_out_requests(5_000)) == [1, 2]


def test_throttle_time_extends_deadlines() -> None:
    requests = tracked(in_flight(1, timeout_ms=1_000), in_flight(2, node_id=2, timeout_ms=1_000))
    requests.extend_deadlines(1, 300)
    requests.extend_deadlines(1, 400)
    assert list(requests.collect_timed_out_requests(1_000)) == [2]
    assert list(requests.collect_timed_out_requests(1_700)) == [1, 2]


def test_has_no_deadline_without_requests() -> None:
    assert InFlightRequests(5).next_deadline_check_ms() == math.inf
