"""Clients that the batches of a driver share, so that it connects only once."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock, patch

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.exactly_once import clients
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query
from tests.exactly_once.embedded_query import broker as broker
from tests.fake_system import FakeSystem


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(clients, "IDLE_DRIVER_CLIENTS", clients.create_client_cache())
    yield
    clients.IDLE_DRIVER_CLIENTS.close()


def config(broker: EmbeddedBroker, **options: str) -> ClientConfig:
    return ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers, **options}).client_config()


def test_next_lease_with_same_configuration_gets_the_same_client(broker: EmbeddedBroker) -> None:
    with clients.lease_client(config(broker)) as first, clients.lease_client(config(broker)) as second:
        assert second is not first, "one user at a time"
    with clients.lease_client(config(broker)) as again:
        assert again is first
    with clients.lease_client(config(broker, **{"client.id": "other"})) as other:
        assert other not in (first, second)


def test_caches_the_last_clients_and_closes_the_others() -> None:
    def connect_client(number: int) -> ClientConfig:
        return ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:1", "client.id": str(number)}).client_config()

    used, closed, close = list[BlockingClient](), list[BlockingClient](), BlockingClient.close

    def note(client: BlockingClient) -> None:
        closed.append(client)
        close(client)

    with patch.object(BlockingClient, "close", note):
        for number in range(6):
            with clients.lease_client(connect_client(number)) as client:
                used.append(client)
        assert closed == used[:2]
        clients.IDLE_DRIVER_CLIENTS.close()
    assert set(closed) == set(used)


def test_client_sends_requests_for_many_transactions_concurrently() -> None:
    config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:1"}).client_config()
    with patch.object(clients, "BlockingClient") as client_class:
        clients.create_client(config)
    assert client_class.call_args.args[0].max_in_flight_requests_per_connection == 50
    assert config.max_in_flight_requests_per_connection == 5


def test_closes_client_with_a_test_clock_after_its_lease() -> None:
    config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:1"}).client_config()
    with clients.lease_client(config, system=FakeSystem()) as client:
        close = client.close = Mock(wraps=client.close)  # type: ignore[method-assign]
        close.assert_not_called()
    close.assert_called_once()
    with clients.lease_client(config) as other:
        assert other is not client


def test_closes_client_after_an_error(broker: EmbeddedBroker) -> None:
    with pytest.raises(ValueError, match="of its user"), clients.lease_client(config(broker)) as first:
        raise ValueError("of its user")
    with clients.lease_client(config(broker)) as again:
        assert again is not first


def test_batches_of_a_driver_share_one_client(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    with patch.object(clients, "BlockingClient", wraps=BlockingClient) as client_class:
        for number in range(5):
            query.run(number)
    assert client_class.call_count == 1
