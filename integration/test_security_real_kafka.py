"""Every security protocol and mechanism against a real broker: successful logins, and the errors of rejected clients.

A Selector with one channel takes the place of the client, so these tests cover only the network layer.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping

import pytest

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, TlsError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.network.channel_builders import create_client_channel_builder
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.security import sasl_client
from spark_kafka_sink.network.security_config import SecurityConfig, parse_security_config
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.network.tls import TlsTransport
from spark_kafka_sink.protocol.headers import decode_response, encode_request
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.sasl.mechanism import ClientMechanism
from tests.requests.node_message import send_to
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class ChannelClient:
    """One channel to one broker."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        host, _, port = bootstrap.rpartition(":")
        system = OperatingSystem()
        self.selector = Selector(
            system, channel_builder=create_client_channel_builder(parse_security_config(options), "link")
        )
        # `localhost` may resolve to IPv4 and IPv6 addresses, but the test brokers listen on only one of them.
        addresses = [found for found in system.resolve(host, int(port)) if _accepts(found.sockaddr, found.family)]
        self.selector.connect("broker", addresses[0])
        self._correlation_id = 0
        self._is_sending = False
        self._pending_correlation_ids: deque[int] = deque()
        self.response_count = 0

    def __enter__(self) -> ChannelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.selector.close()

    @property
    def ready(self) -> bool:
        return self.selector.is_channel_ready("broker")

    def open(self) -> ChannelClient:
        """Poll until the channel is ready and a response has confirmed it."""
        last_state = self._poll_until(lambda: self.ready)
        assert last_state is None, f"rejected: {last_state}"
        self.send_request()
        assert self._poll_until(lambda: self.response_count > 0) is None
        return self

    def await_rejection(self) -> ChannelState:
        """Wait until the broker ends the channel, and return its last state. The client has no timeout of its own."""
        last_state = self._poll_until(lambda: self.ready)
        if last_state is None:
            # With TLS 1.3, the client learns of the rejection only when it reads the first bytes.
            self.send_request()
            last_state = self.await_end()
        return last_state

    def await_end(self) -> ChannelState:
        """Poll until the channel ends."""
        last_state = self._poll_until(lambda: False)
        assert last_state is not None
        return last_state

    def send_request(self) -> None:
        self._correlation_id += 1
        self._pending_correlation_ids.append(self._correlation_id)
        request = ApiVersionsRequest(client_software_name="link", client_software_version="1")
        self._is_sending = True
        self.selector.send(NetworkSend("broker", encode_request(request, 3, self._correlation_id, "link")))

    def poll(self) -> ChannelState | None:
        """Poll once, and check the order of responses. Return the channel's last state if it has ended, or None."""
        self.selector.poll(50)
        self._is_sending = self._is_sending and not self.selector.completed_sends
        for receive in self.selector.completed_receives:
            correlation_id, response = decode_response(receive.payload, ApiVersionsResponse, 3)
            assert correlation_id == self._pending_correlation_ids.popleft()
            assert response.error_code == 0
            self.response_count += 1
        return self.selector.disconnected.get("broker")

    def send_requests_until(self, condition: Callable[[], bool], in_flight: int = 5) -> ChannelState | None:
        """Send requests until `condition()` is true. Return the last state if the channel ends before, or None."""

        def send_if_possible() -> bool:
            if self.ready and not self._is_sending and len(self._pending_correlation_ids) < in_flight:
                self.send_request()
            return condition()

        return self._poll_until(send_if_possible) or self._poll_until(lambda: not self._pending_correlation_ids)

    def _poll_until(self, condition: Callable[[], bool]) -> ChannelState | None:
        """Poll until `condition()` is true. Return the channel's last state if it ends before, or None."""
        deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "the broker neither responds nor disconnects"
            last_state = self.poll()
            if last_state is not None:
                return last_state
        return None


def _accepts(sockaddr: tuple[object, ...], family: int) -> bool:
    with socket.socket(family) as probe:
        return probe.connect_ex(sockaddr) == 0


def trust(kafka: KafkaCluster, authority: str = "ca.pem") -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.certificates / authority)}


def tls(kafka: KafkaCluster, authority: str = "ca.pem") -> dict[str, str]:
    return {"security.protocol": "SSL", **trust(kafka, authority)}


def sasl(mechanism: str, user: str = "alice", password: str = "alice-secret") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{MODULES[mechanism]} required username="{user}" password="{password}";',
    }


def test_connects_with_plaintext(kafka: KafkaCluster) -> None:
    with ChannelClient(kafka.bootstrap(), {}) as client:
        client.open()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_uses_configured_tls_version(kafka: KafkaCluster, version: str) -> None:
    with ChannelClient(kafka.bootstrap("SSL"), tls(kafka) | {"ssl.enabled.protocols": version}) as client:
        client.open()
        channel = client.selector.channel("broker")
        assert channel is not None
        assert isinstance(channel.transport, TlsTransport)
        assert channel.transport.version == version


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_mutual_tls_accepts_client_certificate(kafka: KafkaCluster, version: str) -> None:
    identity = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(kafka.certificates / "client.pem")}
    options = tls(kafka) | identity | {"ssl.enabled.protocols": version}
    with ChannelClient(kafka.bootstrap("MTLS"), options) as client:
        client.open()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_mutual_tls_rejects_client_without_certificate(kafka: KafkaCluster, version: str) -> None:
    with ChannelClient(kafka.bootstrap("MTLS"), tls(kafka) | {"ssl.enabled.protocols": version}) as client:
        last_state = client.await_rejection()
        assert last_state.kind is ChannelStateKind.AUTHENTICATION_FAILED
        assert "ssl.keystore" in str(last_state.error)


@pytest.mark.parametrize(
    ("listener", "host", "authority", "message"),
    [
        ("SSL", "localhost", "stranger-ca.pem", "ssl.truststore"),
        ("SSL", "127.0.0.1", "ca.pem", "not valid for '127.0.0.1'"),
        ("EXPIRED", "localhost", "ca.pem", "has expired"),
    ],
)
def test_rejects_untrusted_certificate_of_broker(
    kafka: KafkaCluster, listener: str, host: str, authority: str, message: str
) -> None:
    with ChannelClient(kafka.bootstrap(listener, host), tls(kafka, authority)) as client:
        last_state = client.await_rejection()
        assert last_state.kind is ChannelStateKind.AUTHENTICATION_FAILED
        assert isinstance(last_state.error, TlsError)
        assert message in str(last_state.error)


def test_accepts_wrong_host_name_without_endpoint_identification(kafka: KafkaCluster) -> None:
    options = tls(kafka) | {"ssl.endpoint.identification.algorithm": ""}
    with ChannelClient(kafka.bootstrap("SSL", "127.0.0.1"), options) as client:
        client.open()


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", list(MODULES))
def test_accepts_correct_password(kafka: KafkaCluster, mechanism: str, listener: str) -> None:
    options = sasl(mechanism) | {"security.protocol": listener} | (trust(kafka) if "SSL" in listener else {})
    with ChannelClient(kafka.bootstrap(listener), options) as client:
        client.open()


@pytest.mark.parametrize("user", ["alice", "stranger"])
@pytest.mark.parametrize("mechanism", list(MODULES))
def test_rejects_wrong_password_and_unknown_user(kafka: KafkaCluster, mechanism: str, user: str) -> None:
    with ChannelClient(kafka.bootstrap("SASL_PLAINTEXT"), sasl(mechanism, user, "wrong-secret")) as client:
        last_state = client.await_rejection()
        assert last_state.has_failed_authentication
        assert type(last_state.error) is AuthenticationError
        assert f"SASL {mechanism}: the broker rejected the login: Authentication failed" in str(last_state.error)
        assert "secret" not in repr(last_state)


def test_accepts_bearer_token(kafka: KafkaCluster) -> None:
    # The test brokers accept the unsecured tokens that Kafka's development mode creates.
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{BEARER} required unsecuredLoginStringClaim_sub="alice";',
    }
    with ChannelClient(kafka.bootstrap("SASL_PLAINTEXT"), options) as client:
        client.open()


def test_rejects_expired_bearer_token(kafka: KafkaCluster) -> None:
    token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImlhdCI6MSwiZXhwIjoyfQ."
    # {"alg":"none"} . {"sub":"alice","iat":1,"exp":2}
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token": token,
    }
    with ChannelClient(kafka.bootstrap("SASL_PLAINTEXT"), options) as client:
        last_state = client.await_rejection()
        assert last_state.has_failed_authentication
        assert token not in repr(last_state)


# --- clients and listeners with different protocols


def test_tls_to_plaintext_listener_fails_with_hint(kafka: KafkaCluster) -> None:
    with ChannelClient(kafka.bootstrap(), tls(kafka)) as client:
        last_state = client.await_rejection()
        assert isinstance(last_state.error, DisconnectedError)
        assert "may expect plaintext" in str(last_state.error)


def test_plaintext_to_tls_listener_names_security_protocol(kafka: KafkaCluster) -> None:
    with ChannelClient(kafka.bootstrap("SSL"), {}) as client:
        assert "security.protocol" in str(client.await_rejection().error)


def test_sasl_to_listener_without_sasl_fails(kafka: KafkaCluster) -> None:
    with ChannelClient(kafka.bootstrap(), sasl("PLAIN")) as client:
        last_state = client.await_rejection()
        assert last_state.has_failed_authentication
        assert "does not use SASL" in str(last_state.error)


def test_sasl_listener_disconnects_client_without_login(kafka: KafkaCluster) -> None:
    with ChannelClient(kafka.bootstrap("SASL_PLAINTEXT"), {}) as client:
        client.open()  # brokers respond to one ApiVersions request before a login
        client.send_request()
        assert isinstance(client.await_end().error, DisconnectedError)


# --- sessions that end (KIP-368)

RENEWED_EARLY = (0.02, 0.03)
"""Fractions of the session (a minute) after which it is renewed: brokers reject a renewal within a second."""


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the hosts to which logins were begun: the first login, and one for each renewal."""
    hosts: list[str] = []
    begin = SecurityConfig.create_mechanism

    def create_and_record(security: SecurityConfig, host: str) -> ClientMechanism:
        hosts.append(host)
        return begin(security, host)

    monkeypatch.setattr(SecurityConfig, "create_mechanism", create_and_record)
    return hosts


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_reauthenticates_under_load_without_lost_response(
    kafka: KafkaCluster, mechanism: str, logins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_client, "REAUTHENTICATION_FRACTION", RENEWED_EARLY)
    with ChannelClient(kafka.bootstrap("REAUTH"), sasl(mechanism)) as client:
        client.open()
        for login in (1, 2):
            before = client.response_count
            assert client.send_requests_until(lambda login=login: len(logins) > login) is None  # type: ignore[misc]
            assert client.response_count > before, "responses arrive between the logins"


def test_network_client_continues_during_reauthentication(
    kafka: KafkaCluster, logins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sasl_client, "REAUTHENTICATION_FRACTION", RENEWED_EARLY)
    config = parse_client_config({"bootstrap.servers": kafka.bootstrap("REAUTH"), **sasl("SCRAM-SHA-512")})
    with BlockingClient(config) as client:

        def is_renewed_twice() -> bool:
            """Return whether there were four logins: at the bootstrap address, at the node, and two renewals."""
            node = client.choose_node()
            assert node is not None
            assert send_to(client, node, MetadataResponse, MetadataRequest(topics=[])).brokers
            return len(logins) >= 4

        wait_until(is_renewed_twice)


def test_broker_disconnects_session_without_reauthentication(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without renewals, the tests above would fail like this after a minute."""
    monkeypatch.setattr(sasl_client, "REAUTHENTICATION_FRACTION", (100.0, 100.0))
    with ChannelClient(kafka.bootstrap("REAUTH"), sasl("SCRAM-SHA-256")) as client:
        client.open()
        last_state = client.send_requests_until(lambda: False)
        assert last_state is not None
        assert last_state.kind is ChannelStateKind.READY
