"""TransactionCall: adapts a TransactionManager to the request engine (requests/pending.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import ENDING_STATES
from spark_kafka_sink.requests.pending import Call
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.verdicts import Verdict


class TransactionCall(Call[Any]):
    """A call that stays open for the producer's lifetime.

    It sends one request at a time, derived from the manager's state at each attempt.

    `is_flushed`: returns whether all batches of the transaction are done and none of their requests is in flight.
    `on_change`: called after each request's final result, because the result may have changed the manager's state.

    Only the sender thread may call the methods.
    """

    def __init__(
        self, manager: TransactionManager, is_flushed: Callable[[], bool], on_change: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(())
        self._manager = manager
        self._is_flushed = is_flushed
        self._on_change = on_change
        self._request: TransactionRequest[Any]  # the request that is due

    def refresh(self, now_ms: float) -> None:
        """Make the manager's next request due, if there is one and none is in flight. A backoff remains in effect."""
        is_flushed = self._manager.state in ENDING_STATES and self._is_flushed()
        request = None if self.in_flight_keys else self._manager.next_request(now_ms, is_flushed=is_flushed)
        if request is None:
            self.due_ms_by_key = {}
            return
        self._request = request
        (key,) = request.keys
        self.due_ms_by_key = {key: self.due_ms_by_key.get(key, now_ms)}

    def request_for(self, key: str) -> Request[Any]:
        return self._request

    def try_begin_sending(self, request: Request[Any]) -> bool:
        return self._manager.try_begin_sending(cast("TransactionRequest[Any]", request))

    def handle_disconnect(self, request: Request[Any], keys: Sequence[str], *, was_sent: bool) -> None:
        self._manager.handle_disconnect(cast("TransactionRequest[Any]", request), was_sent=was_sent)

    def handle_response(self, request: Request[Any], response: Any) -> None:
        self._manager.handle_response(cast("TransactionRequest[Any]", request), response)

    def handle_result(self, request: Request[Any], key: str, response: Any, now_ms: float) -> None:
        self._manager.last_failure = None
        self._manager.handle_result(cast("TransactionRequest[Any]", request), response, now_ms)
        self._on_change()

    def handle_retry(self, failure: KafkaSinkError) -> None:
        self._manager.last_failure = failure

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        self._manager.handle_failure(self._request, error, verdict)
        self._on_change()
