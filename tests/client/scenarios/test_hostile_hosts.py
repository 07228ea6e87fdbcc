"""Invalid host names make a broker unreachable without being resolved. Other brokers remain usable."""

from __future__ import annotations

import ssl

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.tls import TlsTransport
from tests.client.rig import Rig
from tests.fake_system import FakeSystem, Peer

HOSTS = ["b1\0.evil", "b1\n", "b" * 300, "", "\x1b[2J"]


@pytest.mark.parametrize("host", HOSTS)
def test_rejects_invalid_host_without_resolving_it(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(bootstrap=(Node(-1, host, 9092),))
    resolved_hosts: list[str] = []
    monkeypatch.setattr(rig.system, "resolve", lambda name, port: resolved_hosts.append(name))
    for _ in range(10):
        rig.poll(1_000)
    description = rig.metadata.describe_connection_failures()
    assert "advertised.listeners" in description
    assert description.isprintable()
    assert resolved_hosts == []


def test_uses_other_brokers_when_one_host_is_invalid() -> None:
    rig = Rig(bootstrap=(Node(-1, "b0\0", 9092), Node(-2, "b0", 9092))).bootstrap()
    assert set(rig.metadata.snapshot.nodes) == {0, 1, 2}


@pytest.mark.parametrize("host", ["b1\0.evil", "..", "x" * 300])
def test_tls_rejects_host_that_it_cannot_verify(host: str) -> None:
    system = FakeSystem()
    system.listen(host, 9092, Peer())
    sock = system.connect(system.resolve(host, 9092)[0], -1, -1)
    with pytest.raises(DisconnectedError, match="TLS cannot verify the host name"):
        TlsTransport(sock, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), server_hostname=host)
