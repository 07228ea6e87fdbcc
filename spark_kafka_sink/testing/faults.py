"""Named methods for common faults, for testing jobs.

    broker.faults.produce_fails_once("NOT_LEADER_OR_FOLLOWER")
    broker.faults.on(topic="orders", partition=0).produce_fails("NOT_ENOUGH_REPLICAS", times=3)
    with broker.faults.slow(50, 200):
        ...

Each method adds a rule and returns it. `rule.affected_count` is the number of requests that the rule has affected. Call
`rule.remove()` or use a `with` block to end the rule. With `times=None`, the rule affects every request until it ends.
For other kinds of faults, see `help(broker.control)`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_kafka_sink.broker.control import Control, FaultBuilder
from spark_kafka_sink.broker.fault_rules import FaultRule

_PRODUCE = "PRODUCE"


@dataclass(frozen=True)
class Faults:
    """Injects faults into produce requests for all topics and nodes, unless `on` selects other requests."""

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
        """Select the requests that the fault affects: `broker.faults.on(topic="orders", nth=2).loses_responses()`.

        - `request`: Kafka's name of the API (PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN, ...), or None for all
        - `topic`, `node`: only requests for this topic, or to this node
        - `partition`: a partition of `topic`; requires `topic`
        - `nth`: the first selected request that the fault affects, counted from 1
        """
        return replace(self, _request=request, _topic=topic, _partition=partition, _node=node, _nth=nth)

    def produce_fails_once(self, error: str) -> FaultRule:
        """Respond to one produce request with an error and store nothing. `error` is the name that Kafka uses."""
        return self.produce_fails(error)

    def produce_fails(self, error: str, *, times: int | None = 1, stored: bool = False) -> FaultRule:
        """Respond to produce requests with an error. If `stored` is set, the records are stored first."""
        return self._when(times).fail(error, execute_first=stored)

    def slow(self, ms: float, at_most_ms: float | None = None) -> FaultRule:
        """Delay each response by `ms`, or by a random time between `ms` and `at_most_ms`."""
        return self._when(times=None).delay(ms, at_most_ms)

    def throttles(self, ms: int) -> FaultRule:
        """Set a throttle time in each response, as a broker does when a quota is exceeded."""
        return self._when(times=None).throttle(ms)

    def drops_connections(self, times: int | None = 1) -> FaultRule:
        """Close the connection without executing the request."""
        return self._when(times).drop()

    def loses_responses(self, times: int | None = 1) -> FaultRule:
        """Execute the request, but close the connection instead of responding."""
        return self._when(times).drop(execute_first=True)

    def never_responds(self, times: int | None = 1) -> FaultRule:
        """Keep the connection open, but neither execute the request nor respond."""
        return self._when(times).never_respond()

    def garbles_responses(self, times: int | None = 1) -> FaultRule:
        """Send bytes that are not Kafka's protocol, like a proxy that speaks HTTP."""
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
