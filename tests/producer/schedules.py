"""Broker faults of the schedule explorer, drawn from the run's seed.

A schedule is drawn before the records are sent, as fault rules of the brokers and as events of the virtual clock.
`inject_idle_fault` draws the other faults, which happen only while no batch is in flight. Brokers forget a producer in
five ways:

    expired      The producer was idle for so long that its connections have ended, too (producer.id.expiration.ms).
    restarted    Its idle leader restarts without the producer state.
    retention    All its records are deleted, and its state expires.
    silently     All brokers lose the state, and the connections stay open. A broker that then rejects the first of two
                 requests accepts the second. The producer cannot detect this, so the order is not guaranteed
                 (`keeps_order`). All other guarantees hold.
    old records  The timestamps of its records are older than producer.id.expiration.ms, so brokers repeatedly forget
                 it, also while requests are in flight. They store a record twice if the response is lost
                 (`stores_once`). The order is kept.

Old brokers reject an unknown producer with UNKNOWN_PRODUCER_ID. Current brokers accept any sequence from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.records.header import parse_header
from tests.fake_system import WALL_MS
from tests.simulated_cluster import SimulatedCluster

TOPIC = "t"
REJECTION_ERRORS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.NOT_ENOUGH_REPLICAS,
    codes.LEADER_NOT_AVAILABLE,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.CORRUPT_MESSAGE,
    codes.KAFKA_STORAGE_ERROR,
    codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
    codes.UNKNOWN_PRODUCER_ID,
    codes.INVALID_RECORD,
    codes.MESSAGE_TOO_LARGE,
    codes.TOPIC_AUTHORIZATION_FAILED,
)
TRANSIENT_ERRORS = (codes.NOT_ENOUGH_REPLICAS, codes.NOT_LEADER_OR_FOLLOWER)
PERMANENT_ERRORS = (codes.INVALID_RECORD, codes.TOPIC_AUTHORIZATION_FAILED)
DAY_MS = 24 * 60 * 60 * 1000
IN_DOUBT_ERRORS = (codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Schedule:
    def __init__(
        self, random: Random, cluster: SimulatedCluster, partitions: int, fill_pipeline: Callable[[], None]
    ) -> None:
        """`fill_the_pipeline` sends more batches to partition 0 than may be in flight at once."""
        self.keeps_order = True
        self.stores_once = True
        self.timestamp_ms = WALL_MS
        """The timestamp of all records."""
        self.deleted_values: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
        """Values of each partition that were stored, and later deleted by retention."""
        self._random = random
        self._cluster = cluster
        self._control = cluster.control
        self._partitions = partitions
        self._fill_pipeline = fill_pipeline
        self._forget_actions: tuple[Callable[[], None], ...] = ()
        self._has_old_brokers = False

    def draw(self, *, idempotent: bool) -> None:
        general_schedules = (self._add_random_faults, self._add_random_faults, self._move_slow_leader)
        sequence_schedules = (self._reject_first_batch, self._store_with_error_then_reject, self._forget_producers)
        self._random.choice(general_schedules + sequence_schedules if idempotent else general_schedules)()

    def inject_idle_fault(self) -> None:
        """Draw a fault. Called when no batch is in flight."""
        if self._forget_actions and self._random.random() < 0.5:
            self._random.choice(self._forget_actions)()
            self._add_pipeline_faults()
            self._fill_pipeline()

    def remove_faults(self) -> None:
        self._control.clear()
        self._forget_actions = ()
        if self._has_old_brokers:
            self._reject_unknown_producers()

    # --- schedules

    def _add_random_faults(self) -> None:
        for _ in range(self._random.randint(0, 4)):
            self._add_rule()
        for _ in range(self._random.randint(0, 5)):
            self._cluster.system.after(self._random.uniform(0, 3000), self._change_cluster)

    def _reject_first_batch(self) -> None:
        """Reject the first batch of a pipeline. A broker without producer state would accept the batches after it."""
        rule = self._control.when(api=ApiKey.PRODUCE, times=self._random.randint(1, 2))
        rule.fail(self._random.choice(TRANSIENT_ERRORS))
        self._fill_pipeline()
        self._maybe_change_cluster()

    def _store_with_error_then_reject(self) -> None:
        """Store a batch in the middle of a pipeline but return an error, and reject a later batch permanently."""
        nth = self._random.randint(2, 6)
        self._control.when(api=ApiKey.PRODUCE, nth=nth).fail(self._random.choice(IN_DOUBT_ERRORS), execute_first=True)
        later = self._control.when(api=ApiKey.PRODUCE, nth=nth + self._random.randint(1, 2))
        later.fail(self._random.choice(PERMANENT_ERRORS))
        self._fill_pipeline()
        self._maybe_change_cluster()

    def _move_slow_leader(self) -> None:
        """Let the old leader handle a request slowly, while the partition moves to another leader."""
        slow = self._control.when(api=ApiKey.PRODUCE, nth=self._random.randint(1, 3), times=self._random.randint(3, 10))
        slow.delay(100, 250, execute_first=False)
        for _ in range(self._random.randint(1, 4)):
            self._cluster.system.after(self._random.uniform(50, 500), self._move_leader)
        self._fill_pipeline()

    def _forget_producers(self) -> None:
        self._has_old_brokers = self._random.random() < 0.4
        if self._has_old_brokers:
            self._reject_unknown_producers()
        if self._random.random() < 0.25:
            self._forget_actions = (self._forget_all_producers,)
            if self._random.random() < 0.5:
                self._forget_producers_repeatedly()
            else:
                self.keeps_order = self._has_old_brokers
        else:
            self._forget_actions = (self._expire_producers, self._restart_leader, self._delete_all_records)

    # --- brokers that forget

    def _reject_unknown_producers(self) -> None:
        for partition in range(self._partitions):
            is_unknown = partial(self._is_unknown, partition)
            rule = self._control.when(
                api=ApiKey.PRODUCE, topic=TOPIC, partition=partition, times=None, matches=is_unknown
            )
            rule.fail(codes.UNKNOWN_PRODUCER_ID)

    def _is_unknown(self, partition: int, message: Message) -> bool:
        """Return whether an old broker would reject the batch: its sequence is above 0, its producer unknown."""
        assert isinstance(message, ProduceRequest)
        for topic in message.topic_data:
            for data in topic.partition_data:
                if data.index == partition and isinstance(data.records, Buffer):
                    header = parse_header(data.records)
                    known = self._cluster.log(TOPIC, partition).find_producer_epoch(header.producer_id) >= 0
                    return header.base_sequence > 0 and not known
        return False

    def _forget_producers_repeatedly(self) -> None:
        self.timestamp_ms = WALL_MS - 2 * DAY_MS
        self.stores_once = False
        for _ in range(self._random.randint(5, 50)):
            self._cluster.system.after(self._random.uniform(0, 3000), self._forget_all_producers)

    def _forget_all_producers(self) -> None:
        for partition in range(self._partitions):
            self._cluster.log(TOPIC, partition).forget_producers()

    def _expire_producers(self) -> None:
        self._forget_all_producers()
        for node in self._cluster.core.nodes:
            self._cluster.close_connections(node)

    def _restart_leader(self) -> None:
        node = self._random.choice(list(self._cluster.core.nodes))
        for partition in self._cluster.core.topic(TOPIC).partitions:
            if partition.leader == node:
                partition.log.forget_producers()
        self._control.stop_node(node)
        if self._random.random() < 0.5:
            self._control.start_node(node)
        else:
            self._cluster.system.after(self._random.uniform(1, 500), lambda: self._control.start_node(node))

    def _delete_all_records(self) -> None:
        for partition in range(self._partitions):
            self.deleted_values[partition] += self._cluster.values(TOPIC, partition)
            self._control.delete_records(TOPIC, partition, self._cluster.log(TOPIC, partition).log_end_offset)
            self._control.forget_producers(TOPIC, partition)
        for node in self._cluster.core.nodes:
            self._cluster.close_connections(node)

    def _add_pipeline_faults(self) -> None:
        random = self._random
        if random.random() < 0.6:
            self._control.when(api=ApiKey.PRODUCE).fail(random.choice(TRANSIENT_ERRORS + PERMANENT_ERRORS))
        if random.random() < 0.6:
            self._control.when(api=ApiKey.PRODUCE, nth=random.randint(2, 4)).drop(execute_first=random.random() < 0.7)

    # --- rules and changes of the cluster

    def _add_rule(self) -> None:
        random = self._random
        rule = self._control.when(
            api=ApiKey.PRODUCE,
            nth=random.randint(1, 12),
            times=random.randint(1, 4),
            probability=random.uniform(0.3, 1),
        )
        fault = random.choice(
            ("reject", "reject", "in_doubt", "drop", "drop", "delay", "delay", "cut", "unresponsive", "throttle")
        )
        if fault == "reject":
            rule.fail(random.choice(REJECTION_ERRORS))
        elif fault == "in_doubt":
            rule.fail(random.choice(IN_DOUBT_ERRORS), execute_first=random.random() < 0.5)
        elif fault == "drop":
            rule.drop(execute_first=random.random() < 0.5)
        elif fault == "delay":
            rule.delay(0, random.choice((50, 900, 3000)), execute_first=random.random() >= 0.3)
        elif fault == "cut":
            rule.cut(at=random.random())
        elif fault == "unresponsive":
            rule.never_respond(execute_first=random.random() < 0.5)
        else:
            rule.throttle(random.randint(1, 800))

    def _maybe_change_cluster(self) -> None:
        if self._random.random() < 0.5:
            self._cluster.system.after(self._random.uniform(1, 100), self._change_cluster)

    def _change_cluster(self) -> None:
        self._random.choice((self._move_leader, self._move_leader, self._restart_random_node, self._hide_topic))()

    def _move_leader(self) -> None:
        node = self._random.choice(list(self._cluster.core.nodes))
        self._control.move_leader(TOPIC, self._random.randrange(self._partitions), node)

    def _restart_random_node(self) -> None:
        node = self._random.choice(list(self._cluster.core.nodes))
        self._control.stop_node(node)
        self._cluster.system.after(self._random.uniform(10, 1500), lambda: self._control.start_node(node))

    def _hide_topic(self) -> None:
        self._control.hide_topic(TOPIC)
        self._cluster.system.after(self._random.uniform(10, 800), lambda: self._control.show_topic(TOPIC))
