from __future__ import annotations

import pytest

from spark_kafka_sink.client.bootstrap import (
    RESOLVE_CANONICAL,
    USE_ALL_DNS_IPS,
    parse_bootstrap_servers,
    resolve_bootstrap_nodes,
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
def test_parses_host_and_port(server: str, address: tuple[str, int]) -> None:
    assert parse_bootstrap_servers([server]) == [address]


@pytest.mark.parametrize(
    "server",
    ["broker", "broker:", ":9092", "broker:http", "::1:9092", "broker:0", "broker:65536", "", "a b:1", "b:9092:1"],
)
def test_error_quotes_invalid_address(server: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers") as failure:
        parse_bootstrap_servers(["good:9092", server])
    assert repr(server) in str(failure.value)


@pytest.mark.parametrize(
    "server", ["user:hush@broker:9092", "SASL_SSL://user:hush@broker:9092", "hush@broker", "u:hush@"]
)
def test_error_hides_password_in_address(server: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"contains '@'. Put the user name and password into sasl\.jaas\.config"
    ) as failure:
        parse_bootstrap_servers(["good:9092", server])
    assert "hush" not in str(failure.value)


def test_reports_all_invalid_addresses_in_one_error() -> None:
    with pytest.raises(ConfigurationError) as failure:
        parse_bootstrap_servers(["nonsense", "fine:9092", "broker:99999"])
    assert len(failure.value.problems) == 2
    with pytest.raises(ConfigurationError, match="has no address"):
        parse_bootstrap_servers([])


def test_bootstrap_nodes_have_negative_ids() -> None:
    nodes = resolve_bootstrap_nodes(["a:1", "b:2", "a:1"], USE_ALL_DNS_IPS, FakeSystem())
    assert nodes == (Node(-1, "a", 1), Node(-2, "b", 2))


def test_skips_unresolvable_host_when_another_resolves() -> None:
    system = FakeSystem()
    system.names["gone"] = []
    assert resolve_bootstrap_nodes(["gone:1", "b:2"], USE_ALL_DNS_IPS, system) == (Node(-1, "b", 2),)


def test_rejects_configuration_when_no_host_resolves() -> None:
    system = FakeSystem()
    system.names.update({"gone": [], "lost": []})
    with pytest.raises(ConfigurationError, match="has no address that can be resolved") as failure:
        resolve_bootstrap_nodes(["gone:9092", "lost:9093"], USE_ALL_DNS_IPS, system)
    assert "gone:9092" in str(failure.value)
    assert "lost:9093" in str(failure.value)


def test_replaces_alias_by_canonical_names() -> None:
    system = FakeSystem()
    system.names = {"first": ["10.0.0.1"], "second": ["10.0.0.2"], "alias": ["10.0.0.1", "10.0.0.2"]}
    nodes = resolve_bootstrap_nodes(["alias:9092"], RESOLVE_CANONICAL, system)
    assert nodes == (Node(-1, "first", 9092), Node(-2, "second", 9092))
