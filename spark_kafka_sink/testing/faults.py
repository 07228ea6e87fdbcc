"""Faults by name: what a test of a job says to see what the job does then.

    broker.faults.produce_fails_once("NOT_LEADER_OR_FOLLOWER")
    broker.faults.on(topic="orders", partition=0).produce_fails("NOT_ENOUGH_REPLICAS", times=3)
    with broker.faults.slow(50, 200):
        ...

Each call makes a rule, and returns it: `rule.struck` says how often it has struck, `rule.remove()` or the end of a
`with` ends it. `times=None` is each time, until then. Faults of a kind that is not here: `help(broker.control)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_kafka_sink.broker.control import Control, FaultBuilder
from spark_kafka_sink.broker.fault_rules import FaultRule

_PRODUCE = "PRODUCE"


@dataclass(frozen=True)
class Faults:
    """The faults strike requests to write, of all topics and nodes, if `on` does not say otherwise."""

    _control: Control
    _request: str | None = _PRODUCE
    _topic: str | None = None
    _partition: int | None = None
    _node: int | None = None
    _nth: int = 1

    def on(
        self,
        *,
        request: str | None = _PRODUCE,
        topic: str | None = None,
        partition: int | None = None,
        node: int | None = None,
        nth: int = 1,
    ) -> Faults:
        """Where the fault strikes: `broker.faults.on(topic="orders", nth=2).loses_answers()`.

        request    by Kafka's name (PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN, ...), or None for all requests
        partition  of the topic, which must be named, too
        nth        begins with the nth request that fits
        """
        return replace(self, _request=request, _topic=topic, _partition=partition, _node=node, _nth=nth)

    def produce_fails_once(self, error: str) -> FaultRule:
        """The broker answers one write with this error, by Kafka's name, and stores nothing."""
        return self.produce_fails(error)

    def produce_fails(self, error: str, *, times: int | None = 1, stored: bool = False) -> FaultRule:
        """The broker answers writes with this error; with `stored` the records are in the topic all the same."""
        return self._when(times).fail(error, after_applying=stored)

    def slow(self, ms: float, at_most_ms: float | None = None) -> FaultRule:
        """Each answer comes this much later, or by a time between the two."""
        return self._when(None).delay(ms, at_most_ms)

    def throttles(self, ms: int) -> FaultRule:
        """Each answer asks the client to wait this long, as a quota does."""
        return self._when(None).throttle(ms)

    def drops_connections(self, times: int | None = 1) -> FaultRule:
        """The connection is closed, and nothing was done."""
        return self._when(times).drop()

    def loses_answers(self, times: int | None = 1) -> FaultRule:
        """The request is carried out, and the connection closed in place of an answer."""
        return self._when(times).drop(applied=True)

    def never_answers(self, times: int | None = 1) -> FaultRule:
        """The connection stays open, and silent."""
        return self._when(times).never_answer()

    def garbles_answers(self, times: int | None = 1) -> FaultRule:
        """Something comes that is not Kafka's protocol, as from a proxy that speaks HTTP."""
        return self._when(times).garbage()

    def clear(self) -> None:
        """Remove all rules."""
        self._control.clear()

    def _when(self, times: int | None) -> FaultBuilder:
        return self._control.when(
            api=self._request,
            topic=self._topic,
            partition=self._partition,
            node=self._node,
            nth=self._nth,
            times=times,
        )
