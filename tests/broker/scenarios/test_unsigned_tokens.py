"""Unsigned tokens, which every client can create: listeners reject them unless they are configured to accept them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.cli import main
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafka_sink.protocol.messages.sasl_handshake import SaslHandshakeRequest
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient, build_unsecured_token
from spark_kafka_sink.testing import EmbeddedBroker, ListenerSecurity, embedded_broker
from tests.broker.broker_command import run_broker_command
from tests.broker.loopback_client import LoopbackClient, broker_threads

USERS = {"alice": "a secret that must not show"}


def handshake(broker: EmbeddedBroker, mechanism: str) -> tuple[int, list[str]]:
    with LoopbackClient(broker.bootstrap_servers) as client:
        response = client.request(SaslHandshakeRequest(mechanism=mechanism), 1)
        return response.error_code, response.mechanisms


def logs_in_with_unsigned_token(broker: EmbeddedBroker) -> bool:
    token = OauthBearerClient(build_unsecured_token({"sub": "mallory", "exp": 4_000_000_000})).start()
    with LoopbackClient(broker.bootstrap_servers) as client:
        if client.request(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code:
            return False
        client.request(SaslAuthenticateRequest(auth_bytes=token), 2)
        return client.request(MetadataRequest(topics=None), 9) is not None


def users_file(folder: Path) -> str:
    path = folder / "users"
    path.write_text("".join(f"{name}:{password}\n" for name, password in USERS.items()))
    return str(path)


def test_listener_with_users_offers_plain_and_scram_only() -> None:
    with embedded_broker(security=ListenerSecurity("SASL_PLAINTEXT", users=USERS)) as broker:
        code, offered = handshake(broker, "OAUTHBEARER")
        assert code == error_codes.UNSUPPORTED_SASL_MECHANISM
        assert offered == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert not logs_in_with_unsigned_token(broker)


def test_broker_command_with_users_rejects_unsigned_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logins: list[bool] = []
    arguments = ["--security", "SASL_PLAINTEXT", "--users", users_file(tmp_path)]
    assert (
        run_broker_command(monkeypatch, arguments, lambda broker: logins.append(logs_in_with_unsigned_token(broker)))
        == 0
    )
    assert logins == [False]
    assert caplog.messages == []


@pytest.mark.parametrize("with_users", [True, False])
def test_broker_command_accepts_unsigned_tokens_with_warning_if_enabled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, with_users: bool
) -> None:
    logins: list[bool] = []
    arguments = ["--security", "SASL_PLAINTEXT", "--unsigned-tokens"]
    arguments += ["--users", users_file(tmp_path)] if with_users else []
    assert (
        run_broker_command(monkeypatch, arguments, lambda broker: logins.append(logs_in_with_unsigned_token(broker)))
        == 0
    )
    assert logins == [True]
    (warning,) = caplog.messages
    assert "every client can log in under any name" in warning


@pytest.mark.parametrize("content", [None, "", "alice:\n"])
def test_broker_command_rejects_sasl_without_passwords(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | None
) -> None:
    threads = broker_threads()
    arguments = ["broker", "--port", "0", "--security", "SASL_PLAINTEXT"]
    if content is not None:
        (tmp_path / "users").write_text(content)
        arguments += ["--users", str(tmp_path / "users")]
    assert main(arguments) == 1
    assert ("empty password" if content else "requires users") in capfd.readouterr().err
    assert broker_threads() <= threads
