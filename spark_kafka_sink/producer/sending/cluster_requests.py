"""ClusterRequests: drives the engine of requests/pending.py on the sender's thread, over the producer's connections."""

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


class WaitedCall(Call[ResponseT]):
    """A call that a caller's thread waits for. `ended` is set when its results change no more."""

    def __init__(self, requests: Iterable[Request[ResponseT]]) -> None:
        super().__init__(requests)
        self.ended = threading.Event()

    def done(self, request: Request[ResponseT], key: str, response: ResponseT, now: float) -> None:
        super().done(request, key, response, now)
        if self.is_done:
            self.ended.set()

    def failed(self, key: str, error: KafkaSinkError, verdict: Verdict, now: float) -> None:
        self.end(error)

    def end(self, error: KafkaSinkError) -> None:
        """End the call with an error, unless it has ended."""
        if not self.ended.is_set():
            self.error = error
            self.ended.set()


class ClusterRequests(PolledRequests):
    """Sender thread only, except `submit`, `withdraw` and `fail`."""

    def __init__(self, client: NetworkClient, metadata: Metadata, backoff: ExponentialBackoff) -> None:
        super().__init__(client, PendingRequests(Routing(metadata, client.least_loaded_node), backoff.after))
        self._lock = threading.Lock()
        self._waited: set[WaitedCall[Any]] = set()  # guarded by _lock
        self._known: set[WaitedCall[Any]] = set()  # those of them that the engine has
        self._error: KafkaSinkError | None = None  # guarded by _lock

    # --- calls that other threads wait for

    def submit(self, call: WaitedCall[Any]) -> None:
        """Add a call; the sender must be woken afterwards. Raise the error after which no request is sent any more."""
        with self._lock:
            if self._error is not None:
                raise copy_error(self._error)
            self._waited.add(call)

    def withdraw(self, call: WaitedCall[Any]) -> None:
        """The caller waits no more."""
        with self._lock:
            self._waited.discard(call)

    def fail(self, error: KafkaSinkError) -> None:
        """End all calls that a thread waits for, and those that come later, with this error."""
        with self._lock:
            self._error = self._error or error
            for call in self._waited:
                call.end(self._error)

    # --- the sender's thread

    def send_due(self, now: float) -> float:
        self._take_waited()
        return super().send_due(now)

    def _take_waited(self) -> None:
        with self._lock:
            waited = {call for call in self._waited if not call.ended.is_set()}
        for call in self._known - waited:
            self._pending.remove(call)
        for call in waited - self._known:
            self._pending.add(call)
        self._known = waited
