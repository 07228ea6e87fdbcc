"""CallExecutor: sends a producer's requests for producer ids and about transactions, on the sender thread.

Requests that belong together form a Call. The request engine in requests/engine.py routes and retries the requests of
all calls. It does so for each key of a request, such as a transactional id.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import KafkaSinkError, copy_error
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.requests.dispatcher import RequestDispatcher
from spark_kafka_sink.requests.engine import Call, RequestEngine
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.verdicts import Verdict


class BlockingCall(Call[ResponseT]):
    """A call that another thread waits for.

    `done_event` is set once the call has all its responses or has failed. `results` then returns the responses, or
    raises the error.
    """

    def __init__(self, requests: Iterable[Request[ResponseT]]) -> None:
        super().__init__(requests)
        self.done_event = OneTimeEvent()

    def handle_result(self, request: Request[ResponseT], key: str, response: ResponseT, now_ms: float) -> None:
        super().handle_result(request, key, response, now_ms)
        if self.is_done:
            self.done_event.set()

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        """Fail the whole call because one of its keys has failed."""
        self.fail(error)

    def fail(self, error: KafkaSinkError) -> None:
        """End the call with an error. Do nothing if the call has already ended."""
        if not self.done_event.is_set():
            # Set the error before the event, because the waiting thread reads the error as soon as the event is set.
            self.error = error
            self.done_event.set()


class CallExecutor(RequestDispatcher):
    """Executes, on the sender thread, a producer's calls: groups of requests for producer ids or about transactions.

    The sender adds its own calls with `add`. Other threads submit calls with `submit`, and wait for the results.

    `submit`, `cancel` and `fail` are thread-safe. Only the sender thread may call the other methods.
    """

    def __init__(self, client: NetworkClient, metadata: Metadata, backoff: ExponentialBackoff) -> None:
        super().__init__(client, RequestEngine(Routing(metadata, client.least_loaded_node), backoff.compute_delay_ms))
        self._lock = threading.Lock()
        self._awaited_calls: set[BlockingCall[Any]] = set()  # submitted and not yet cancelled; guarded by _lock
        self._added_calls: set[BlockingCall[Any]] = set()  # those that the engine already has; sender thread only
        self._error: KafkaSinkError | None = None  # set by `fail`; guarded by _lock

    # --- any thread

    def submit(self, call: BlockingCall[Any]) -> None:
        """Hand a call over to the sender thread. The caller must wake the sender, and call `cancel` in the end.

        If `fail` was called before, raise its error.
        """
        with self._lock:
            if self._error is not None:
                raise copy_error(self._error)
            self._awaited_calls.add(call)

    def cancel(self, call: BlockingCall[Any]) -> None:
        """Stop sending a call's requests. A caller that stops waiting must call this, even if the call is done."""
        with self._lock:
            self._awaited_calls.discard(call)

    def fail(self, error: KafkaSinkError) -> None:
        """Fail all submitted calls, and make `submit` raise the error from now on.

        If `fail` was called before, the earlier error is used.
        """
        with self._lock:
            self._error = self._error or error
            for call in self._awaited_calls:
                call.fail(self._error)

    # --- sender thread

    def send_due(self, now_ms: float) -> float:
        """Send all due requests, including those of newly submitted calls.

        Return the time until the next call of this method, in milliseconds.
        """
        self._pass_calls_to_engine()
        return super().send_due(now_ms)

    def _pass_calls_to_engine(self) -> None:
        """Add newly submitted calls to the request engine, and remove calls that are done or cancelled."""
        with self._lock:
            open_calls = {call for call in self._awaited_calls if not call.done_event.is_set()}
        for call in self._added_calls - open_calls:
            self._engine.remove(call)
        for call in open_calls - self._added_calls:
            self._engine.add(call)
        self._added_calls = open_calls
