"""Brokers that cannot do what exactly once needs are found out by the driver, before there is a task."""

from __future__ import annotations

import dataclasses

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig
from spark_kafka_sink.broker.listening import Listening
from spark_kafka_sink.errors import PreflightError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import Query

ABSENT = VersionRange(1, 0)
OF_KAFKA_3 = (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)


@pytest.mark.parametrize("is_forgotten", [True, False], ids=["job", "stream"])
@pytest.mark.parametrize("absent", [OF_KAFKA_3, (ApiKey.INIT_PRODUCER_ID,)], ids=["before 3.0", "no transactions"])
def test_brokers_without_transactions_are_refused_before_the_first_row(
    absent: tuple[ApiKey, ...], *, is_forgotten: bool
) -> None:
    config = ClusterConfig(version_limits=dict.fromkeys(absent, ABSENT))
    with EmbeddedBroker(config, Listening()) as broker:
        delivery = dataclasses.replace(Query(broker).delivery, is_forgotten=is_forgotten)
        with Driver(delivery) as driver, pytest.raises(PreflightError) as refused:
            driver.begin("driver-1")
    assert "nothing was written" in str(refused.value)
    assert "Exactly once needs brokers of Kafka 3.0 or newer" in str(refused.value)
