from __future__ import annotations

import pytest

from spark_kafka_sink.client.bootstrap import (
    RESOLVE_CANONICAL,
    USE_ALL_DNS_IPS,
    bootstrap_nodes,
    parse_bootstrap_servers,
)
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import ConfigurationError
from tests.fake_system import FakeSystem


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("broker:9092", ("broker", 9092)),
        (" broker-1.example.org:19092 ", ("broker-1.example.org", 19092)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
        ("SASL_SSL://broker:9094", ("broker", 9094)),
        ("under_score:9092", ("under_score", 9092)),
    ],
)
def test_host_and_port_are_read_as_users_write_them(server: str, address: tuple[str, int]) -> None:
    assert parse_bootstrap_servers([server]) == [address]


@pytest.mark.parametrize(
    "server",
    ["broker", "broker:", ":9092", "broker:http", "::1:9092", "broker:0", "broker:65536", "", "a b:1", "b:9092:1"],
)
def test_what_is_not_host_and_port_is_named_in_the_error(server: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers") as failure:
        parse_bootstrap_servers(["good:9092", server])
    assert repr(server) in str(failure.value)


@pytest.mark.parametrize(
    "server", ["user:hush@broker:9092", "SASL_SSL://user:hush@broker:9092", "hush@broker", "u:hush@"]
)
def test_a_password_in_an_address_is_not_repeated(server: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"contains '@'. Put user and password into sasl\.jaas\.config"
    ) as failure:
        parse_bootstrap_servers(["good:9092", server])
    assert "hush" not in str(failure.value)


def test_all_bad_addresses_are_reported_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as failure:
        parse_bootstrap_servers(["nonsense", "fine:9092", "broker:99999"])
    assert len(failure.value.faults) == 2
    with pytest.raises(ConfigurationError, match="has no address"):
        parse_bootstrap_servers([])


def test_addresses_become_nodes_with_negative_ids() -> None:
    nodes = bootstrap_nodes(["a:1", "b:2", "a:1"], USE_ALL_DNS_IPS, FakeSystem())
    assert nodes == (Node(-1, "a", 1), Node(-2, "b", 2))


def test_names_that_cannot_be_resolved_are_passed_over_if_there_are_others() -> None:
    system = FakeSystem()
    system.names["gone"] = []
    assert bootstrap_nodes(["gone:1", "b:2"], USE_ALL_DNS_IPS, system) == (Node(-1, "b", 2),)


def test_if_no_name_can_be_resolved_the_configuration_is_wrong() -> None:
    system = FakeSystem()
    system.names.update({"gone": [], "lost": []})
    with pytest.raises(ConfigurationError, match="has no address that can be resolved") as failure:
        bootstrap_nodes(["gone:9092", "lost:9093"], USE_ALL_DNS_IPS, system)
    assert "gone:9092" in str(failure.value)
    assert "lost:9093" in str(failure.value)


def test_canonical_names_take_the_place_of_an_alias() -> None:
    system = FakeSystem()
    system.names = {"first": ["10.0.0.1"], "second": ["10.0.0.2"], "alias": ["10.0.0.1", "10.0.0.2"]}
    nodes = bootstrap_nodes(["alias:9092"], RESOLVE_CANONICAL, system)
    assert nodes == (Node(-1, "first", 9092), Node(-2, "second", 9092))
