"""Names of bootstrap.servers that cannot be resolved when the client is created (bootstrap.resolve.timeout.ms)."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.client.bootstrap import RESOLVE_CANONICAL
from spark_kafka_sink.client.bootstrap_lookup import BootstrapLookup
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import ConfigurationError, MetadataTimeoutError
from tests.client.rig import Rig
from tests.fake_system import FakeSystem

OPTIONS = {"bootstrap_servers": ("boot:9092",), "bootstrap_resolve_timeout_ms": 10_000, "retry_backoff_ms": 500}


def unresolved_rig(**options: object) -> Rig:
    """Build a Rig whose bootstrap server, broker 0 under the name `boot`, cannot be resolved yet."""
    rig = Rig(2, bootstrap=(), **{**OPTIONS, **options})
    rig.system.names["boot"] = []
    rig.system.listen("10.0.0.1", 9092, rig.broker)
    return rig


def test_bootstraps_when_a_name_can_be_resolved(caplog: pytest.LogCaptureFixture) -> None:
    rig = unresolved_rig()
    with caplog.at_level(logging.WARNING):
        rig.pass_time(5_000)
    assert rig.client.least_loaded_node(rig.now) is None
    assert len(caplog.messages) == 1, "repeated failures are not logged again"
    rig.system.names["boot"] = ["10.0.0.1"]
    resolved_ms = rig.now
    rig.bootstrap()
    assert rig.now - resolved_ms <= 1_000
    rig.make_ready(1)


def test_fails_all_calls_after_resolve_timeout() -> None:
    rig = unresolved_rig()
    rig.pass_time(9_000)
    rig.metadata.raise_if_fatal()
    with pytest.raises(MetadataTimeoutError, match=r"No name in bootstrap\.servers was resolved: .*boot:9092"):
        rig.metadata.await_update(0, 0)
    rig.pass_time(2_000)
    rig.system.names["boot"] = ["10.0.0.1"]
    rig.pass_time(60_000)
    with pytest.raises(ConfigurationError, match=r"could not be resolved within 10000 ms \(bootstrap\."):
        rig.metadata.await_update(0, 60_000)
    assert not rig.system.connects


def test_retries_lookup_after_backoff_and_not_after_resolve_timeout() -> None:
    rig = unresolved_rig()
    polls = 0
    end = rig.now + 60_000
    while rig.now < end:
        rig.poll(end - rig.now)
        polls += 1
    assert 20 <= polls <= 30


def test_bootstraps_again_from_servers_that_were_resolved_late() -> None:
    rig = unresolved_rig(metadata_recovery_rebootstrap_trigger_ms=0)
    rig.pass_time(1_000)
    rig.system.names["boot"] = ["10.0.0.1"]
    rig.bootstrap()
    rig.metadata.rebootstrap()
    assert list(rig.metadata.snapshot.nodes.values()) == [Node(-1, "boot", 9092)]


def test_lookup_uses_canonical_names() -> None:
    system = FakeSystem()
    system.names = {"canonical": ["10.0.0.1"], "alias": ["10.0.0.1"]}
    config = ClientConfig(("alias:9092",), client_dns_lookup=RESOLVE_CANONICAL, bootstrap_resolve_timeout_ms=1)
    assert BootstrapLookup(config, system).try_resolve() == (Node(-1, "canonical", 9092),)


def test_lookup_rejects_invalid_address_immediately() -> None:
    with pytest.raises(ConfigurationError, match="which is not HOST:PORT"):
        BootstrapLookup(ClientConfig(("broker",), bootstrap_resolve_timeout_ms=1), FakeSystem())
