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
    return InFlightRequest(request, 4, False, sent_ms, written=written)


def answer(correlation_id: int) -> memoryview:
    return memoryview(b"".join(encode_response(InitProducerIdResponse(producer_id=7), 4, correlation_id)))


def waiting(*requests: InFlightRequest, max_per_node: int = 5) -> InFlightRequests:
    all_waiting = InFlightRequests(max_per_node)
    for request in requests:
        all_waiting.add(request)
    return all_waiting


def test_answers_belong_to_the_oldest_request() -> None:
    first, second = in_flight(1), in_flight(2)
    requests = waiting(first, second)
    assert requests.complete_next(1, answer(1))[0] is first
    taken, message = requests.complete_next(1, answer(2))
    assert taken is second
    assert isinstance(message, InitProducerIdResponse)
    assert message.producer_id == 7
    assert requests.count() == requests.count(1) == 0


def test_an_answer_to_another_request_is_refused_and_takes_nothing_off() -> None:
    requests = waiting(in_flight(1), in_flight(2))
    with pytest.raises(DecodeError, match=r"response to request 2 instead of request 1 \(INIT_PRODUCER_ID\)"):
        requests.complete_next(1, answer(2))
    assert requests.count(1) == 2


def test_an_answer_without_a_request_is_refused() -> None:
    with pytest.raises(DecodeError, match="no request is in flight"):
        waiting(in_flight(1, node_id=2)).complete_next(1, answer(1))


@pytest.mark.parametrize("cut", range(4))
def test_an_answer_too_short_for_its_header_is_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        waiting(in_flight(1)).complete_next(1, answer(1)[:cut])


def test_the_newest_request_is_the_one_that_needs_no_answer() -> None:
    first, second = in_flight(1), in_flight(2)
    requests = waiting(first, second)
    assert requests.complete_last_sent(1) is second
    assert requests.complete_last_sent(1) is first
    with pytest.raises(IllegalStateError):
        requests.complete_last_sent(1)


def test_more_can_be_sent_only_when_the_newest_is_written_and_there_is_room() -> None:
    requests = InFlightRequests(2)
    assert requests.can_send_more(1)
    newest = in_flight(1, written=False)
    requests.add(newest)
    assert not requests.can_send_more(1), "a channel writes one request at a time"
    newest.written = True
    assert requests.can_send_more(1)
    requests.add(in_flight(2))
    assert not requests.can_send_more(1), "two are waiting"
    assert requests.can_send_more(2), "another node is another connection"
    requests.complete_next(1, answer(1))
    assert requests.can_send_more(1)


def test_all_requests_of_a_node_are_cleared_in_their_order() -> None:
    first, second, other = in_flight(1), in_flight(2), in_flight(3, node_id=2)
    requests = waiting(first, other, second)
    assert requests.clear(1) == [first, second]
    assert requests.clear(1) == []
    assert requests.count() == requests.count(2) == 1


def test_any_request_past_its_time_gives_its_node_away() -> None:
    requests = waiting(
        in_flight(1, timeout_ms=1_000), in_flight(2, timeout_ms=200), in_flight(3, node_id=2, timeout_ms=5_000)
    )
    assert requests.next_deadline() == 200
    assert list(requests.timed_out_requests(199)) == []
    assert list(requests.timed_out_requests(200)) == [1]
    assert list(requests.timed_out_requests(5_000)) == [1, 2]


def test_throttled_time_does_not_count() -> None:
    requests = waiting(in_flight(1, timeout_ms=1_000), in_flight(2, node_id=2, timeout_ms=1_000))
    requests.extend_deadlines(1, 300)
    requests.extend_deadlines(1, 400)
    assert list(requests.timed_out_requests(1_000)) == [2]
    assert list(requests.timed_out_requests(1_700)) == [1, 2]


def test_without_requests_there_is_no_deadline() -> None:
    assert InFlightRequests(5).next_deadline() == math.inf
