"""Fault injection and administration of the embedded broker, for tests.

`when(...)` selects requests. A method of its result injects the fault:

    control.when("PRODUCE", topic="t", nth=2).fail("NOT_LEADER_OR_FOLLOWER")
    control.when("PRODUCE", node=1).drop(execute_first=True)      # the records are stored, the response is lost
    control.when("PRODUCE", times=None, probability=0.1).delay(0, 50)

APIs and errors may be given by their Kafka name or number. These are the faults:

    fail(error)               respond with an error; the request is not executed
    drop()                    close the connection instead of responding; the request is not executed
    never_respond()           keep the connection open and never respond; the request is not executed
    delay(ms) delay(a, b)     execute the request, and delay the response by `ms`, or by a random time from a to b
    cut(at=0.5)               close the connection in the middle of the response
    garbage(data)             send these bytes instead of the response
    announce_length(n)        send a frame length of n and nothing else
    wrong_correlation_id()    respond with a correlation id that does not match the request
    throttle(ms)              respond with a throttle time

With `execute_first=True`, `fail`, `drop` and `never_respond` execute the request before the fault. With
`execute_first=False`, `delay` delays the execution instead of the response.

`nth=2` skips the first matching request. `times=3` affects the next three, and `times=None` all that follow. With
`probability=0.1`, each matching request has a 10% chance of being affected, and only affected ones count towards
`times`.

Each fault method returns the rule that it added: `rule.affected_count` is the number of requests affected so far, and
`rule.remove()` ends it. `clear()` removes all rules.

These methods change the cluster: move_leader, move_coordinator, stop_node, start_node, refuse_connections,
accept_connections, shrink_in_sync, restore_in_sync, create_topic, delete_topic, add_partitions, hide_topic, show_topic,
delete_records, forget_producers.

Random choices are seeded, so the same requests in the same order meet the same faults.
"""

from __future__ import annotations

import difflib
import struct
import threading
from collections.abc import Callable, Mapping
from random import Random

from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.fault_rules import (
    FaultEffects,
    FaultRule,
    InjectedError,
    RequestFilter,
    ResponseFault,
    TopicPartitions,
)
from spark_kafka_sink.broker.handlers import list_handled_api_keys
from spark_kafka_sink.protocol.error_codes import ERROR_CODES
from spark_kafka_sink.protocol.message import ApiKey, Message

HTTP_RESPONSE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


class Control:
    """Injects faults and changes the cluster. Thread-safe: `_lock` guards the rules, and the cluster guards itself."""

    def __init__(self, cluster: EmbeddedCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self._rules: list[FaultRule] = []
        self._lock = threading.Lock()

    # --- fault rules

    def when(  # noqa: PLR0913 - one keyword for each condition
        self,
        api: ApiKey | str | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        client_id: str | None = None,
        matches: Callable[[Message], bool] | None = None,
        nth: int = 1,
        times: int | None = 1,
        probability: float = 1.0,
    ) -> FaultBuilder:
        """Select the requests that a fault affects.

        A condition of None accepts every request. `matches` is called with each request that meets the other
        conditions. It must return quickly, because other requests to the broker wait for it.
        """
        if partition is not None and topic is None:
            raise ValueError("partition requires topic")
        if node is not None:
            # Raises KeyError for an unknown node, because a rule for it would never match a request.
            self._cluster.node(node)
        if isinstance(api, str):
            handled_apis = {key.name: int(key) for key in list_handled_api_keys()}
            api = ApiKey(_resolve_number(api, "request", handled_apis))
        request_filter = RequestFilter(api, node, topic, partition, client_id, matches)
        return FaultBuilder(self, request_filter, nth, times, probability)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def add(self, rule: FaultRule) -> FaultRule:
        with self._lock:
            self._rules.append(rule)
        return rule

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def collect_effects(
        self, node: int, request: Message, client_id: str | None, topic_partitions: TopicPartitions
    ) -> FaultEffects:
        """Count a request in each rule that accepts it, and return the effects of the rules that affect it.

        Filters run without the lock, so that a blocking filter does not delay requests on other connections.
        """
        effects = FaultEffects()
        with self._lock:
            rules = list(self._rules)
        for rule in rules:
            if rule.accepts(node, request, client_id, topic_partitions):
                with self._lock:
                    rule.apply_to(effects, self._random)
        return effects

    # --- changes of the cluster

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make a node the leader of a partition, with a new leader epoch."""
        self._cluster.move_leader(topic, partition, node)

    def move_coordinator(self, key: str, node: int) -> None:
        """Make a node the coordinator of a transactional id or group."""
        self._cluster.move_coordinator(key, node)

    def stop_node(self, node: int) -> None:
        """Close the node's connections and refuse new ones. Other running nodes become leaders of its partitions."""
        self._cluster.stop_node(node)

    def start_node(self, node: int) -> None:
        """Start a stopped node on its previous port. It becomes the leader of all partitions without one."""
        self._cluster.start_node(node)

    def refuse_connections(self, node: int) -> None:
        """Refuse new connections to a node. Open connections keep working."""
        self._cluster.listeners.refuse_connections(self._cluster.node(node).id)

    def accept_connections(self, node: int) -> None:
        """Accept new connections to a node again."""
        self._cluster.listeners.accept_connections(self._cluster.node(node).id)

    def shrink_in_sync(self, topic: str, to: int = 1) -> None:
        """Limit the number of in-sync replicas of a topic's partitions to `to`.

        Writes with acks=all fail with NOT_ENOUGH_REPLICAS if `to` is less than the topic's `min.insync.replicas`, which
        counts as at most the number of nodes.
        """
        self._cluster.limit_in_sync_replicas(topic, to)

    def restore_in_sync(self, topic: str) -> None:
        """Remove the limit set by `shrink_in_sync`."""
        self._cluster.limit_in_sync_replicas(topic, limit=None)

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self._cluster.create_topic(topic, partitions, config)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic. A new topic of the same name gets a new id and has no records and no group offsets."""
        self._cluster.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        """Increase a topic's partition count to `total`."""
        self._cluster.add_partitions(topic, total)

    def hide_topic(self, topic: str) -> None:
        """Hide a topic from Metadata and DescribeConfigs until `show_topic` is called. Other requests still find it."""
        self._cluster.topic(topic).is_hidden = True

    def show_topic(self, topic: str) -> None:
        self._cluster.topic(topic).is_hidden = False

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Delete the records before an offset, as retention does. The broker does not forget their producers."""
        self._cluster.log(topic, partition).delete_records(before_offset)

    def forget_producers(self, topic: str, partition: int) -> None:
        """Forget producers without an open transaction, as after producer.id.expiration.ms. Their records remain."""
        self._cluster.log(topic, partition).forget_producers()


class FaultBuilder:
    """Adds fault rules for the requests that `Control.when` has selected.

    The module docstring lists the faults, and explains `nth`, `times` and `probability`.
    """

    def __init__(
        self, control: Control, request_filter: RequestFilter, nth: int, times: int | None, probability: float
    ) -> None:
        self._control = control
        self._filter = request_filter
        self._nth = nth
        self._times = times
        self._probability = probability

    def fail(self, error: int | str, *, execute_first: bool = False) -> FaultRule:
        """Respond with this error. The request is executed only if `execute_first` is set.

        In a request for several topics or partitions, only those that `when` selects fail.
        """
        codes_by_name = {row.name: row.code for row in ERROR_CODES.values()}
        code = _resolve_number(error, "error", codes_by_name)
        injected_error = InjectedError(code, self._filter.topic, self._filter.partition, execute_first)
        return self._add_rule(lambda effects, _: effects.errors.append(injected_error))

    def delay(self, ms: float, at_most_ms: float | None = None, *, execute_first: bool = True) -> FaultRule:
        """Delay the response by `ms`, or by a random time from `ms` to `at_most_ms`.

        If `execute_first` is False, the request is executed after the delay instead of before it.
        """

        def add_delay(effects: FaultEffects, random: Random) -> None:
            delay_ms = ms if at_most_ms is None else random.uniform(ms, at_most_ms)
            if execute_first:
                effects.delay_after_ms = delay_ms
            else:
                effects.delay_before_ms = delay_ms

        return self._add_rule(add_delay)

    def drop(self, *, execute_first: bool = False) -> FaultRule:
        """Close the connection instead of responding. The request is executed only if `execute_first` is set."""
        return self._add_response_fault(ResponseFault.DROP, should_execute=execute_first)

    def cut(self, at: float = 0.5) -> FaultRule:
        """Send the fraction `at` of the response, and then close the connection."""

        def add_cut(effects: FaultEffects, _: Random) -> None:
            effects.response_fault, effects.cut_fraction = ResponseFault.CUT, at

        return self._add_rule(add_cut)

    def garbage(self, data: bytes = HTTP_RESPONSE, *, close: bool = False) -> FaultRule:
        """Send `data` instead of the response. If `close` is set, close the connection afterwards."""

        def add_raw_bytes(effects: FaultEffects, _: Random) -> None:
            effects.response_fault = ResponseFault.RAW_BYTES
            effects.raw_bytes, effects.should_close_after_raw_bytes = data, close

        return self._add_rule(add_raw_bytes)

    def announce_length(self, length: int = 2**31 - 1) -> FaultRule:
        """Send this frame length and nothing else."""
        return self.garbage(struct.pack(">i", length))

    def wrong_correlation_id(self) -> FaultRule:
        """Respond with a correlation id one higher than the request's."""
        return self._add_response_fault(ResponseFault.WRONG_CORRELATION_ID, should_execute=True)

    def never_respond(self, *, execute_first: bool = False) -> FaultRule:
        """Keep the connection open and never respond. The request is executed only if `execute_first` is set."""
        return self._add_response_fault(ResponseFault.NEVER, should_execute=execute_first)

    def throttle(self, ms: int) -> FaultRule:
        """Respond with this throttle time, if the API has one."""

        def add_throttle(effects: FaultEffects, _: Random) -> None:
            effects.throttle_ms = ms

        return self._add_rule(add_throttle)

    def _add_response_fault(self, fault: ResponseFault, *, should_execute: bool) -> FaultRule:
        def add_response_fault(effects: FaultEffects, _: Random) -> None:
            effects.response_fault, effects.should_execute = fault, should_execute

        return self._add_rule(add_response_fault)

    def _add_rule(self, add_fault: Callable[[FaultEffects, Random], None]) -> FaultRule:
        return self._control.add(FaultRule(self._filter, self._nth, self._times, self._probability, add_fault))


def _resolve_number(name_or_number: int | str, kind: str, numbers_by_name: Mapping[str, int]) -> int:
    """Return the number for one of Kafka's names, or a number unchanged. Raise ValueError for an unknown name.

    `kind`: "request" or "error", for the error message.
    """
    if isinstance(name_or_number, int):
        return name_or_number
    name = name_or_number
    if name not in numbers_by_name:
        suggestions = difflib.get_close_matches(name.upper(), numbers_by_name, n=1)
        suggestion = f" Did you mean {suggestions[0]}?" if suggestions else ""
        raise ValueError(f"The embedded broker has no {kind} named {name!r}.{suggestion}")
    return numbers_by_name[name]
