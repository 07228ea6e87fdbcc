"""Descriptions: calls that ask what coordinators know of some transactional ids, over a producer's connections.

    callers' threads    ask -> a DescribeCall to wait for; forget, when its time is up
    sender's thread     next_request -> sent -> answered | lost | cannot_be_sent

They change nothing, so they have nothing to do with the producer's own transaction: what is refused here fails a call,
never the producer, and requests of both are in flight at the same time. What they share is who coordinates what.

Coordinators that are not known are looked up in one request. Then each is asked about all ids of a call, all of them
at the same time. What was refused for now, or lost, is asked for again. An answer is for the call that asked: it may be
older than a later call.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import KafkaSinkError, fresh
from spark_kafka_sink.producer.transactions.coordinators import KnownCoordinators
from spark_kafka_sink.producer.transactions.request_pace import RequestPace
from spark_kafka_sink.producer.transactions.requests import DescribeTransactions, FindCoordinator
from spark_kafka_sink.producer.transactions.states import DESCRIBE, Operation
from spark_kafka_sink.producer.transactions.transaction_description import TransactionDescription
from spark_kafka_sink.producer.transactions.transaction_request import TRANSACTION, CoordinatorKey, TransactionRequest
from spark_kafka_sink.producer.transactions.verdicts import Judgement, Verdict

_Request = TransactionRequest[Any]


class DescribeCall:
    """Guarded by the lock of Descriptions. When the operation is done, `found` changes no more."""

    def __init__(self, transactional_ids: Iterable[str]) -> None:
        self.operation = Operation(DESCRIBE)
        self.found: dict[str, TransactionDescription] = {}
        self.due = dict.fromkeys(transactional_ids)

    def take(self, answered: Mapping[str, TransactionDescription | None]) -> None:
        """None: the coordinator does not know the id."""
        for name, description in answered.items():
            if name in self.due:
                del self.due[name]
                if description is not None:
                    self.found[name] = description
        if not self.due:
            self.operation.finish()


class Descriptions:
    """All fields are guarded by `_lock`; `trouble` is read without it. `known`: on the sender's thread only."""

    def __init__(self, backoff: ExponentialBackoff, known: KnownCoordinators) -> None:
        self._lock = threading.Lock()
        self._pace = RequestPace(backoff, known)
        self._calls: list[DescribeCall] = []
        self._offered: dict[_Request, DescribeCall] = {}  # the one request that may be sent now
        self._under_way: dict[_Request, DescribeCall] = {}
        self._error: KafkaSinkError | None = None

    @property
    def trouble(self) -> str:
        """Why the last request has failed; empty if it has not."""
        return self._pace.trouble

    # --- calls, from any thread

    def ask(self, transactional_ids: Iterable[str]) -> DescribeCall:
        with self._lock:
            if self._error is not None:
                raise fresh(self._error)
            call = DescribeCall(transactional_ids)
            call.take({})
            self._calls.append(call)
            return call

    def forget(self, call: DescribeCall) -> None:
        """It waits no more."""
        with self._lock:
            if call in self._calls:
                self._calls.remove(call)

    def fail(self, error: KafkaSinkError) -> None:
        """No call gets an answer any more."""
        with self._lock:
            self._error = error
            for call in self._calls:
                call.operation.finish(error)

    # --- the sender's thread

    def next_request(self, now: float, not_ready: Collection[Node | None] = ()) -> _Request | None:
        """`not_ready`: nodes that cannot be asked just now; None: no node can be asked for coordinators."""
        with self._lock:
            self._offered.clear()
            for request, call in () if self._pace.pauses(now) else self._due():
                if self._pace.node(request) not in not_ready:
                    self._offered[request] = call
                    return request
            return None

    def _due(self) -> Iterator[tuple[_Request, DescribeCall]]:
        for call in self._calls:
            if not call.operation.done.is_set():
                yield from ((request, call) for request in self._due_of(call))

    def _due_of(self, call: DescribeCall) -> Iterator[_Request]:
        """Others of this call may be under way."""
        asked = {name for request, its in self._under_way.items() if its is call for name in request.ids}
        due = {name: self._pace.known.get(CoordinatorKey(TRANSACTION, name)) for name in call.due if name not in asked}
        unknown = [name for name, node in due.items() if node is None]
        if unknown:
            yield FindCoordinator(unknown)
        for node in dict.fromkeys(node for node in due.values() if node is not None):
            yield DescribeTransactions([name for name, its in due.items() if its == node])

    def node_for(self, request: _Request) -> Node | None:
        """Which node to ask. None: any broker can answer."""
        with self._lock:
            return self._pace.node(request)

    def next_delay_ms(self, now: float) -> float:
        """How long until a pause is over."""
        with self._lock:
            return self._pace.pause_left_ms(now)

    def sent(self, request: _Request) -> None:
        with self._lock:
            self._under_way[request] = self._offered[request]

    def owns(self, request: _Request) -> bool:
        """Was it sent for one of these calls, and is it under way?"""
        with self._lock:
            return request in self._under_way

    def lost(self, request: _Request, now: float, why: str) -> None:
        """There was no answer, or the node cannot be asked at all."""
        with self._lock:
            self._under_way.pop(request, None)
            self._pace.lost(request, now, why)

    def cannot_be_sent(self, request: _Request, error: KafkaSinkError) -> None:
        """The node does not know the request."""
        with self._lock:
            self._offered[request].operation.finish(error)

    def answered(self, request: _Request, message: Any, now: float) -> None:
        with self._lock:
            call = self._under_way.pop(request)
            if isinstance(request, DescribeTransactions):
                call.take(request.found(message))
            elif isinstance(request, FindCoordinator):
                for name, node in request.found(message).items():
                    self._pace.known[CoordinatorKey(TRANSACTION, name)] = node
            self._judge(request, call, request.judged(message), now)

    def _judge(self, request: _Request, call: DescribeCall, judgement: Judgement, now: float) -> None:
        if judgement.verdict is Verdict.DONE:
            self._pace.succeeded(request)
        elif judgement.verdict in (Verdict.RETRY, Verdict.LOOK_UP):
            if judgement.verdict is Verdict.LOOK_UP:
                self._pace.forget(request)
            self._pace.pause(now, judgement.code)
        else:
            name = judgement.where or request.ids[0]
            call.operation.finish(request.refusal(name, judgement._replace(where="")))
