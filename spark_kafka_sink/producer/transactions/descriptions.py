"""Descriptions: one call that asks what coordinators know of some transactional ids, over a producer's connections.

Coordinators that are not known are looked up in one request. Then each is asked about all its ids, all of them at the
same time. What was refused for now, or lost, is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.transactions.requests import DescribeTransactions, FindCoordinator
from spark_kafka_sink.producer.transactions.states import DESCRIBE, Operation
from spark_kafka_sink.producer.transactions.transaction_description import TransactionDescription
from spark_kafka_sink.producer.transactions.transaction_request import TRANSACTION, CoordinatorKey, TransactionRequest

_Request = TransactionRequest[Any]


class Descriptions:
    """Guarded by the lock of the TransactionManager. When the operation is done, `found` changes no more."""

    def __init__(self, transactional_ids: Iterable[str]) -> None:
        self.operation = Operation(DESCRIBE)
        self.found: dict[str, TransactionDescription] = {}
        self._due = dict.fromkeys(transactional_ids)
        self._offered: _Request | None = None
        self._under_way: set[_Request] = set()
        self._finish_if_complete()

    @property
    def pending(self) -> bool:
        return not self.operation.done.is_set()

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    def owns(self, request: _Request) -> bool:
        """Was the request sent for this call, and is it under way?"""
        return request in self._under_way

    def next_request(self, coordinators: Mapping[CoordinatorKey, Node]) -> _Request | None:
        """The next request. Others of this call may be under way."""
        self._offered = self._next(coordinators)
        return self._offered

    def _next(self, coordinators: Mapping[CoordinatorKey, Node]) -> _Request | None:
        asked = {name for request in self._under_way for name in request.ids}
        due = {name: coordinators.get(CoordinatorKey(TRANSACTION, name)) for name in self._due if name not in asked}
        unknown = [name for name, node in due.items() if node is None]
        if unknown:
            return FindCoordinator(unknown)
        node = next(iter(due.values()), None)
        return None if node is None else DescribeTransactions([name for name, its in due.items() if its == node])

    def sent(self, request: _Request) -> None:
        if request is self._offered:
            self._under_way.add(request)

    def ended(self, request: _Request) -> None:
        """It was answered, or lost."""
        self._under_way.discard(request)

    def described(self, found: Mapping[str, TransactionDescription | None]) -> None:
        """None: the coordinator does not know the id."""
        for name, description in found.items():
            if name in self._due:
                del self._due[name]
                if description is not None:
                    self.found[name] = description
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self._due:
            self.operation.finish()
