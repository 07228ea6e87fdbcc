"""ClusterRequests: sends requests for producer ids, transactions and their descriptions on the sender thread.

The engine in requests/pending.py routes and retries the requests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import KafkaSinkError, copy_error
from spark_kafka_sink.requests.pending import Call, PendingRequests
from spark_kafka_sink.requests.polled import PolledRequests
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.verdicts import Verdict


class BlockingCall(Call[ResponseT]):
    """A call that a caller's thread waits for. `end_event` is set once the call's results are final."""

    def __init__(self, requests: Iterable[Request[ResponseT]]) -> None:
        super().__init__(requests)
        self.end_event = threading.Event()

    def handle_result(self, request: Request[ResponseT], key: str, response: ResponseT, now_ms: float) -> None:
        super().handle_result(request, key, response, now_ms)
        if self.is_done:
            self.end_event.set()

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        self.end(error)

    def end(self, error: KafkaSinkError) -> None:
        """End the call with an error. Do nothing if the call has already ended."""
        if not self.end_event.is_set():
            # The error is set before the event, because the waiting thread reads it as soon as the event is set.
            self.error = error
            self.end_event.set()


class ClusterRequests(PolledRequests):
    """A producer's pending requests for producer ids, transactions and transaction descriptions.

    PendingRequests tracks the requests, and PolledRequests sends them. This class adds calls that other threads submit.

    `submit`, `cancel` and `fail` are thread-safe. All other methods must be called by the sender thread.
    """

    def __init__(self, client: NetworkClient, metadata: Metadata, backoff: ExponentialBackoff) -> None:
        super().__init__(client, PendingRequests(Routing(metadata, client.least_loaded_node), backoff.compute_delay_ms))
        self._lock = threading.Lock()
        self._awaited_calls: set[BlockingCall[Any]] = set()  # from `submit` to `cancel`; guarded by _lock
        self._tracked_calls: set[BlockingCall[Any]] = set()  # calls in the pending requests; sender thread only
        self._error: KafkaSinkError | None = None  # guarded by _lock

    # --- any thread

    def submit(self, call: BlockingCall[Any]) -> None:
        """Add a call. The caller must then wake the sender. Raise the error passed to `fail`, if any."""
        with self._lock:
            if self._error is not None:
                raise copy_error(self._error)
            self._awaited_calls.add(call)

    def cancel(self, call: BlockingCall[Any]) -> None:
        """Forget a call. Every caller must do this when it stops waiting, even if the call has ended."""
        with self._lock:
            self._awaited_calls.discard(call)

    def fail(self, error: KafkaSinkError) -> None:
        """End all blocking calls with an error, and make `submit` raise it from now on. The first error is kept."""
        with self._lock:
            self._error = self._error or error
            for call in self._awaited_calls:
                call.end(self._error)

    # --- sender thread

    def send_due(self, now_ms: float) -> float:
        self._update_pending_calls()
        return super().send_due(now_ms)

    def _update_pending_calls(self) -> None:
        """Add new calls to the pending requests, and remove calls that have ended or were cancelled."""
        with self._lock:
            open_calls = {call for call in self._awaited_calls if not call.end_event.is_set()}
        for call in self._tracked_calls - open_calls:
            self._pending.remove(call)
        for call in open_calls - self._tracked_calls:
            self._pending.add(call)
        self._tracked_calls = open_calls
