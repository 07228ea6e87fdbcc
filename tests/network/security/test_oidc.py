"""Tokens from an OIDC endpoint: requests, validation of responses, caching, and secrets that errors must not show."""

from __future__ import annotations

import base64
import http.client
import json
import pickle
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import AuthenticationError, ConfigurationError, DisconnectedError
from spark_kafka_sink.network.security.oidc import MAX_RESPONSE_BYTES, OidcConfig, TokenSource
from spark_kafka_sink.network.security_config import parse_security_config
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token
from tests.waiting import wait_until


@dataclass
class Endpoint:
    """A token endpoint that returns its `responses` in order, and then repeats the last one."""

    url: str = ""
    responses: list[tuple[int, bytes]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], str]] = field(default_factory=list)

    def add_response(self, content: object, status: int = 200) -> None:
        self.responses.append((status, content if isinstance(content, bytes) else json.dumps(content).encode()))


@contextmanager
def serve_tokens(context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    """Run a token endpoint, with TLS if there is a context."""
    state = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with suppress(ssl.SSLError):  # a client that does not trust the certificate
                super().handle()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.requests.append((self.path, dict(self.headers), body))
            status, content = state.responses.pop(0) if len(state.responses) > 1 else state.responses[0]
            self.send_response(status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    origin = f"http://127.0.0.1:{server.server_port}" if context is None else f"https://localhost:{server.server_port}"
    state.url = f"{origin}/realms/k/token?x=1"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve_tokens() as state:
        yield state


@dataclass
class Clock:
    seconds: float = 1_800_000_000.0
    later: list[Callable[[], None]] = field(default_factory=list)
    """Functions that the token source wants to run in a background thread."""

    def now_s(self) -> float:
        return self.seconds

    def run_thread(self) -> None:
        self.later.pop()()


def source(endpoint: Endpoint, clock: Clock | None = None, **changed: Any) -> TokenSource:
    clock = clock or Clock()
    config = replace(OidcConfig(endpoint.url, "me", "hush:1", "kafka produce"), **changed)
    return TokenSource(config, now_s=clock.now_s, unix_time_s=clock.now_s, run_in_background=clock.later.append)


def test_requests_token_with_client_credentials_grant(endpoint: Endpoint) -> None:
    endpoint.add_response({"access_token": "abc.def", "expires_in": 300})
    assert source(endpoint).get_token() == "abc.def"
    ((path, headers, body),) = endpoint.requests
    assert path == "/realms/k/token?x=1"
    assert body == "grant_type=client_credentials&scope=kafka+produce"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:hush:1"


def test_accepts_token_in_response_with_status_created(endpoint: Endpoint) -> None:
    endpoint.add_response({"access_token": "abc.def", "expires_in": 300}, status=201)
    assert source(endpoint).get_token() == "abc.def"


def test_can_url_encode_client_id_and_secret(endpoint: Endpoint) -> None:
    endpoint.add_response({"access_token": "t"})
    source(endpoint, urlencode_credentials=True, scope=None).get_token()
    ((_, headers, body),) = endpoint.requests
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:hush%3A1"
    assert body == "grant_type=client_credentials"


def test_renews_token_while_it_is_still_used(endpoint: Endpoint) -> None:
    clock = Clock()
    endpoint.add_response({"access_token": "first", "expires_in": 100})
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    tokens = source(endpoint, clock)
    assert [tokens.get_token() for _ in range(3)] == ["first"] * 3
    clock.seconds += 79
    assert tokens.get_token() == "first"
    clock.seconds += 2
    assert [tokens.get_token() for _ in range(3)] == ["first"] * 3
    assert len(endpoint.requests) == 1, "a thread that authenticates does not wait for the endpoint"
    clock.run_thread()
    assert tokens.get_token() == "second"
    assert (len(endpoint.requests), clock.later) == (2, [])


def create_source_of_two_tokens(endpoint: Endpoint) -> tuple[TokenSource, Clock, Clock]:
    """Create a source of the tokens "first" and "second", each valid for 100 s. Return its two clocks, too."""
    clock, time_of_day = Clock(seconds=50.0), Clock()
    endpoint.add_response({"access_token": "first", "expires_in": 100})
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    config = OidcConfig(endpoint.url, "me", "hush:1")
    tokens = TokenSource(config, now_s=clock.now_s, unix_time_s=time_of_day.now_s, run_in_background=clock.later.append)
    return tokens, clock, time_of_day


def test_token_expires_although_the_time_of_day_is_set_back(endpoint: Endpoint) -> None:
    tokens, clock, time_of_day = create_source_of_two_tokens(endpoint)
    assert tokens.get_token() == "first"
    clock.seconds += 100
    time_of_day.seconds -= 3600
    assert tokens.get_token() == "second"


def test_requests_token_that_expired_while_the_machine_was_suspended(endpoint: Endpoint) -> None:
    """The monotonic clock of Linux stops while a machine is suspended."""
    tokens, _, time_of_day = create_source_of_two_tokens(endpoint)
    assert tokens.get_token() == "first"
    time_of_day.seconds += 100
    assert tokens.get_token() == "second"


def test_renews_token_that_aged_while_the_machine_was_suspended(endpoint: Endpoint) -> None:
    tokens, clock, time_of_day = create_source_of_two_tokens(endpoint)
    assert tokens.get_token() == "first"
    time_of_day.seconds += 80
    assert tokens.get_token() == "first"
    clock.run_thread()
    assert tokens.get_token() == "second"


def test_lifetime_in_token_is_compared_with_the_time_of_day(endpoint: Endpoint) -> None:
    clock, time_of_day = Clock(seconds=50.0), Clock()
    first = build_unsecured_token({"exp": time_of_day.seconds + 100})
    endpoint.add_response({"access_token": first})
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    config = OidcConfig(endpoint.url, "me", "hush:1")
    tokens = TokenSource(config, now_s=clock.now_s, unix_time_s=time_of_day.now_s)
    assert [tokens.get_token(), tokens.get_token()] == [first, first]
    clock.seconds += 100
    assert tokens.get_token() == "second"


def test_renews_token_in_separate_thread(endpoint: Endpoint) -> None:
    clock, requested, may_respond = Clock(), threading.Event(), threading.Event()
    endpoint.add_response({"access_token": "first", "expires_in": 100})
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    config = OidcConfig(endpoint.url, "me", "hush:1")

    def now_s() -> float:
        if threading.current_thread() is not threading.main_thread():
            requested.set()
            may_respond.wait()
        return clock.seconds

    tokens = TokenSource(config, now_s=now_s, unix_time_s=now_s)
    tokens.get_token()
    clock.seconds += 80
    assert tokens.get_token() == "first"
    requested.wait()
    assert tokens.get_token() == "first", "the endpoint does not respond"
    may_respond.set()
    wait_until(lambda: tokens.get_token() == "second")


def test_requests_token_at_expiry_when_renewal_hangs(endpoint: Endpoint) -> None:
    clock = Clock()
    endpoint.add_response({"access_token": "first", "expires_in": 100})
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    tokens = source(endpoint, clock)
    tokens.get_token()
    clock.seconds += 80
    tokens.get_token()
    assert len(clock.later) == 1
    clock.seconds += 20
    assert tokens.get_token() == "second"


def test_uses_token_until_expiry_when_renewal_fails(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    endpoint.add_response({"access_token": "first", "expires_in": 100})
    endpoint.add_response({"error": "temporarily_unavailable"}, status=503)
    tokens = source(endpoint, clock)
    tokens.get_token()
    clock.seconds += 80
    tokens.get_token()
    clock.run_thread()
    assert [tokens.get_token() for _ in range(3)] == ["first"] * 3
    assert len(endpoint.requests) == 2, "neither for each connection nor several times"
    assert "which expires in at most 20 s: OAUTHBEARER: the token endpoint" in caplog.text
    clock.seconds += 11
    tokens.get_token()
    clock.run_thread()
    assert len(endpoint.requests) == 3
    clock.seconds += 10
    with pytest.raises(DisconnectedError, match="status 503"):
        tokens.get_token()
    assert len(endpoint.requests) == 4
    endpoint.responses = []
    endpoint.add_response({"access_token": "second", "expires_in": 100})
    assert tokens.get_token() == "second"


def test_reads_lifetime_from_token_without_expires_in(endpoint: Endpoint) -> None:
    clock = Clock()
    endpoint.add_response({"access_token": build_unsecured_token({"exp": clock.seconds + 100})})
    tokens = source(endpoint, clock)
    tokens.get_token()
    clock.seconds += 79
    tokens.get_token()
    assert len(endpoint.requests) == 1


def test_requests_token_without_lifetime_each_time(endpoint: Endpoint) -> None:
    endpoint.add_response({"access_token": "opaque"})
    tokens = source(endpoint)
    assert [tokens.get_token(), tokens.get_token()] == ["opaque"] * 2
    assert len(endpoint.requests) == 2


def test_reports_unavailable_endpoint_after_one_request(endpoint: Endpoint) -> None:
    """The client requests a token again when it reconnects. Until then, errors and logs name this failure."""
    endpoint.add_response(b"hush-2", 500)
    endpoint.add_response({"access_token": "t"})
    tokens = source(endpoint)
    with pytest.raises(DisconnectedError, match="status 500") as caught:
        tokens.get_token()
    assert len(endpoint.requests) == 1
    assert "hush" not in str(caught.value)
    assert tokens.get_token() == "t"


def test_unreachable_endpoint_is_a_disconnection() -> None:
    unreachable = r"the token endpoint 127\.0\.0\.1:9 cannot be used: ConnectionRefusedError .*this machine can reach"
    with pytest.raises(DisconnectedError, match=unreachable):
        source(Endpoint("http://127.0.0.1:9/")).get_token()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (400, "Check the client id, the client secret and the scope"),
        (401, "Check the client id, the client secret and the scope"),
        (301, "Redirects are not followed. Set sasl.oauthbearer.token.endpoint.url to the URL that"),
        (399, "Redirects are not followed."),
        (404, "Check the path of sasl.oauthbearer.token.endpoint.url"),
        (415, "Check the path of sasl.oauthbearer.token.endpoint.url"),
        (501, "Check the path of sasl.oauthbearer.token.endpoint.url"),
        (505, "Check the path of sasl.oauthbearer.token.endpoint.url"),
        (408, "Check the state of the identity provider"),
        (425, "Check the state of the identity provider"),
        (429, "Check the state of the identity provider"),
        (503, "Check the state of the identity provider"),
    ],
)
def test_error_of_endpoint_has_host_and_own_remedy(endpoint: Endpoint, status: int, remedy: str) -> None:
    endpoint.add_response(b"hush-5", status)
    is_temporary = status in (408, 425, 429, 503)
    with pytest.raises(DisconnectedError if is_temporary else AuthenticationError) as caught:
        source(endpoint).get_token()
    host = endpoint.url.split("/")[2]
    assert f"the token endpoint {host} " in str(caught.value)
    assert f"with status {status}. {remedy}" in str(caught.value)
    assert "broker" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"error": "invalid_client", "error_description": "hush-3"}, 401, "status 401: invalid_client"),
        ({"error": "<script>hush-3"}, 400, "status 400"),
        (b"hush-3", 404, "status 404"),
        ({"access_token": ""}, 200, "without an access_token"),
        ({"access_token": 7}, 200, "without an access_token"),
        (["access_token"], 200, "without an access_token"),
        (b"[" * 100_000, 200, "without an access_token"),
        (b"\xff", 200, "without an access_token"),
        (b"x" * (MAX_RESPONSE_BYTES + 1), 200, "exceeds"),
    ],
)
def test_does_not_retry_or_show_response_without_token(
    endpoint: Endpoint, content: object, status: int, message: str
) -> None:
    endpoint.add_response(content, status)
    with pytest.raises(AuthenticationError, match=message) as caught:
        source(endpoint).get_token()
    assert "hush" not in str(caught.value)
    assert len(endpoint.requests) == 1


def test_traceback_does_not_contain_invalid_http_response(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_http(connection: http.client.HTTPConnection) -> None:
        raise http.client.BadStatusLine("hush-4")

    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", no_http)
    endpoint.add_response(b"")
    with pytest.raises(DisconnectedError, match="cannot be used: BadStatusLine") as caught:
        source(endpoint, Clock()).get_token()
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_does_not_follow_redirects(endpoint: Endpoint) -> None:
    endpoint.headers["Location"] = endpoint.url + "&again"
    endpoint.add_response(b"", 302)
    with pytest.raises(AuthenticationError, match="status 302"):
        source(endpoint).get_token()
    assert len(endpoint.requests) == 1


def test_connections_with_same_configuration_share_token(endpoint: Endpoint) -> None:
    endpoint.add_response({"access_token": "shared", "expires_in": 300})
    prefix = "sasl.oauthbearer."
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        prefix + "token.endpoint.url": endpoint.url,
        prefix + "client.credentials.client.id": "me",
        prefix + "client.credentials.client.secret": "hush-4",
    }
    for _ in range(3):
        assert b"Bearer shared\x01" in parse_security_config(options).create_mechanism("broker").start()
    assert len(endpoint.requests) == 1


def https_options(url: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "hush-6",
    }


@pytest.fixture
def tls_endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """A token endpoint whose certificate is signed by `tmp_path / "ca.pem"`."""
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.pem")
    with serve_tokens(context) as state:
        state.add_response({"access_token": "private", "expires_in": 300})
        yield state


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_trusts_endpoint_with_certificate_from_truststore(
    tls_endpoint: Endpoint, tmp_path: Path, protocol: str
) -> None:
    options = https_options(tls_endpoint.url) | {
        "security.protocol": protocol,
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
    }
    config = pickle.loads(pickle.dumps(parse_security_config(options)))
    assert b"Bearer private\x01" in config.create_mechanism("broker").start()


def test_trusts_endpoint_of_system_authority_that_is_not_in_truststore(
    tls_endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    options = https_options(tls_endpoint.url) | {"ssl.truststore.location": str(tmp_path / "stranger-ca.pem")}
    assert b"Bearer private\x01" in parse_security_config(options).create_mechanism("broker").start()


@pytest.mark.parametrize("truststore", [None, "stranger-ca.pem"])
def test_untrusted_endpoint_error_names_truststore(
    tls_endpoint: Endpoint, tmp_path: Path, truststore: str | None
) -> None:
    options = https_options(tls_endpoint.url)
    if truststore is not None:
        options["ssl.truststore.location"] = str(tmp_path / truststore)
    with pytest.raises(AuthenticationError) as caught:
        parse_security_config(options).create_mechanism("broker")
    text = str(caught.value)
    assert f"the token endpoint {tls_endpoint.url.split('/')[2]} cannot be used: the endpoint's certificate is" in text
    assert "add the issuer's certificate to ssl.truststore.location or ssl.truststore.certificates. Check" in text
    assert text.endswith("verified against the system's authorities and those in ssl.truststore.*.")
    assert not tls_endpoint.requests


def test_checks_host_name_of_endpoint_even_if_brokers_names_are_not_checked(
    tls_endpoint: Endpoint, tmp_path: Path
) -> None:
    options = https_options(tls_endpoint.url.replace("localhost", "127.0.0.1")) | {
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "",
    }
    with pytest.raises(AuthenticationError, match=r"correct the host in sasl\.oauthbearer\.token\.endpoint\.url"):
        parse_security_config(options).create_mechanism("broker")


def test_truststore_that_cannot_be_read_is_an_authentication_error(tmp_path: Path) -> None:
    options = https_options("https://localhost:9/") | {"ssl.truststore.location": str(tmp_path / "missing.pem")}
    with pytest.raises(AuthenticationError) as caught:
        parse_security_config(options).create_mechanism("broker")
    assert str(caught.value) == (
        f"OAUTHBEARER: ssl.truststore.location is {tmp_path}/missing.pem, which cannot be read on this machine: No "
        "such file or directory. Correct the truststore, which is also used for the token endpoint. If it is a file, "
        "the file must be readable at that path on every machine that connects to Kafka."
    )


def test_validates_truststore_of_plaintext_listener_only_for_https_endpoint() -> None:
    options = https_options("https://login.example.com/token") | {
        "security.protocol": "SASL_PLAINTEXT",
        "ssl.truststore.type": "BKS",
    }
    with pytest.raises(ConfigurationError, match=r"ssl\.truststore\.type must be one of"):
        parse_security_config(options)
    parse_security_config(options | {"sasl.oauthbearer.token.endpoint.url": "http://localhost/token"})


def test_slow_token_response_fails_at_read_timeout() -> None:
    """The endpoint sends bytes continuously, but never a complete response."""
    gone = threading.Event()

    class Dripping(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                while not gone.wait(0.01):
                    self.wfile.write(b"H")
            except OSError:
                gone.set()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    config = OidcConfig(f"http://127.0.0.1:{server.server_port}/", "me", "secret", read_timeout_ms=150)
    try:
        with pytest.raises(DisconnectedError, match=r"token endpoint .* cannot be used"):
            TokenSource(config).get_token()
    finally:
        gone.set()
        server.shutdown()
        thread.join()
        server.server_close()
