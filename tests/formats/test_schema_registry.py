"""Client of the schema registry, and contract tests of the fake registry."""

from __future__ import annotations

import base64
import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spark_kafka_sink.errors import ConfigurationError, SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import (
    MAX_RESPONSE_BYTES,
    MAX_RETRIES,
    RegistryConfig,
    parse_registry_urls,
)
from spark_kafka_sink.formats.schema_registry import SchemaRegistryClient
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.registry_contract import RegistryContract, avro_schema


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


class TestFakeRegistry(RegistryContract):
    @pytest.fixture
    def registry_url(self, fake: FakeRegistry) -> str:
        return fake.url


def test_rejects_incompatible_schema_with_remedy(fake: FakeRegistry) -> None:
    registry = SchemaRegistryClient(RegistryConfig((fake.url,)))
    registry.register("t-value", avro_schema("a"))
    with pytest.raises(SchemaRegistryError, match="incompatible with earlier versions of subject 't-value'"):
        registry.register("t-value", avro_schema("a", "b"))


def test_caches_ids_but_not_latest_schema_of_jobs(fake: FakeRegistry) -> None:
    registry = SchemaRegistryClient(RegistryConfig((fake.url,)))
    for _ in range(3):
        registry.register("t-value", avro_schema("a"))
        registry.get_latest("t-value", stream_start_id="1")
    assert len(fake.requests) == 2
    registry.get_latest("t-value")
    registry.get_latest("t-value")
    assert len(fake.requests) == 4, "a batch job always fetches the latest version"


def test_registers_again_after_a_minute_but_keeps_latest_schema_of_stream(fake: FakeRegistry) -> None:
    clock = Clock()
    registry = make_client(clock, fake)
    for seconds in (0, 59, 2):
        clock.sleep(seconds)
        registry.register("t-value", avro_schema("a"))
        registry.get_latest("t-value", stream_start_id="1")
    assert [method for method, _ in fake.requests] == ["POST", "GET", "POST"]


def test_escapes_subject_in_url(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,))).register("a/b?c value", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/a%2Fb%3Fc%20value/versions")]
    assert list(fake.subjects) == ["a/b?c value"]


def test_requests_normalization(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,), normalize=True)).register("s", avro_schema("a"))
    assert fake.requests == [("POST", "/subjects/s/versions?normalize=true")]


def test_retries_when_registry_is_busy(fake: FakeRegistry) -> None:
    fake.error_statuses = [503, 429]
    assert SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a")).id == 1
    assert len(fake.requests) == 3


class Clock:
    """Clock that advances only when the client sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sleeps: list[float] = []

    def now_s(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds


def make_client(clock: Clock, fake: FakeRegistry, timeout_ms: int = 30_000) -> SchemaRegistryClient:
    config = RegistryConfig((fake.url,), timeout_ms=timeout_ms)
    return SchemaRegistryClient(config, now_s=clock.now_s, sleep=clock.sleep)


def test_honors_and_logs_retry_after(fake: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    fake.error_statuses, fake.retry_after = [429, 503], "7"
    assert make_client(clock, fake).register("s", avro_schema("a")).id == 1
    assert clock.sleeps == [7.0, 7.0]
    assert f"failed ({fake.url}: status 429 not now). Retrying in 7.0 s." in caplog.text


@pytest.mark.parametrize("retry_after", ["21600", "30", "9" * 400])
def test_fails_immediately_when_retry_after_exceeds_timeout(fake: FakeRegistry, retry_after: str) -> None:
    clock = Clock()
    fake.error_statuses, fake.retry_after = [429] * 20, retry_after
    with pytest.raises(
        SchemaRegistryError, match=r"status 429.* 30000 ms for all attempts \(schema.registry.request.timeout.ms\)"
    ):
        make_client(clock, fake).register("s", avro_schema("a"))
    assert clock.sleeps == []
    assert len(fake.requests) == 1


def test_timeout_includes_retries_and_backoffs(fake: FakeRegistry) -> None:
    clock = Clock()
    fake.error_statuses, fake.retry_after = [429] * 20, "20"
    with pytest.raises(SchemaRegistryError, match=r"the requested backoff is 20 s, but only 10\.0 s remain"):
        make_client(clock, fake).register("s", avro_schema("a"))
    assert clock.sleeps == [20.0]
    with pytest.raises(SchemaRegistryError, match="failed after 2 attempts"):
        make_client(clock, fake).register("s", avro_schema("a"))


@pytest.mark.parametrize("date", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "1e9", "\u0663"])
def test_ignores_retry_after_that_is_not_a_number_of_seconds(fake: FakeRegistry, date: str) -> None:
    clock = Clock()
    fake.error_statuses, fake.retry_after = [503], date.encode().decode("latin-1")
    assert make_client(clock, fake).register("s", avro_schema("a")).id == 1
    assert clock.sleeps == [0.1]


@contextmanager
def serve(handle_client: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Run a server that calls `handle_client` for each connection, and return its URL."""
    stopped = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                handle_client(self.request, stopped)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


RESPONSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def send_slowly(prefix: bytes, chunk: bytes) -> Callable[[socket.socket, threading.Event], None]:
    def handle_client(client: socket.socket, stopped: threading.Event) -> None:
        client.sendall(prefix)
        while not stopped.wait(0.01):
            client.sendall(chunk)

    return handle_client


def never_respond(_client: socket.socket, stopped: threading.Event) -> None:
    stopped.wait()


@pytest.mark.parametrize(
    "handle_client",
    [
        send_slowly(b"", b"H"),
        send_slowly(RESPONSE_HEAD, b"x-a: b\r\n"),
        send_slowly(RESPONSE_HEAD + b"\r\n", b" "),
        send_slowly(RESPONSE_HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
        send_slowly(RESPONSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        never_respond,
    ],
    ids=["status line", "headers", "body without a length", "body", "chunks", "silence"],
)
def test_times_out_when_response_arrives_byte_by_byte(
    handle_client: Callable[[socket.socket, threading.Event], None],
) -> None:
    """No single read times out, because each byte arrives in time."""
    with serve(handle_client) as url, pytest.raises(SchemaRegistryError, match=r"registry failed .*TimeoutError"):
        SchemaRegistryClient(RegistryConfig((url,), timeout_ms=200)).get_latest("s")


def test_unresponsive_registry_error_mentions_no_backoff() -> None:
    with serve(never_respond) as url, pytest.raises(SchemaRegistryError, match="the schema registry failed") as caught:
        SchemaRegistryClient(RegistryConfig((url,), timeout_ms=100)).get_latest("s")
    assert "requested backoff" not in str(caught.value)


def test_tries_next_url_when_one_is_unresponsive(fake: FakeRegistry) -> None:
    with serve(never_respond) as unresponsive_url:
        registry = SchemaRegistryClient(RegistryConfig((unresponsive_url, fake.url), timeout_ms=2_000))
        assert registry.register("s", avro_schema("a")).id == 1


@pytest.mark.parametrize("size", [b"-1", b"-5", b"-FFFFFFFF"])
def test_rejects_chunk_of_negative_size(size: bytes) -> None:
    chunk = RESPONSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + b" " * 100
    with serve(lambda client, _: client.sendall(chunk)) as url:
        clock = Clock()
        registry = SchemaRegistryClient(RegistryConfig((url,)), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match=r"the schema registry failed .*(HTTPException|IncompleteRead)"):
            registry.get_latest("s")


def test_rejects_truncated_response(fake: FakeRegistry) -> None:
    cut = RESPONSE_HEAD + b'Content-Length: 100\r\n\r\n{"id": 1}'
    with serve(lambda client, _: client.sendall(cut)) as url:
        clock = Clock()
        registry = SchemaRegistryClient(RegistryConfig((url,)), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match=r"the schema registry failed .*IncompleteRead"):
            registry.get_latest("s")


def test_rejects_endless_response() -> None:
    def handle_client(client: socket.socket, stopped: threading.Event) -> None:
        client.sendall(RESPONSE_HEAD + b"\r\n")
        while not stopped.is_set():
            client.sendall(b"x" * 65_536)

    too_long = f"the response exceeds {MAX_RESPONSE_BYTES} bytes: check the path of schema.registry.url.$"
    with serve(handle_client) as url, pytest.raises(SchemaRegistryError, match=too_long):
        SchemaRegistryClient(RegistryConfig((url,))).get_latest("s")


HOSTILE_TEXT = "no\n2026-01-01 ERROR all is well\x1b[2J\x00\u202e" + "x" * 100_000
SECRETS = ("alice:s3cret", "s3cret", base64.b64encode(b"alice:s3cret").decode(), "t0ken")


@pytest.mark.parametrize("credentials", [{"user_info": "alice:s3cret"}, {"token": "t0ken"}])
@pytest.mark.parametrize("status", [400, 401, 403, 409, 418, 422, 503])
def test_registry_messages_are_one_line_without_credentials(
    fake: FakeRegistry, credentials: dict[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fake.error_statuses, fake.error_message = [status] * 20, f"you said {' '.join(SECRETS)}: {HOSTILE_TEXT}"
    config = RegistryConfig((fake.url,), **credentials)  # type: ignore[arg-type]
    with pytest.raises(SchemaRegistryError, match=r"you said .*\*\*\*") as caught:
        SchemaRegistryClient(config, now_s=clock.now_s, sleep=clock.sleep).register("s", avro_schema("a"))
    for message in (str(caught.value), *(record.getMessage() for record in caplog.records)):
        assert message.isprintable()
        assert len(message) < 2_000
        sent_secrets = [secret for secret in SECRETS if ("token" in credentials) == (secret == "t0ken")]
        assert not [secret for secret in sent_secrets if secret in message]


def test_error_does_not_repeat_invalid_http_response() -> None:
    clock = Clock()
    with serve(lambda client, _: client.sendall(b"t0ken \x1b[2J\r\n\r\n")) as url:
        registry = SchemaRegistryClient(RegistryConfig((url,), token="t0ken"), now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match="BadStatusLine") as caught:
            registry.get_latest("s")
    assert "t0ken" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_gives_up_with_url_when_registry_stays_busy(fake: FakeRegistry) -> None:
    fake.error_statuses, fake.error_message = [503] * 20, "not now."
    clock, urls = Clock(), (fake.url, f"{fake.url}/2")
    with pytest.raises(SchemaRegistryError) as caught:
        SchemaRegistryClient(RegistryConfig(urls), now_s=clock.now_s, sleep=clock.sleep).register("s", avro_schema("a"))
    assert f": {urls[0]}: status 503 not now; {urls[1]}: status 503 not now. The timeout" in str(caught.value)
    assert str(caught.value).endswith("Check the state of the schema registry, and try again later.")
    assert len(fake.requests) == 2 * (1 + MAX_RETRIES)


def test_gives_up_with_remedy_for_address_when_one_url_does_not_respond(fake: FakeRegistry) -> None:
    fake.error_statuses = [503] * 20
    clock = Clock()
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        config = RegistryConfig((fake.url, f"http://127.0.0.1:{reserved.getsockname()[1]}"))
        registry = SchemaRegistryClient(config, now_s=clock.now_s, sleep=clock.sleep)
        with pytest.raises(SchemaRegistryError, match=r"503.*Check schema\.registry\.url, and that the driver"):
            registry.register("s", avro_schema("a"))


def test_tries_next_url_when_one_is_down(fake: FakeRegistry) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        registry = SchemaRegistryClient(RegistryConfig((down, fake.url)))
        assert registry.register("s", avro_schema("a")).id == 1
        with pytest.raises(SchemaRegistryError, match="the schema registry failed"):
            SchemaRegistryClient(RegistryConfig((down,))).register("s", avro_schema("a"))


def test_credentials_errors_name_option(fake: FakeRegistry) -> None:
    fake.user_info = "alice:s3cret"
    registry = SchemaRegistryClient(RegistryConfig((fake.url,), user_info="alice:s3cret"))
    assert registry.register("s", avro_schema("a")).id == 1
    for config, message in (
        (RegistryConfig((fake.url,), user_info="alice:wrong"), "Check the credentials in schema.registry.basic.auth"),
        (RegistryConfig((fake.url,), token="t0ken"), "Check the token in schema.registry.bearer.auth.token"),
        (RegistryConfig((fake.url,)), "The request had no credentials. Set schema.registry.basic.auth.user.info or"),
    ):
        with pytest.raises(SchemaRegistryError, match=rf"\(status 401\): Unauthorized\. {message}"):
            SchemaRegistryClient(config).register("s", avro_schema("a"))


def test_credentials_error_without_message_of_registry(fake: FakeRegistry) -> None:
    fake.error_statuses, fake.error_message = [403], ""
    with pytest.raises(SchemaRegistryError, match=r"\(status 403\)\. The request had no credentials\. Set "):
        SchemaRegistryClient(RegistryConfig((fake.url,))).get_latest("s")


USES: list[Callable[[SchemaRegistryClient], object]] = [
    lambda registry: registry.register("s", avro_schema("a")),
    lambda registry: registry.lookup("s", avro_schema("a")),
    lambda registry: registry.get_latest("s"),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("error_code", "message"), [(404, "HTTP 404 Not Found"), (0, "")])
def test_status_404_without_registry_error_code_blames_url(
    fake: FakeRegistry, use: Callable[[SchemaRegistryClient], object], error_code: int, message: str
) -> None:
    fake.error_statuses, fake.error_code, fake.error_message = [404], error_code, message
    with pytest.raises(SchemaRegistryError) as caught:
        use(SchemaRegistryClient(RegistryConfig((f"{fake.url}/apis",), user_info="alice:s3cret")))
    text = str(caught.value)
    assert text.startswith(f"{fake.url}/apis/subjects/s")
    assert f"responded with status 404{f': {message}' if message else ', which is not'}" in text
    assert text.endswith("Check the path of schema.registry.url.")
    assert "schemaSource" not in text


def test_error_masks_credentials_in_url(fake: FakeRegistry) -> None:
    fake.error_statuses, fake.error_code = [404], 404
    with pytest.raises(SchemaRegistryError, match="status 404") as caught:
        SchemaRegistryClient(RegistryConfig((f"{fake.url}/t0ken",), token="t0ken")).get_latest("s")
    assert "t0ken" not in str(caught.value)


REDIRECT_REMEDY = (
    "Redirects are not followed. Set schema.registry.url to the URL of the schema registry, without "
    "/subjects/s/versions."
)
PATH_REMEDY = "Check the path of schema.registry.url."
SERVER_REMEDY = "Check the log of the server or proxy at this URL."


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (201, SERVER_REMEDY),
        (300, REDIRECT_REMEDY),
        (301, REDIRECT_REMEDY),
        (308, REDIRECT_REMEDY),
        (404, PATH_REMEDY),
        (405, PATH_REMEDY),
        (407, SERVER_REMEDY),
        (413, SERVER_REMEDY),
        (520, SERVER_REMEDY),
    ],
)
def test_rejection_without_message_has_remedy_for_status(fake: FakeRegistry, status: int, remedy: str) -> None:
    fake.error_statuses, fake.error_message = [status], ""
    with pytest.raises(SchemaRegistryError) as caught:
        SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a"))
    assert f"status {status}, which is not the response of a schema registry. {remedy}" in str(caught.value)


@pytest.mark.parametrize(("status", "remedy"), [(308, REDIRECT_REMEDY), (404, PATH_REMEDY)])
def test_message_of_other_server_is_followed_by_one_full_stop(fake: FakeRegistry, status: int, remedy: str) -> None:
    fake.error_statuses, fake.error_code, fake.error_message = [status], 0, "Not here."
    with pytest.raises(SchemaRegistryError, match=rf"status {status}: Not here\. {remedy}$"):
        SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a"))


def test_registration_that_finds_no_schema_is_not_told_to_register(fake: FakeRegistry) -> None:
    fake.error_statuses, fake.error_code, fake.error_message = [404], 40403, "Schema not found"
    with pytest.raises(SchemaRegistryError, match=r"subject 's' \(status 404\): Schema not found$"):
        SchemaRegistryClient(RegistryConfig((fake.url,))).register("s", avro_schema("a"))


def test_retries_lookup_after_registration_until_follower_has_schema(fake: FakeRegistry) -> None:
    clock = Clock()
    registry = make_client(clock, fake)
    schema_id = registry.register("s", avro_schema("a")).id
    fake.error_statuses, fake.error_code, fake.error_message = [404, 404], 40403, "Schema not found"
    assert registry.lookup("s", avro_schema("a"), after_registration=True).id == schema_id


def test_sends_bearer_token(fake: FakeRegistry) -> None:
    SchemaRegistryClient(RegistryConfig((fake.url,), token="t0ken")).register("s", avro_schema("a"))
    assert fake.headers[0]["authorization"] == "Bearer t0ken"


def test_repr_contains_no_secrets() -> None:
    text = repr(RegistryConfig(("https://r",), user_info="alice:s3cret", token="t0ken"))
    assert "s3cret" not in text
    assert "t0ken" not in text


def test_warns_about_credentials_over_http(caplog: pytest.LogCaptureFixture) -> None:
    RegistryConfig(("http://localhost:8081",), user_info="a:b")
    assert not caplog.records
    RegistryConfig(("http://registry:8081",), user_info="a:b")
    assert "sends the credentials unencrypted. Use https." in caplog.text


def test_rejects_response_without_valid_id(fake: FakeRegistry) -> None:
    for number in (1 << 31, -1, True, "1", 1.0, None):
        fake.subjects["s"] = [(number, {"schema": "{}"})]  # type: ignore[list-item]
        with pytest.raises(SchemaRegistryError, match="has no valid schema id"):
            SchemaRegistryClient(RegistryConfig((fake.url,))).get_latest("s")


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ("", "schema.registry.url is not set"),
        ("registry:8081", "must begin with https:// or http://"),
        ("https://alice:s3cret@registry", "must not contain a user name and password; set schema.registry.basic.auth"),
        ("https://registry:port", "is not a valid URL"),
        ("https://a..registry" + "x" * 300, "is not a valid URL"),
        ("https://registry/#part", "is not a valid URL"),
        ("https://registry/?apikey=s3cret", "must have no query"),
        ("https://registry/\n2026-01-01 ERROR s3cret", "must not contain spaces, line breaks"),
        ("https://regi\rstry", "must not contain spaces, line breaks"),
        ("https://registry/\u202e", "must not contain spaces, line breaks"),
    ],
)
def test_rejects_invalid_urls_without_repeating_them(urls: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_registry_urls(urls)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)
