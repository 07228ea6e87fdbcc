"""Transactional producers with brokers that support only older request versions."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import TransactionTimeoutError, UnsupportedVersionError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer
from tests.simulated_cluster import SimulatedCluster


def test_description_of_several_ids_fails_without_batched_coordinator_lookup() -> None:
    """Kafka 2.8 looks up one id per request. The producer's own coordinator is unknown at first."""
    limits = {ApiKey.FIND_COORDINATOR: VersionRange(0, 3)}
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1}, version_limits=limits)
    producer = create_simulated_producer(cluster, linger_ms=0, transactional_id="own", max_block_ms=1_000)
    unavailable = cluster.control.when(api=ApiKey.FIND_COORDINATOR, times=None).fail(codes.COORDINATOR_NOT_AVAILABLE)
    with pytest.raises(TransactionTimeoutError):
        producer.init_transactions()
    with pytest.raises(UnsupportedVersionError):
        producer.describe_transactions("ab")
    unavailable.remove()
    producer.init_transactions()
