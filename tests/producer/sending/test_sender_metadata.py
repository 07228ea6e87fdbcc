"""The sender drops unused topics from the metadata, and reports unavailable nodes to the partitioner."""

from __future__ import annotations

from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.sending.sender_cases import established, pass_time, read_batch_stamps, send, simulated, wait
from tests.producer.virtual_time import get_sender, wait_for_result


def test_unused_topic_is_dropped_from_metadata_and_keeps_its_sequences() -> None:
    cluster, producer = simulated(metadata_max_idle_ms=5000, metadata_max_age_ms=1000)
    established(producer)
    assert get_sender(producer).metadata.contains_topic("t")
    pass_time(producer, 20_000)
    assert not get_sender(producer).metadata.contains_topic("t")
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert get_sender(producer).metadata.contains_topic("t")
    assert read_batch_stamps(cluster) == [(0, 0, 1), (0, 1, 1)]


def test_topic_with_unsent_records_is_in_use() -> None:
    cluster, producer = simulated(metadata_max_idle_ms=5000, metadata_max_age_ms=1000)
    established(producer)
    cluster.core.topic("t").partitions[0].leader = None
    pass_time(producer, 2000)
    future = send(producer, b"1")
    pass_time(producer, 20_000)
    cluster.control.move_leader("t", 0, 0)
    assert wait_for_result(producer, future).offset == 1


def test_partitioner_avoids_node_that_accepts_no_records() -> None:
    cluster, producer = simulated(
        partitions=2, nodes=2, partitioner_availability_timeout_ms=50, max_in_flight_requests_per_connection=1
    )
    for partition in (0, 1):
        cluster.control.move_leader("t", partition, partition)
    established(producer, 0, 1)

    def usable() -> list[int]:
        loads = get_sender(producer).accumulator.find_partition_loads(
            "t", get_sender(producer).metadata.snapshot, [0, 1]
        )
        assert loads is not None
        return loads.partitions

    assert usable() == [0, 1]
    cluster.control.when(node=0).throttle(5000)
    wait_for_result(producer, send(producer, b"throttled", 0))
    assert usable() == [0, 1]  # nothing is waiting for node 0, so its unavailability is not detected
    for _ in range(12):
        send(producer, b"v", 0)
        pass_time(producer, 10)
    assert usable() == [1]
    pass_time(producer, 6000)
    assert usable() == [0, 1]


def test_looks_up_a_partition_that_the_metadata_no_longer_contains() -> None:
    """The topic is deleted and created again with fewer partitions, and gains one later."""
    cluster, producer = simulated(partitions=2, metadata_max_age_ms=300_000)
    established(producer, 0, 1)
    cluster.core.topic("t").partitions[1].leader = None
    get_sender(producer).metadata.request_update()
    pass_time(producer, 1_000)
    future = send(producer, b"1", 1)
    cluster.control.delete_topic("t")
    cluster.control.create_topic("t", 1)
    pass_time(producer, 10_000)
    cluster.control.add_partitions("t", 2)
    pass_time(producer, 10_000)
    assert future.done()
    assert future.exception(0) is None


def test_looks_up_moved_leader_although_record_is_not_retried() -> None:
    cluster, producer = simulated(nodes=2, retries=0, enable_idempotence=False)
    old_leader = cluster.core.topic("t").partitions[0].leader
    assert old_leader is not None
    established(producer)
    cluster.control.move_leader("t", 0, 1 - old_leader)
    # Before Produce version 10, responses do not name the new leader.
    cluster.control.when(api=ApiKey.PRODUCE, node=old_leader, times=100).fail(codes.NOT_LEADER_OR_FOLLOWER)
    failed = send(producer, b"1")
    wait(producer, failed)
    assert failed.exception(0) is not None
    pass_time(producer, 1_000)
    assert wait_for_result(producer, send(producer, b"2")).offset == 1
