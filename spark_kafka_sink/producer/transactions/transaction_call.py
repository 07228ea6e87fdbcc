"""TransactionCall: connects a TransactionManager to the request engine.

The engine (requests/engine.py) gets requests from calls, and decides when each request is sent and retried. This call
gets its requests from the manager, and passes the results back to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import ENDING_STATES
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.verdicts import Verdict


class TransactionCall(Call[Any]):
    """The requests that a TransactionManager derives from its state.

    Unlike other calls, this one stays in the request engine for the producer's lifetime. It has at most one request at
    a time, and asks the manager for it again before each attempt to send it.

    Only the sender thread may call its methods.
    """

    def __init__(
        self,
        manager: TransactionManager,
        is_flushed: Callable[[], bool],
        on_result: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a call without requests.

        `is_flushed`: returns whether all batches of the transaction are done and have no request in flight.
        `on_result`: called each time after the final result of a request was handled, because the manager's state may
        have changed.
        """
        super().__init__(requests=())
        self._manager = manager
        self._is_flushed = is_flushed
        self._on_result = on_result
        self._request: TransactionRequest[Any] | None = None  # the request that was last scheduled

    def update_due_keys(self, now_ms: float) -> None:
        """Make the manager's next request due, unless a request is in flight.

        A request that is backing off keeps its due time.
        """
        is_flushed = self._manager.state in ENDING_STATES and self._is_flushed()
        request = None if self.in_flight_keys else self._manager.next_request(now_ms, is_flushed=is_flushed)
        if request is None:
            self.due_ms_by_key = {}
            return
        self._request = request
        (key,) = request.keys  # the only key of a TransactionRequest is that of its coordinator
        self.due_ms_by_key = {key: self.due_ms_by_key.get(key, now_ms)}

    def get_request(self, key: str) -> Request[Any]:
        """Return the request that is due. `key` is its only key."""
        return self._require_request()

    def try_begin_sending(self, request: Request[Any]) -> bool:
        return self._manager.try_begin_sending(cast("TransactionRequest[Any]", request))

    def handle_disconnect(self, request: Request[Any], keys: Sequence[str], *, was_sent: bool) -> None:
        self._manager.handle_disconnect(cast("TransactionRequest[Any]", request), was_sent=was_sent)

    def handle_response(self, request: Request[Any], response: Any) -> None:
        self._manager.handle_response(cast("TransactionRequest[Any]", request), response)

    def handle_result(self, request: Request[Any], key: str, response: Any, now_ms: float) -> None:
        self._manager.last_failure = None
        self._manager.handle_result(cast("TransactionRequest[Any]", request), response, now_ms)
        self._on_result()

    def handle_retry(self, failure: KafkaSinkError) -> None:
        self._manager.last_failure = failure

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        self._manager.handle_failure(self._require_request(), error, verdict)
        self._on_result()

    def _require_request(self) -> TransactionRequest[Any]:
        assert self._request is not None, "a key is due or in flight only after a request was scheduled"
        return self._request
