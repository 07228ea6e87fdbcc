"""Requests that were given to a connection and are not answered yet: per node, in order.

A broker answers the requests of one connection in the order in which they came, so the oldest request is the one that
the next answer belongs to; its correlation id only confirms that. Time for which the broker has asked us to be quiet
does not count towards a request's time limit: it holds its answers back meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from spark_kafka_sink.client.request import ClientRequest, ClientResponse, Loss
from spark_kafka_sink.client.versions import api_versions_layout
from spark_kafka_sink.errors import DecodeError, IllegalStateError
from spark_kafka_sink.protocol.headers import decode_response, peek_correlation_id
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import response_type


@dataclass(eq=False)
class InFlightRequest:
    request: ClientRequest
    version: int
    internal: bool
    """The client itself made the request, and takes its answer."""
    sent_ms: float
    written: bool = False
    """All of it has been given to the socket."""
    deadline_ms: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline_ms = self.sent_ms + self.request.timeout_ms

    def completed(self, message: Message | None, now: float) -> ClientResponse:
        """Answered; or written, where no answer is expected."""
        return ClientResponse(self.request, now, now - self.request.created_ms, self.version, message)

    def cancelled(self, loss: Loss, now: float) -> ClientResponse:
        """Lost with its connection."""
        return ClientResponse(
            self.request,
            now,
            now - self.request.created_ms,
            self.version,
            disconnected=True,
            timed_out=loss.timed_out,
            authentication_error=loss.authentication_error,
            reason=loss.reason,
        )

    def decode(self, frame: memoryview) -> Message:
        """Read the answer; DecodeError if it is none, or the answer to something else."""
        correlation_id, request = peek_correlation_id(frame), self.request
        if correlation_id != request.correlation_id:
            raise DecodeError(
                f"an answer to request {correlation_id}, where that to request {request.correlation_id} "
                f"({request.api_key.name}) was due"
            )
        layout = self.version
        if request.api_key is ApiKey.API_VERSIONS:
            layout = api_versions_layout(frame, layout)
        return decode_response(frame, response_type(request.api_key), layout)[1]


class InFlightRequests:
    """Sender thread only, except `count()` without a node, which any thread may read."""

    def __init__(self, per_node_max: int) -> None:
        self._per_node_max = per_node_max
        self._nodes: dict[int, deque[InFlightRequest]] = {}
        self._count = 0
        self._earliest_ms = math.inf  # no deadline is before; looked for anew when it has come

    def add(self, in_flight: InFlightRequest) -> None:
        self._nodes.setdefault(in_flight.request.node_id, deque()).append(in_flight)
        self._count += 1
        self._earliest_ms = min(self._earliest_ms, in_flight.deadline_ms)

    def can_send_more(self, node_id: int) -> bool:
        """A channel writes one request at a time: the newest must be written, and there must be room."""
        waiting = self._nodes.get(node_id)
        return not waiting or (waiting[-1].written and len(waiting) < self._per_node_max)

    def answered(self, node_id: int, frame: memoryview) -> tuple[InFlightRequest, Message]:
        """Take off the oldest, whose answer this must be. DecodeError, and nothing taken off, if it is not."""
        waiting = self._nodes.get(node_id)
        if not waiting:
            raise DecodeError("an answer, although nothing was asked")
        if not waiting[0].written:
            # To believe it would give the request's memory back while the socket is still reading from it.
            raise DecodeError(f"an answer to request {waiting[0].request.correlation_id} before it was written")
        message = waiting[0].decode(frame)
        self._count -= 1
        return waiting.popleft(), message

    def complete_last_sent(self, node_id: int) -> InFlightRequest:
        """Take off the newest, which needs no answer."""
        waiting = self._nodes.get(node_id)
        if not waiting:
            raise IllegalStateError(f"no request to node {node_id} is in flight")
        self._count -= 1
        return waiting.pop()

    def clear(self, node_id: int) -> list[InFlightRequest]:
        """All of a node's, oldest first; none is left."""
        cleared = list(self._nodes.pop(node_id, ()))
        self._count -= len(cleared)
        return cleared

    def count(self, node_id: int | None = None) -> int:
        return self._count if node_id is None else len(self._nodes.get(node_id, ()))

    def waiting_since_ms(self, node_id: int) -> float:
        """When the oldest was sent; inf if there is none."""
        waiting = self._nodes.get(node_id)
        return waiting[0].sent_ms if waiting else math.inf

    def throttled(self, node_id: int, throttle_ms: float) -> None:
        """All that wait for this node may take so much longer."""
        for in_flight in self._nodes.get(node_id, ()):
            in_flight.deadline_ms += throttle_ms

    def next_deadline(self) -> float:
        """No request times out before this. The one that set it may be answered by then, or have more time."""
        return self._earliest_ms

    def timed_out_requests(self, now: float) -> dict[int, ClientRequest]:
        """Return the oldest request of each node that has timed out. A request may have less time than those before it,
        so all are looked at."""
        self._earliest_ms = min(
            [one.deadline_ms for waiting in self._nodes.values() for one in waiting if one.deadline_ms > now],
            default=math.inf,
        )
        timed_out = {
            node_id: next((one.request for one in waiting if one.deadline_ms <= now), None)
            for node_id, waiting in self._nodes.items()
        }
        return {node_id: request for node_id, request in timed_out.items() if request is not None}
