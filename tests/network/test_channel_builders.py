"""The four security protocols, from the user's options to a request that the package's own listener receives."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import AuthenticationError, ConfigurationError
from spark_kafka_sink.network.channel import ChannelState
from spark_kafka_sink.network.channel_builders import create_client_channel_builder
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.security.secured_channel_builders import create_server_channel_builder
from spark_kafka_sink.network.security_config import parse_security_config
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress
from spark_kafka_sink.sasl.mechanism import ServerMechanism
from spark_kafka_sink.sasl.plain import PlainServer
from spark_kafka_sink.sasl.scram import build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer
from tests.network.security.sasl_peers import handle_api_versions
from tests.network.test_tls import server_context

CREDENTIAL = build_scram_credential("SCRAM-SHA-256", "right-secret", salt=b"a salt of the test")
MECHANISMS: dict[str, Callable[[], ServerMechanism]] = {
    "PLAIN": lambda: PlainServer({"alice": "right-secret"}),
    "SCRAM-SHA-256": lambda: ScramServer("SCRAM-SHA-256", {"alice": CREDENTIAL}.get),
}


class ConnectedPair:
    """A client with these options, connected to a listener with the same security.protocol."""

    def __init__(self, options: Mapping[str, object], certificates: Path) -> None:
        protocol = str(options.get("security.protocol", "PLAINTEXT"))
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
        system = OperatingSystem()
        self.client = Selector(
            system, channel_builder=create_client_channel_builder(parse_security_config(options), "client")
        )
        self.server = Selector(
            system,
            channel_builder=create_server_channel_builder(
                ssl_context=server_context(certificates) if "SSL" in protocol else None,
                mechanisms=MECHANISMS if "SASL" in protocol else None,
                handle_api_versions=handle_api_versions,
            ),
        )
        self.client.register("a", near, SocketAddress("localhost", 9092, socket.AF_UNIX, ("localhost",)))
        self.server.register("a", far, SocketAddress("client", 1, socket.AF_UNIX, ("client",)))

    def __enter__(self) -> ConnectedPair:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.close()

    def deliver_request(self) -> bytes:
        for _ in range(200):
            if self.client.is_channel_ready("a"):
                break
            self._poll_both()
        self.client.send(NetworkSend("a", [b"\0\3the request"]))
        for _ in range(200):
            self._poll_both()
            if self.server.completed_receives:
                return bytes(self.server.completed_receives[0].payload)
        raise AssertionError("nothing arrived")

    def principal(self) -> str:
        channel = self.server.channel("a")
        assert channel is not None
        return channel.principal

    def end(self) -> ChannelState:
        for _ in range(200):
            self._poll_both()
            if self.client.disconnected:
                return self.client.disconnected["a"]
        raise AssertionError("not rejected")

    def _poll_both(self) -> None:
        self.client.poll(0)
        self.server.poll(0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder)
    return folder


def options_for(protocol: str, certificates: Path, mechanism: str, password: str = "right-secret") -> dict[str, object]:
    options: dict[str, object] = {"security.protocol": protocol}
    if "SSL" in protocol:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates / "ca.pem")}
    if "SASL" in protocol:
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        options |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f'org.apache.kafka.common.security.{module}LoginModule required username="alice" password="{password}";'
            ),
        }
    return options


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_receives_request_over_each_security_protocol(certificates: Path, protocol: str, mechanism: str) -> None:
    with ConnectedPair(options_for(protocol, certificates, mechanism), certificates) as pair:
        assert pair.deliver_request() == b"\0\3the request"
        assert pair.principal() == ("alice" if "SASL" in protocol else "ANONYMOUS")


@pytest.mark.parametrize("mechanism", list(MECHANISMS))
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_wrong_password_error_does_not_contain_password(certificates: Path, protocol: str, mechanism: str) -> None:
    with ConnectedPair(options_for(protocol, certificates, mechanism, "wrong-secret"), certificates) as pair:
        state = pair.end()
        assert state.has_failed_authentication
        assert type(state.error) is AuthenticationError
        assert "secret" not in repr(state)


def test_reports_unreadable_truststore_before_connecting(tmp_path: Path) -> None:
    options = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(tmp_path / "x")}
    with pytest.raises(ConfigurationError, match=r"ssl\.truststore\.location"):
        create_client_channel_builder(parse_security_config(options), "client")
