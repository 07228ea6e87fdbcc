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
from tests.producer.schedules import IN_DOUBT_ERRORS, REJECTION_ERRORS, TOPIC
from tests.producer.transactional_writers import build_group_id
from tests.simulated_cluster import SimulatedCluster

_COORDINATOR_ERRORS = (
    codes.NOT_COORDINATOR,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
)
_TRANSACTION_ERRORS = (*_COORDINATOR_ERRORS, codes.CONCURRENT_TRANSACTIONS)
_REJECTION_ERRORS_BY_API: dict[ApiKey, tuple[int, ...]] = {
    ApiKey.FIND_COORDINATOR: (codes.COORDINATOR_NOT_AVAILABLE, codes.COORDINATOR_LOAD_IN_PROGRESS),
    ApiKey.INIT_PRODUCER_ID: _TRANSACTION_ERRORS,
    ApiKey.ADD_PARTITIONS_TO_TXN: (*_TRANSACTION_ERRORS, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.TRANSACTION_ABORTABLE),
    ApiKey.ADD_OFFSETS_TO_TXN: (*_TRANSACTION_ERRORS, codes.GROUP_AUTHORIZATION_FAILED),
    ApiKey.TXN_OFFSET_COMMIT: (*_COORDINATOR_ERRORS, codes.UNKNOWN_TOPIC_OR_PARTITION, codes.ILLEGAL_GENERATION),
    ApiKey.END_TXN: _TRANSACTION_ERRORS,
    ApiKey.PRODUCE: (
        *REJECTION_ERRORS,
        codes.CONCURRENT_TRANSACTIONS,
        codes.TRANSACTION_ABORTABLE,
        codes.INVALID_TXN_STATE,
    ),
}
_FENCING_APIS = (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)
_APIS = (*_REJECTION_ERRORS_BY_API, ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.PRODUCE, ApiKey.PRODUCE)
_FAULTS = (
    "reject",
    "reject",
    "in_doubt",
    "drop",
    "drop",
    "delay",
    "delay",
    "late",
    "late",
    "cut",
    "unresponsive",
    "throttle",
)


class TransactionSchedule:
    def __init__(self, random: Random, cluster: SimulatedCluster, ids: tuple[str, ...], partitions: int) -> None:
        self._random = random
        self._cluster = cluster
        self._control = cluster.control
        self._ids = ids
        self._partitions = partitions
        self._has_removed_faults = False
        self.fences_senders = False
        """Whether requests may be executed so late that their sender is fenced.

        Requests for a producer id fence the sender itself. Late requests that add partitions or offsets in version 1
        begin a transaction that the sender does not know.
        """

    def draw(self) -> None:
        self._random.choice((self._add_random_faults, self._add_random_faults, self._execute_requests_late))()

    def _execute_requests_late(self) -> None:
        """Execute requests that end a transaction or add to it after the producer has repeated them."""
        api = self._random.choice((ApiKey.END_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.PRODUCE))
        self.fences_senders |= api in _FENCING_APIS
        rule = self._control.when(api=api, nth=self._random.randint(1, 3), times=self._random.randint(1, 3))
        rule.delay(400, 2000, execute_first=False)
        if self._random.random() < 0.5:
            self._add_rule()

    def _add_random_faults(self) -> None:
        for _ in range(self._random.choice((0, 1, 2, 4, 8))):
            self._add_rule()
        for _ in range(self._random.choice((0, 0, 1, 3, 6))):
            self._cluster.system.after(self._random.uniform(0, 6000), self._change_cluster)

    def remove_faults(self) -> None:
        """End all faults, including those that were scheduled for later."""
        self._has_removed_faults = True
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
        self._add_fault(rule, api, random.choice(_FAULTS))

    def _add_fault(self, rule: FaultBuilder, api: ApiKey, fault: str) -> None:
        random = self._random
        if fault == "reject":
            rule.fail(random.choice(_REJECTION_ERRORS_BY_API[api]))
        elif fault == "in_doubt" and api is not ApiKey.FIND_COORDINATOR:
            in_doubt_errors = (
                IN_DOUBT_ERRORS if api is ApiKey.PRODUCE else (codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
            )
            rule.fail(random.choice(in_doubt_errors), execute_first=True)
        elif fault == "drop":
            rule.drop(execute_first=random.random() < 0.7)
        elif fault == "delay":
            rule.delay(0, random.choice((50, 900, 3000)))
        elif fault == "late":
            self.fences_senders |= api in _FENCING_APIS
            rule.delay(0, random.choice((50, 900, 3000)), execute_first=False)
        elif fault == "cut":
            rule.cut(at=random.random())
        elif fault == "unresponsive":
            rule.never_respond(execute_first=random.random() < 0.7)
        else:
            rule.throttle(random.randint(1, 800))

    def _change_cluster(self) -> None:
        if self._has_removed_faults:
            return
        changes = (
            self._move_coordinator,
            self._move_coordinator,
            self._move_leader,
            self._restart_random_node,
            self._hide_topic,
        )
        self._random.choice((*changes, self._upgrade))()

    def _choose_node(self) -> int:
        return self._random.choice(list(self._cluster.core.nodes))

    def _move_coordinator(self) -> None:
        self._control.move_coordinator(
            self._random.choice((*self._ids, *map(build_group_id, self._ids))), self._choose_node()
        )

    def _move_leader(self) -> None:
        self._control.move_leader(TOPIC, self._random.randrange(self._partitions), self._choose_node())

    def _restart_random_node(self) -> None:
        node = self._choose_node()
        self._control.stop_node(node)
        self._cluster.system.after(self._random.uniform(10, 1500), lambda: self._control.start_node(node))

    def _hide_topic(self) -> None:
        self._control.hide_topic(TOPIC)
        self._cluster.system.after(self._random.uniform(10, 800), lambda: self._control.show_topic(TOPIC))

    def _upgrade(self) -> None:
        """Upgrade the cluster. Producers learn of the new version with their next connection."""
        self._cluster.core.coordinator.version = 2
