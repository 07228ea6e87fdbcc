"""SecurityConfig.create_mechanism: the first message of each mechanism, and tokens of files and callbacks."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, KafkaSinkError, NetworkError
from spark_kafka_sink.network.security import client_mechanisms
from spark_kafka_sink.network.security_config import parse_security_config
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token, decode_token_claims, validate_unsecured_token
from tests.network.security.security_cases import OAUTH, OAUTH_MODULE, OAUTH_OPTION_PREFIX, SCRAM, build_jaas_config

NOW_S = 1_800_000_000.0
SIGNER = """
import itertools

REGION = "eu-west-1"
_numbers = itertools.count(1)


class MSKAuthTokenProvider:
    @staticmethod
    def generate_auth_token(region):
        return f"signed-for-{region}-{next(_numbers)}", 900_000


def token():
    token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(REGION)
    return token
"""


def returns_a_token() -> str:
    return "abc.def"


def returns_nothing() -> None:
    return None


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_creates_scram_mechanism(mechanism: str) -> None:
    config = parse_security_config(SCRAM | {"sasl.mechanism": mechanism})
    assert config.login is not None
    assert config.login.mechanism == mechanism
    assert config.create_mechanism("broker").start().startswith(b"n,,n=alice,r=")


def test_creates_scram_mechanism_for_delegation_token() -> None:
    options = SCRAM | {"sasl.jaas.config": build_jaas_config(username="id", password="hmac", tokenauth="true")}
    assert parse_security_config(options).create_mechanism("b").start().endswith(b",tokenauth=true")


def test_creates_plain_mechanism() -> None:
    module = build_jaas_config("plain.PlainLoginModule", username="alice", password="s3")
    config = parse_security_config(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": module}
    )
    assert config.create_mechanism("b").start() == b"\0alice\0s3"


def test_sends_token_option_unchanged() -> None:
    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token": "abc.def"})
    assert b"Bearer abc.def\x01" in config.create_mechanism("b").start()


def test_sends_token_of_callback_with_extensions() -> None:
    module = f'{OAUTH_MODULE} required extension_pool="p";'
    options = OAUTH | {"sasl.oauthbearer.token.callback": returns_a_token, "sasl.jaas.config": module}
    config = pickle.loads(pickle.dumps(parse_security_config(options)))
    assert config.create_mechanism("b").start() == b"n,,\x01auth=Bearer abc.def\x01pool=p\x01\x01"
    wrong = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": returns_nothing})
    with pytest.raises(AuthenticationError, match="must return the token as str"):
        wrong.create_mechanism("b")


def raises() -> str:
    raise KeyError("token-secret")


def test_callback_error_shows_type_but_no_message() -> None:
    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": raises})
    with pytest.raises(AuthenticationError, match=r"sasl\.oauthbearer\.token\.callback raised KeyError\.") as error:
        config.create_mechanism("b")
    assert "token-secret" not in "".join(traceback.format_exception(error.value)), "Spark shows tracebacks to all"


@pytest.mark.parametrize("error_type", [NetworkError, DisconnectedError])
def test_network_error_of_callback_has_remedy_for_callback(error_type: type[NetworkError]) -> None:
    def fetch_token() -> str:
        raise errors.pop(0)

    errors = [error_type("the STS did not respond"), error_type("the STS did not respond", remedy="Ask the STS.")]
    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": fetch_token})
    with pytest.raises(error_type) as caught:
        config.create_mechanism("b")
    assert str(caught.value) == (
        "the STS did not respond. Check the function set in sasl.oauthbearer.token.callback, and that this machine can "
        "reach its servers."
    )
    with pytest.raises(error_type, match=r"the STS did not respond\. Ask the STS\.$"):
        config.create_mechanism("b")


def test_imports_token_callback_when_connecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job on MSK passes the callback's name, because Spark's options are strings and workers call the signer."""
    (tmp_path / "msk_tokens.py").write_text(SIGNER)
    options = OAUTH | {"sasl.oauthbearer.token.callback": "msk_tokens:token"}
    config = pickle.loads(pickle.dumps(parse_security_config(options)))
    with pytest.raises(AuthenticationError, match=r"msk_tokens:token cannot be imported on this machine.*--py-files"):
        config.create_mechanism("b")
    monkeypatch.syspath_prepend(str(tmp_path))
    first, second = (config.create_mechanism("b").start() for _ in range(2))
    assert first == b"n,,\x01auth=Bearer signed-for-eu-west-1-1\x01\x01"
    assert second == b"n,,\x01auth=Bearer signed-for-eu-west-1-2\x01\x01", "a new token for each connection"
    constant = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": "msk_tokens:REGION"})
    with pytest.raises(AuthenticationError, match="is not callable"):
        constant.create_mechanism("b")
    assert "msk_tokens" not in repr(config)


def test_creates_unsecured_token_like_java_client() -> None:
    module = f'{OAUTH_MODULE} required unsecuredLoginStringClaim_sub="alice";'
    first = parse_security_config(OAUTH | {"sasl.jaas.config": module}).create_mechanism("b").start().decode()
    token = first.partition("Bearer ")[2].partition("\x01")[0]
    assert validate_unsecured_token(token, now_s=0).principal == "alice"


def test_reads_token_file_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a token"
    config = parse_security_config(OAUTH | {OAUTH_OPTION_PREFIX + "token.endpoint.url": path.as_uri()})
    monkeypatch.setattr(client_mechanisms, "OperatingSystem", lambda: SimpleNamespace(wall_ms=lambda: NOW_S * 1000))
    for number in range(2):  # Kubernetes rotates a token by replacing a symbolic link
        (tmp_path / f"{number}").write_text(build_unsecured_token({"exp": NOW_S + 10, "n": number}) + "\n")
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / f"{number}")
        first = pickle.loads(pickle.dumps(config)).create_mechanism("b").start().decode()
        assert decode_token_claims(first.partition("Bearer ")[2].partition("\x01")[0])["n"] == number
    path.unlink()
    with pytest.raises(AuthenticationError, match=r"is .*a token, which cannot be read on this machine: No such file"):
        config.create_mechanism("b")


def test_does_not_show_token_in_place_of_token_file() -> None:
    token = build_unsecured_token({"sub": "hush"})
    config = parse_security_config(OAUTH | {OAUTH_OPTION_PREFIX + "token.endpoint.url": f"file:///{token}"})
    with pytest.raises(
        AuthenticationError, match="must be the path of a file, but seems to contain the content"
    ) as caught:
        config.create_mechanism("b")
    assert token not in str(caught.value) + repr(config)


def test_creates_gssapi_mechanism_for_service_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", SimpleNamespace())
    options = {"security.protocol": "SASL_SSL", "sasl.kerberos.service.name": "kafka"}
    assert repr(parse_security_config(options).create_mechanism("broker-1")) == "<GssapiClient kafka@broker-1>"


@pytest.mark.parametrize("error", [AuthenticationError("role expired"), NetworkError("the token service is down")])
def test_errors_of_this_package_raised_by_callback_keep_their_type_and_message(error: KafkaSinkError) -> None:
    def raise_error() -> str:
        raise error

    config = parse_security_config(OAUTH | {"sasl.oauthbearer.token.callback": raise_error})
    with pytest.raises(type(error)) as caught:
        config.create_mechanism("b")
    assert caught.value is error
