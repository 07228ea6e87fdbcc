"""Broker and coordinator faults of the transaction explorer, drawn from the run's seed.

Responses are lost, late or truncated. Requests are rejected, get an error although they were executed, or are executed
after their connection has ended. Coordinators and leaders move, nodes stop and restart, and in some runs the cluster is
upgraded from transactions of version 1 to version 2.
"""

from __future__ import annotations

from random import Random

from spark_kafka_sink.broker.control import FaultBuilder
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.schedules import DOUBTS, REFUSALS, TOPIC
from tests.producer.transaction_lives import build_group_id
from tests.simulated_cluster import SimulatedCluster

_COORDINATOR_CODES = (
    codes.NOT_COORDINATOR,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
)
_TRANSACTION_CODES = (*_COORDINATOR_CODES, codes.CONCURRENT_TRANSACTIONS)
_REFUSALS: dict[ApiKey, tuple[int, ...]] = {
    ApiKey.FIND_COORDINATOR: (codes.COORDINATOR_NOT_AVAILABLE, codes.COORDINATOR_LOAD_IN_PROGRESS),
    ApiKey.INIT_PRODUCER_ID: _TRANSACTION_CODES,
    ApiKey.ADD_PARTITIONS_TO_TXN: (*_TRANSACTION_CODES, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.TRANSACTION_ABORTABLE),
    ApiKey.ADD_OFFSETS_TO_TXN: (*_TRANSACTION_CODES, codes.GROUP_AUTHORIZATION_FAILED),
    ApiKey.TXN_OFFSET_COMMIT: (*_COORDINATOR_CODES, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.ILLEGAL_GENERATION),
    ApiKey.END_TXN: _TRANSACTION_CODES,
    ApiKey.PRODUCE: (*REFUSALS, codes.CONCURRENT_TRANSACTIONS, codes.TRANSACTION_ABORTABLE, codes.INVALID_TXN_STATE),
}
_FENCING = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)
_APIS = (*_REFUSALS, ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.PRODUCE, ApiKey.PRODUCE)
_VERBS = ("refuse", "refuse", "doubt", "drop", "drop", "delay", "delay", "late", "late", "cut", "silent", "throttle")


class TransactionSchedule:
    def __init__(self, random: Random, cluster: SimulatedCluster, ids: tuple[str, ...], partitions: int) -> None:
        self._random = random
        self._cluster = cluster
        self._control = cluster.control
        self._ids = ids
        self._partitions = partitions
        self._is_healed = False
        self.fences_senders = False
        """Whether requests may be executed so late that their sender is fenced.

        Requests for a producer id fence the sender itself. Late requests that add partitions or offsets in version 1
        begin a transaction that the sender does not know.
        """

    def draw(self) -> None:
        self._random.choice((self._scatter, self._scatter, self._carry_out_late))()

    def _carry_out_late(self) -> None:
        """Execute requests that end a transaction or add to it after the producer has repeated them."""
        api = self._random.choice((ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE))
        self.fences_senders |= api in _FENCING
        rule = self._control.when(api=api, nth=self._random.randint(1, 3), times=self._random.randint(1, 3))
        rule.delay(400, 2000, execute_first=False)
        if self._random.random() < 0.5:
            self._add_rule()

    def _scatter(self) -> None:
        for _ in range(self._random.choice((0, 1, 2, 4, 8))):
            self._add_rule()
        for _ in range(self._random.choice((0, 0, 1, 3, 6))):
            self._cluster.system.after(self._random.uniform(0, 6000), self._pull_lever)

    def heal(self) -> None:
        """End all faults, including those that were scheduled for later."""
        self._is_healed = True
        self._control.clear()
        for node in self._cluster.core.nodes.values():
            if not node.is_running:
                self._control.start_node(node.id)
        self._control.show_topic(TOPIC)

    def _add_rule(self) -> None:
        random = self._random
        api = random.choice(_APIS)
        rule = self._control.when(
            api=api, nth=random.randint(1, 10), times=random.randint(1, 4), probability=random.uniform(0.3, 1)
        )
        self._strike(rule, api, random.choice(_VERBS))

    def _strike(self, rule: FaultBuilder, api: ApiKey, verb: str) -> None:
        random = self._random
        if verb == "refuse":
            rule.fail(random.choice(_REFUSALS[api]))
        elif verb == "doubt" and api is not ApiKey.FIND_COORDINATOR:
            doubts = DOUBTS if api is ApiKey.PRODUCE else (codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
            rule.fail(random.choice(doubts), execute_first=True)
        elif verb == "drop":
            rule.drop(execute_first=random.random() < 0.7)
        elif verb == "delay":
            rule.delay(0, random.choice((50, 900, 3000)))
        elif verb == "late":
            self.fences_senders |= api in _FENCING
            rule.delay(0, random.choice((50, 900, 3000)), execute_first=False)
        elif verb == "cut":
            rule.cut(at=random.random())
        elif verb == "silent":
            rule.never_respond(execute_first=random.random() < 0.7)
        else:
            rule.throttle(random.randint(1, 800))

    def _pull_lever(self) -> None:
        if self._is_healed:
            return
        levers = (self._move_coordinator, self._move_coordinator, self._move_leader, self._bounce, self._hide)
        self._random.choice((*levers, self._upgrade))()

    def _any_node(self) -> int:
        return self._random.choice(list(self._cluster.core.nodes))

    def _move_coordinator(self) -> None:
        self._control.move_coordinator(
            self._random.choice((*self._ids, *map(build_group_id, self._ids))), self._any_node()
        )

    def _move_leader(self) -> None:
        self._control.move_leader(TOPIC, self._random.randrange(self._partitions), self._any_node())

    def _bounce(self) -> None:
        node = self._any_node()
        self._control.stop_node(node)
        self._cluster.system.after(self._random.uniform(10, 1500), lambda: self._control.start_node(node))

    def _hide(self) -> None:
        self._control.hide_topic(TOPIC)
        self._cluster.system.after(self._random.uniform(10, 800), lambda: self._control.show_topic(TOPIC))

    def _upgrade(self) -> None:
        """Upgrade the cluster. Producers learn of the new version with their next connection."""
        self._cluster.core.coordinator.version = 2
