"""The client of a schema registry, and that the fake one answers as real ones do."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.support.certificates import write_certificates
from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.schema_registry import (
    MAX_RESPONSE_BYTES,
    MAX_RETRIES,
    RegistryConfig,
    SchemaRegistryClient,
    parse_registry_urls,
)
from spark_kafka_sink.network.security.tls_context import StoreConfig, TlsConfig
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.registry_contract import RegistryContract, avro_schema


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


class TestTheFake(RegistryContract):
    @pytest.fixture
    def registry_url(self, fake: FakeRegistry) -> str:
        return fake.url


def test_a_schema_that_is_not_compatible_is_refused_with_what_to_do(fake: FakeRegistry) -> None:
    registry = SchemaRegistryClient(RegistryConfig((fake.url,)))
    registry.register("t-value", avro_schema("a"))
    with pytest.raises(SchemaRegistryError, match="incompatible with earlier versions of subject 't-value'"):
        registry.register("t-value", avro_schema("a", "b"))


def test_the_same_question_is_asked_once(fake: FakeRegistry) -> None:
    registry = SchemaRegistryClient(RegistryConfig((fake.url,)))
    for _ in range(3):
        registry.register("t-value", avro_schema("a"))
        registry.get_latest("t-value", start="of a stream")
    assert len(fake.requests) == 2
    registry.get_latest("t-value")
    registry.get_latest("t-value")
    assert len(fake.requests) == 4, "a job wants what is newest now"


def test_a_subject_of_any_characters_is_asked_for_by_its_name(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,))).register("a/b?c value", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/a%2Fb%3Fc%20value/versions")]
    assert list(fake.subjects) == ["a/b?c value"]


def test_normal_forms_are_asked_for(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,), normalize=True)).register("s", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/s/versions?normalize=true")]


def test_a_busy_registry_is_asked_again(fake: FakeRegistry) -> None:
    fake.failing = [503, 429]
    assert SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a")) == 1
    assert len(fake.requests) == 3


class Clock:
    """Time goes on where the client waits, and there alone."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waits: list[float] = []

    def now_s(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds


def registry_with(clock: Clock, fake: FakeRegistry, timeout_ms: int = 30_000) -> SchemaRegistryClient:
    config = RegistryConfig((fake.url,), timeout_ms=timeout_ms)
    return SchemaRegistryClient(config, now_s=clock.now_s, sleep=clock.sleep)


def test_a_wait_that_a_registry_asks_for_is_kept_and_logged(
    fake: FakeRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fake.failing, fake.retry_after = [429, 503], "7"
    assert registry_with(clock, fake).register("s", avro_schema("a")) == 1
    assert clock.waits == [7.0, 7.0]
    assert f"failed ({fake.url}: status 429 not now). Retrying in 7.0 s." in caplog.text


@pytest.mark.parametrize("retry_after", ["21600", "30", "9" * 400])
def test_a_wait_beyond_the_time_of_the_question_is_not_begun(fake: FakeRegistry, retry_after: str) -> None:
    clock = Clock()
    fake.failing, fake.retry_after = [429] * 20, retry_after
    with pytest.raises(
        SchemaRegistryError, match=r"status 429.* 30000 ms for all attempts \(schema.registry.request.timeout.ms\)"
    ):
        registry_with(clock, fake).register("s", avro_schema("a"))
    assert clock.waits == []
    assert len(fake.requests) == 1


def test_tries_and_waits_have_one_time_together(fake: FakeRegistry) -> None:
    clock = Clock()
    fake.failing, fake.retry_after = [429] * 20, "20"
    with pytest.raises(SchemaRegistryError, match=r"the requested backoff is 20 s, but only 10\.0 s remain"):
        registry_with(clock, fake).register("s", avro_schema("a"))
    assert clock.waits == [20.0]
    with pytest.raises(SchemaRegistryError, match="failed after 2 attempts"):
        registry_with(clock, fake).register("s", avro_schema("a"))


@pytest.mark.parametrize("date", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "1e9", "\u0663"])
def test_what_is_no_number_of_seconds_is_no_wait(fake: FakeRegistry, date: str) -> None:
    clock = Clock()
    fake.failing, fake.retry_after = [503], date.encode().decode("latin-1")
    assert registry_with(clock, fake).register("s", avro_schema("a")) == 1
    assert clock.waits == [0.1]


@contextmanager
def served(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The address of a server that talks so to each client, until the block ends."""
    gone = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                talk(self.request, gone)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        gone.set()
        server.shutdown()
        thread.join()
        server.server_close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def drips(begin: bytes, drop: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def talk(client: socket.socket, gone: threading.Event) -> None:
        client.sendall(begin)
        while not gone.wait(0.01):
            client.sendall(drop)

    return talk


def is_silent(_client: socket.socket, gone: threading.Event) -> None:
    gone.wait()


@pytest.mark.parametrize(
    "talk",
    [
        drips(b"", b"H"),
        drips(HEAD, b"x-a: b\r\n"),
        drips(HEAD + b"\r\n", b" "),
        drips(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
        drips(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        is_silent,
    ],
    ids=["status line", "headers", "body without a length", "body", "chunks", "silence"],
)
def test_a_registry_that_drips_its_answer_has_the_time_of_the_question(
    talk: Callable[[socket.socket, threading.Event], None],
) -> None:
    """Each byte comes in time; the answer never does."""
    with served(talk) as url, pytest.raises(SchemaRegistryError, match=r"the schema registry failed .*TimeoutError"):
        SchemaRegistryClient(RegistryConfig((url,), timeout_ms=200)).get_latest("s")


def test_a_silent_registry_is_not_said_to_ask_for_a_wait() -> None:
    with served(is_silent) as url, pytest.raises(SchemaRegistryError, match="the schema registry failed") as failed:
        SchemaRegistryClient(RegistryConfig((url,), timeout_ms=100)).get_latest("s")
    assert "requested backoff" not in str(failed.value)


def test_names_tls_options_with_the_prefix_of_the_registry() -> None:
    tls = TlsConfig(identity=StoreConfig("/etc/ssl.keystore.location/gone.pem"))
    with pytest.raises(ConfigurationError) as rejected:
        SchemaRegistryClient(RegistryConfig(("https://registry",), tls=tls))
    assert "schema.registry.ssl.keystore.location is /etc/ssl.keystore.location/gone.pem, which cannot" in str(
        rejected.value
    )


def test_the_next_address_has_its_share_of_the_time_where_one_is_silent(fake: FakeRegistry) -> None:
    with served(is_silent) as silent:
        registry = SchemaRegistryClient(RegistryConfig((silent, fake.url), timeout_ms=2_000))
        assert registry.register("s", avro_schema("a")) == 1


@pytest.mark.parametrize("size", [b"-1", b"-5", b"-FFFFFFFF"])
def test_rejects_a_chunk_of_negative_size(size: bytes) -> None:
    chunk = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + b" " * 100
    with served(lambda client, _: client.sendall(chunk)) as url:
        clock = Clock()
        registry = SchemaRegistryClient(RegistryConfig((url,)), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match=r"the schema registry failed .*(HTTPException|IncompleteRead)"):
            registry.get_latest("s")


def test_an_answer_that_is_cut_off_is_none(fake: FakeRegistry) -> None:
    cut = HEAD + b'Content-Length: 100\r\n\r\n{"id": 1}'
    with served(lambda client, _: client.sendall(cut)) as url:
        clock = Clock()
        registry = SchemaRegistryClient(RegistryConfig((url,)), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match=r"the schema registry failed .*IncompleteRead"):
            registry.get_latest("s")


def test_an_answer_that_never_ends_is_refused() -> None:
    def talk(client: socket.socket, gone: threading.Event) -> None:
        client.sendall(HEAD + b"\r\n")
        while not gone.is_set():
            client.sendall(b"x" * 65_536)

    too_long = f"the answer exceeds {MAX_RESPONSE_BYTES} bytes"
    with served(talk) as url, pytest.raises(SchemaRegistryError, match=too_long):
        SchemaRegistryClient(RegistryConfig((url,))).get_latest("s")


EVIL = "no\n2026-01-01 ERROR all is well\x1b[2J\x00\u202e" + "x" * 100_000
SECRETS = ("alice:s3cret", "s3cret", base64.b64encode(b"alice:s3cret").decode(), "t0ken")


@pytest.mark.parametrize("credentials", [{"user_info": "alice:s3cret"}, {"token": "t0ken"}])
@pytest.mark.parametrize("status", [400, 409, 418, 422, 503])
def test_what_a_registry_says_is_on_one_line_without_the_credentials_it_was_sent(
    fake: FakeRegistry, credentials: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fake.failing, fake.message = [status] * 20, f"you said {' '.join(SECRETS)}: {EVIL}"
    config = RegistryConfig((fake.url,), **credentials)  # type: ignore[arg-type]
    with pytest.raises(SchemaRegistryError, match=r"you said .*\*\*\*") as refused:
        SchemaRegistryClient(config, now_s=clock.now_s, sleep=clock.sleep).register("s", avro_schema("a"))
    for words in (str(refused.value), *(record.getMessage() for record in caplog.records)):
        assert words.isprintable()
        assert len(words) < 2_000
        assert not [secret for secret in SECRETS if secret in words and ("token" in credentials) == (secret == "t0ken")]


def test_what_comes_in_place_of_http_is_not_repeated() -> None:
    clock = Clock()
    with served(lambda client, _: client.sendall(b"t0ken \x1b[2J\r\n\r\n")) as url:
        registry = SchemaRegistryClient(RegistryConfig((url,), token="t0ken"), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match="BadStatusLine") as refused:
            registry.get_latest("s")
    assert "t0ken" not in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_registry_that_stays_busy_is_given_up_with_its_address(fake: FakeRegistry) -> None:
    fake.failing = [503] * 20
    with pytest.raises(SchemaRegistryError, match=f"registry failed .*{fake.url}.* 503.*Check schema.registry.url"):
        SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a"))
    assert len(fake.requests) == 1 + MAX_RETRIES


def test_the_next_address_is_asked_where_one_is_down(fake: FakeRegistry) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        registry = SchemaRegistryClient(RegistryConfig((down, fake.url)))
        assert registry.register("s", avro_schema("a")) == 1
        with pytest.raises(SchemaRegistryError, match="the schema registry failed"):
            SchemaRegistryClient(RegistryConfig((down,))).register("s", avro_schema("a"))


def test_users_are_asked_for_their_password(fake: FakeRegistry) -> None:
    fake.user_info = "alice:s3cret"
    registry = SchemaRegistryClient(RegistryConfig((fake.url,), user_info="alice:s3cret"))
    assert registry.register("s", avro_schema("a")) == 1
    for config, words in (
        (RegistryConfig((fake.url,), user_info="alice:wrong"), "check the credentials in schema.registry.basic.auth"),
        (RegistryConfig((fake.url,), token="t0ken"), "check the token in schema.registry.bearer.auth.token"),
        (RegistryConfig((fake.url,)), "no credentials: set schema.registry.basic.auth.user.info or"),
    ):
        with pytest.raises(SchemaRegistryError, match=words):
            SchemaRegistryClient(config).register("s", avro_schema("a"))


def test_a_token_is_sent(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,), token="t0ken")).register("s", avro_schema("a"))
    assert fake.headers[0]["authorization"] == "Bearer t0ken"


def test_no_secret_is_in_the_repr() -> None:
    shown = repr(RegistryConfig(("https://r",), user_info="alice:s3cret", token="t0ken"))
    assert "s3cret" not in shown
    assert "t0ken" not in shown


def test_credentials_over_http_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    RegistryConfig(("http://localhost:8081",), user_info="a:b")
    assert not caplog.records
    RegistryConfig(("http://registry:8081",), user_info="a:b")
    assert "credentials are sent in cleartext" in caplog.text


def test_schemas_that_refer_to_others_are_refused(fake: FakeRegistry) -> None:
    fake.subjects["s"] = [(1, {"schema": "{}", "references": [{"name": "x", "subject": "y", "version": 1}]})]
    with pytest.raises(SchemaRegistryError, match="references to other subjects"):
        SchemaRegistryClient(RegistryConfig((fake.url,))).get_latest("s")


def test_an_answer_without_an_id_is_refused(fake: FakeRegistry) -> None:
    for number in (1 << 31, -1, True, "1", 1.0, None):
        fake.subjects["s"] = [(number, {"schema": "{}"})]  # type: ignore[list-item]
        with pytest.raises(SchemaRegistryError, match="has no valid schema id"):
            SchemaRegistryClient(RegistryConfig((fake.url,))).get_latest("s")


def test_tls_is_checked_and_the_client_identifies_itself(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with fake_registry(context) as fake:
        trust, identity = StoreConfig(str(tmp_path / "ca.pem")), StoreConfig(str(tmp_path / "client.pem"))
        tls = TlsConfig(trust=trust, identity=identity)
        assert SchemaRegistryClient(RegistryConfig((fake.url,), tls=tls)).register("s", avro_schema("a")) == 1
        for wrong in (TlsConfig(), TlsConfig(trust=StoreConfig(str(tmp_path / "stranger-ca.pem")))):
            with pytest.raises(SchemaRegistryError, match="CERTIFICATE_VERIFY_FAILED"):
                SchemaRegistryClient(RegistryConfig((fake.url,), tls=wrong)).register("s", avro_schema("a"))


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        ("", "schema.registry.url is not set"),
        ("registry:8081", "must begin with https:// or http://"),
        ("https://alice:s3cret@registry", "must have no user and password in it; set schema.registry.basic.auth"),
        ("https://registry:port", "is not an address"),
        ("https://a..registry" + "x" * 300, "is not an address"),
        ("https://registry/#part", "is not an address"),
        ("https://registry/?apikey=s3cret", "must have no query"),
        ("https://registry/\n2026-01-01 ERROR s3cret", "must have no blanks, line breaks"),
        ("https://regi\rstry", "must have no blanks, line breaks"),
        ("https://registry/\u202e", "must have no blanks, line breaks"),
    ],
)
def test_addresses_are_checked_and_not_repeated(urls: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_registry_urls(urls)
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)
