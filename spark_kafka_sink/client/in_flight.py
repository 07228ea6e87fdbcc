"""InFlightRequests: requests that have been sent but have no response yet, by node and in order.

A broker responds to a connection's requests in order, so the next response always belongs to the oldest request. The
correlation id only verifies this. Throttle time does not count towards a request's timeout, because a throttling broker
may delay its responses.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from spark_kafka_sink.client.client_request import ClientRequest, ClientResponse, ConnectionLoss
from spark_kafka_sink.client.versions import decode_api_versions_response
from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.protocol.headers import decode_response, peek_correlation_id
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_response_type


@dataclass(eq=False)
class InFlightRequest:
    """A request that has been passed to the Selector, and the time at which it times out."""

    request: ClientRequest
    version: int
    is_internal: bool
    """Whether NetworkClient itself created the request and handles its response."""
    sent_ms: float
    is_written: bool = False
    """Whether the socket has accepted all bytes of the request."""
    deadline_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline_ms = self.sent_ms + self.request.timeout_ms

    def build_response(self, message: Message | None, now_ms: float) -> ClientResponse:
        """Build the result for a response, or for a request that has been written and expects no response."""
        return ClientResponse(self.request, now_ms, now_ms - self.request.created_ms, self.version, message)

    def build_disconnect_response(self, loss: ConnectionLoss, now_ms: float) -> ClientResponse:
        """Build the result of a request whose connection was lost."""
        return ClientResponse(
            self.request,
            now_ms,
            now_ms - self.request.created_ms,
            self.version,
            disconnected=True,
            timed_out=loss.timed_out,
            authentication_error=loss.authentication_error,
            reason=loss.reason,
        )

    def decode(self, frame: memoryview) -> Message:
        """Decode the response. Raise DecodeError if the frame is invalid or belongs to a different request."""
        request = self.request
        correlation_id = peek_correlation_id(frame)
        if correlation_id != request.correlation_id:
            raise DecodeError(
                f"it is for request {correlation_id} instead of request {request.correlation_id} "
                f"({request.api_key.name})"
            )
        if request.api_key is ApiKey.API_VERSIONS:
            return decode_api_versions_response(frame, self.version)
        _correlation_id, message = decode_response(frame, load_response_type(request.api_key), self.version)
        return message


class InFlightRequests:
    """The requests to each node that have no response yet, oldest first.

    Only the sender thread may use this class, except that any thread may call `count()` without a node.
    """

    def __init__(self, max_per_node: int) -> None:
        self._max_per_node = max_per_node
        self._requests_by_node: dict[int, deque[InFlightRequest]] = {}
        self._count = 0
        self._next_deadline_check_ms = math.inf  # no request times out before this time

    def add(self, in_flight_request: InFlightRequest) -> None:
        self._requests_by_node.setdefault(in_flight_request.request.node_id, deque()).append(in_flight_request)
        self._count += 1
        self._next_deadline_check_ms = min(self._next_deadline_check_ms, in_flight_request.deadline_ms)

    def can_send_more(self, node_id: int) -> bool:
        """Return whether a further request may be sent to the node.

        The newest request must have been written, because a channel writes one request at a time. The node must also
        have fewer requests in flight than the limit.
        """
        requests = self._requests_by_node.get(node_id)
        return not requests or (requests[-1].is_written and len(requests) < self._max_per_node)

    def complete_next(self, node_id: int, frame: memoryview) -> tuple[InFlightRequest, Message]:
        """Remove the node's oldest request and return it with its decoded response.

        If the frame is not a valid response to that request, raise DecodeError and remove nothing.
        """
        requests = self._requests_by_node.get(node_id)
        if not requests:
            raise DecodeError("no request is in flight")
        if not requests[0].is_written:
            # Accepting the response would free the request's memory while the channel is still writing from it.
            correlation_id = requests[0].request.correlation_id
            raise DecodeError(f"it arrived before request {correlation_id} had been fully written")
        message = requests[0].decode(frame)
        self._count -= 1
        return requests.popleft(), message

    def complete_last_sent(self, node_id: int) -> InFlightRequest:
        """Remove and return the node's newest request. Call this for a written request that expects no response."""
        requests = self._requests_by_node.get(node_id)
        if not requests:
            raise IllegalStateError(f"no request to node {node_id} is in flight")
        self._count -= 1
        return requests.pop()

    def clear(self, node_id: int) -> list[InFlightRequest]:
        """Remove and return all requests to the node, oldest first."""
        requests = list(self._requests_by_node.pop(node_id, ()))
        self._count -= len(requests)
        return requests

    def count(self, node_id: int | None = None) -> int:
        """Return the number of requests in flight to the node, or to all nodes if `node_id` is None."""
        return self._count if node_id is None else len(self._requests_by_node.get(node_id, ()))

    def waiting_since_ms(self, node_id: int) -> float:
        """Return the time at which the node's oldest request was sent; inf if there is none."""
        requests = self._requests_by_node.get(node_id)
        return requests[0].sent_ms if requests else math.inf

    def extend_deadlines(self, node_id: int, throttle_ms: float) -> None:
        """Extend the deadlines of all requests to the node by a throttle time."""
        for in_flight_request in self._requests_by_node.get(node_id, ()):
            in_flight_request.deadline_ms += throttle_ms

    def next_deadline_check_ms(self) -> float:
        """Return the time before which no request times out; inf if no check is scheduled.

        It may be earlier than the earliest deadline, because it is not updated when requests complete or deadlines are
        extended.
        """
        return self._next_deadline_check_ms

    def collect_timed_out_requests(self, now_ms: float) -> dict[int, ClientRequest]:
        """Return the oldest timed-out request of each node, if any, and update the time of the next check.

        Requests have different timeouts, so a newer request may time out before an older one. The caller must remove
        the requests that have timed out, because later checks are scheduled only for the remaining ones.
        """
        timed_out_requests: dict[int, ClientRequest] = {}
        future_deadlines_ms: list[float] = []
        for node_id, requests in self._requests_by_node.items():
            for in_flight_request in requests:
                if in_flight_request.deadline_ms > now_ms:
                    future_deadlines_ms.append(in_flight_request.deadline_ms)
                else:
                    timed_out_requests.setdefault(node_id, in_flight_request.request)
        self._next_deadline_check_ms = min(future_deadlines_ms, default=math.inf)
        return timed_out_requests
