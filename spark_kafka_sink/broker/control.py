"""Faults on demand: what a test says to make the embedded broker misbehave.

Rules for requests. `when(...)` says which, the verb after it says what happens:

    control.when("PRODUCE", topic="t", nth=2).fail("NOT_LEADER_OR_FOLLOWER")
    control.when("PRODUCE", node=1).drop(applied=True)            # stored, but the answer is lost
    control.when("PRODUCE", times=None, probability=0.1).delay(0, 50)

Requests and errors have Kafka's names or numbers. The verbs:

    fail(error)               answer with an error; `after_applying=True`: carried out nevertheless
    delay(ms) delay(a, b)     answer late, by a time between a and b; `before_applying=True`: carry out late, too
    drop()                    close the connection in place of an answer; `applied=True`: after carrying out
    cut(at=0.5)               close it in the middle of the answer
    garbage(data)             send these bytes in place of the answer
    announce_length(n)        send a frame length of n and nothing else
    wrong_correlation_id()    answer under another id
    never_answer()            keep the connection open and silent; `applied=True`: after carrying out
    throttle(ms)              answer with a throttle time

`nth=2` strikes the second request that fits, `times=3` three in a row from there, `times=None` all. Each verb returns
the rule: `rule.struck`, `rule.remove()`. `clear()` removes all rules.

Levers of the cluster: move_leader, move_coordinator, stop_node, start_node, refuse_connections, accept_connections,
shrink_in_sync, restore_in_sync, create_topic, delete_topic, add_partitions, hide_topic, show_topic, delete_records,
forget_producers.

What is left to chance comes from a Random with a seed: the same requests in the same order meet the same faults.
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
    RequestPartitions,
    ResponseFault,
)
from spark_kafka_sink.broker.handlers import handled_api_keys
from spark_kafka_sink.protocol.error_codes import ERROR_CODES
from spark_kafka_sink.protocol.message import ApiKey, Message

HTTP_ANSWER = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


class Control:
    """Thread-safe: rules under a lock of their own, levers under the cluster's."""

    def __init__(self, cluster: EmbeddedCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self._rules: list[FaultRule] = []
        self._lock = threading.Lock()

    # --- rules

    def when(  # noqa: PLR0913 - each thing that a rule can look at, by its name
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
        """`matches` looks at a request and decides at once: other requests of the broker wait meanwhile."""
        if partition is not None and topic is None:
            raise ValueError("a rule for a partition needs its topic")
        if node is not None:
            self._cluster.node(node)  # a rule for a node that does not exist would never strike
        if isinstance(api, str):
            api = ApiKey(_number_of(api, "request", {key.name: key for key in handled_api_keys()}))
        return FaultBuilder(
            self, RequestFilter(api, node, topic, partition, client_id, matches), nth, times, probability
        )

    def clear(self) -> None:
        with self._lock:
            self._rules.clear()

    def add(self, rule: FaultRule) -> FaultRule:
        with self._lock:
            self._rules.append(rule)
        return rule

    @property
    def has_rules(self) -> bool:
        return bool(self._rules)

    def effects(self, node: int, request: Message, client_id: str | None, touched: RequestPartitions) -> FaultEffects:
        """What is to be done to a request that came in. Counts it."""
        effects = FaultEffects()
        with self._lock:
            for rule in self._rules:
                rule.consider(node, request, client_id, touched, effects, self._random)
        return effects

    # --- levers

    def move_leader(self, topic: str, partition: int, node: int) -> None:
        self._cluster.move_leader(topic, partition, node)

    def move_coordinator(self, key: str, node: int) -> None:
        """From now on this node answers for a transactional id or group."""
        self._cluster.move_coordinator(key, node)

    def stop_node(self, node: int) -> None:
        """Cut the node's connections and refuse new ones; other nodes take its partitions over."""
        self._cluster.stop_node(node)

    def start_node(self, node: int) -> None:
        """Start a stopped node on its old port. Partitions keep their leaders; those without one get one again."""
        self._cluster.start_node(node)

    def refuse_connections(self, node: int) -> None:
        """Refuse new connections of the node; open ones go on."""
        self._cluster.ports.refuse_connections(self._cluster.node(node).id)

    def accept_connections(self, node: int) -> None:
        self._cluster.ports.accept_connections(self._cluster.node(node).id)

    def shrink_in_sync(self, topic: str, to: int = 1) -> None:
        """`to` replicas are in sync: with `min.insync.replicas` above it, acks=all fails with NOT_ENOUGH_REPLICAS."""
        self._cluster.limit_in_sync_replicas(topic, to)

    def restore_in_sync(self, topic: str) -> None:
        self._cluster.limit_in_sync_replicas(topic, None)

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self._cluster.create_topic(topic, partitions, config)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic. If it is created again it has another id and no records."""
        self._cluster.delete_topic(topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self._cluster.add_partitions(topic, total)

    def hide_topic(self, topic: str) -> None:
        """Metadata does not know it, until `show_topic`; everything else goes on."""
        self._cluster.topic(topic).hidden = True

    def show_topic(self, topic: str) -> None:
        self._cluster.topic(topic).hidden = False

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Retention: the records are gone, and what was known of producers that have no others."""
        self._cluster.log(topic, partition).delete_records(before_offset)

    def forget_producers(self, topic: str, partition: int) -> None:
        """producer.id.expiration.ms: sequences are forgotten, records stay."""
        self._cluster.log(topic, partition).forget_producers()


class FaultBuilder:
    """The requests of a `when(...)`; the verb makes the rule. The verbs are explained above."""

    def __init__(self, control: Control, where: RequestFilter, nth: int, times: int | None, probability: float) -> None:
        self._control = control
        self._where = where
        self._nth = nth
        self._times = times
        self._probability = probability

    def fail(self, error: int | str, *, after_applying: bool = False) -> FaultRule:
        code = _number_of(error, "error", {row.name: row.code for row in ERROR_CODES.values()})
        injected = InjectedError(code, self._where.topic, self._where.partition, after_applying)
        return self._rule(lambda effects, _: effects.errors.append(injected))

    def delay(self, ms: float, at_most_ms: float | None = None, *, before_applying: bool = False) -> FaultRule:
        def effect(effects: FaultEffects, random: Random) -> None:
            delay_ms = ms if at_most_ms is None else random.uniform(ms, at_most_ms)
            if before_applying:
                effects.delay_before_ms = delay_ms
            else:
                effects.delay_after_ms = delay_ms

        return self._rule(effect)

    def drop(self, *, applied: bool = False) -> FaultRule:
        return self._answer(ResponseFault.DROP, apply=applied)

    def cut(self, at: float = 0.5) -> FaultRule:
        def effect(effects: FaultEffects, _: Random) -> None:
            effects.answer, effects.cut_at = ResponseFault.CUT, at

        return self._rule(effect)

    def garbage(self, data: bytes = HTTP_ANSWER, *, close: bool = False) -> FaultRule:
        def effect(effects: FaultEffects, _: Random) -> None:
            effects.answer, effects.raw_bytes, effects.close_after_raw = ResponseFault.RAW, data, close

        return self._rule(effect)

    def announce_length(self, length: int = 2**31 - 1) -> FaultRule:
        return self.garbage(struct.pack(">i", length))

    def wrong_correlation_id(self) -> FaultRule:
        return self._answer(ResponseFault.WRONG_CORRELATION_ID, apply=True)

    def never_answer(self, *, applied: bool = False) -> FaultRule:
        return self._answer(ResponseFault.NEVER, apply=applied)

    def throttle(self, ms: int) -> FaultRule:
        def effect(effects: FaultEffects, _: Random) -> None:
            effects.throttle_ms = ms

        return self._rule(effect)

    def _answer(self, answer: ResponseFault, *, apply: bool) -> FaultRule:
        def effect(effects: FaultEffects, _: Random) -> None:
            effects.answer, effects.apply = answer, apply

        return self._rule(effect)

    def _rule(self, effect: Callable[[FaultEffects, Random], None]) -> FaultRule:
        return self._control.add(FaultRule(self._where, self._nth, self._times, self._probability, effect))


def _number_of(given: int | str, what: str, numbers: Mapping[str, int]) -> int:
    """The number that Kafka's name stands for. ValueError for a name that Kafka does not have."""
    if isinstance(given, int):
        return given
    if given not in numbers:
        near = difflib.get_close_matches(given.upper(), numbers, n=1)
        raise ValueError(f"{given!r} is not the name of a Kafka {what}" + (f": is {near[0]} meant?" if near else ""))
    return numbers[given]
