"""The transports of OpenLineage events and their settings, and the thread that sends the events."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openlineage.client.event_v2 import RunEvent
from openlineage.client.transport import Transport

from spark_kafka_sink.spark import lineage_sender
from spark_kafka_sink.spark.lineage import flush_events, prepare_lineage
from spark_kafka_sink.spark.lineage_sender import EventSender
from tests.spark.lineage_cases import (
    API_KEY,
    OPTIONS,
    collect_events,
    create_spark_write,
    plan_lineage_write,
)
from tests.spark.lineage_cases import no_senders as no_senders
from tests.spark.lineage_cases import server as server
from tests.spark.lineage_server import LineageServer


def test_event_is_sent_to_endpoint_with_credentials(server: LineageServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        write = plan_lineage_write(
            server,
            {
                "transport.endpoint": "api/2.1/lineage",
                "transport.auth.type": "api_key",
                "transport.auth.apiKey": API_KEY,
                "transport.headers.X_Token": "header-secret",
                "transport.compression": "gzip",
            },
        )
        with write.trace_save():
            pass
        flush_events(60)
    assert server.paths[0] == "/api/2.1/lineage"
    assert server.headers[0]["Authorization"] == f"Bearer {API_KEY}"
    assert server.headers[0]["X_Token"] == "header-secret"
    for secret in (API_KEY, "header-secret"):
        assert secret not in caplog.text
        assert secret not in repr(server.events) + repr(write) + repr(write.options())


def test_api_key_in_url_is_a_credential(server: LineageServer) -> None:
    with plan_lineage_write(server, {"transport.url": f"{server.url}/ignored?api_key={API_KEY}&team=a"}).trace_save():
        pass
    flush_events(60)
    assert server.headers[0]["Authorization"] == f"Bearer {API_KEY}"
    assert server.paths[0] == "/api/v1/lineage?team=a"


def test_rejected_events_are_logged_once(server: LineageServer, caplog: pytest.LogCaptureFixture) -> None:
    server.status = 401
    for _ in range(2):
        with plan_lineage_write(server, {"transport.urlParams.key": API_KEY}).trace_save():
            pass
    flush_events(60)
    (record,) = caplog.records
    assert "the server responded with status 401" in record.getMessage()
    assert API_KEY not in caplog.text


def test_refused_connection_is_logged_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    confs = {"transport.type": "http", "transport.url": "http://user:password@127.0.0.1:1"}
    write = prepare_lineage(confs, OPTIONS, create_spark_write())
    assert write is not None
    with write.trace_save():
        pass
    flush_events(60)
    (record,) = caplog.records
    assert "Could not send an OpenLineage event to http://127.0.0.1:1: Connection refused" in record.getMessage()


def test_write_does_not_wait_for_unresponsive_server(server: LineageServer, caplog: pytest.LogCaptureFixture) -> None:
    server.hold = threading.Event()
    with plan_lineage_write(server, {"transport.timeoutInMillis": "60000"}).trace_save():
        pass
    flush_events(0)
    assert server.events == []
    assert "2 OpenLineage events were not sent in time" in caplog.text
    server.hold.set()
    assert [event["eventType"] for event in collect_events(server)] == ["START", "COMPLETE"]


@pytest.mark.parametrize(
    ("confs", "message"),
    [
        ({"transport.type": "kafka"}, "transport.type is 'kafka'"),
        ({"transport.type": "http"}, "transport.url is missing"),
        ({"transport.type": "http", "transport.url": "http://[::1"}, "transport.url is missing or has no scheme"),
        ({"transport.type": "file"}, "transport.location is missing"),
        ({"transport.type": "http", "transport.url": "http://h", "transport.timeoutInMillis": "5s"}, "not a number"),
        (
            {"transport.type": "http", "transport.url": "http://h", "transport.timeoutInMillis": "9" * 400},
            "not a number",
        ),
        ({"transport.type": "http", "transport.url": "http://h", "transport.auth.type": "api_key"}, "auth"),
        ({"transport.type": "http", "transport.url": "http://h", "transport.compression": "zip"}, "compression"),
    ],
)
def test_invalid_settings_are_logged_once(
    confs: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert prepare_lineage(confs, OPTIONS, create_spark_write()) is None
    assert prepare_lineage(confs, OPTIONS, create_spark_write()) is None
    (record,) = caplog.records
    assert message in record.getMessage()


def test_console_transport_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    write = prepare_lineage({"namespace": "team"}, OPTIONS, create_spark_write())
    assert write is not None
    with caplog.at_level(logging.INFO), write.trace_save():
        flush_events(60)
    assert '"namespace": "team"' in caplog.text


def test_file_transport_appends_events(tmp_path: Any) -> None:
    confs = {"transport.type": "file", "transport.location": str(tmp_path / "events.jsonl")}
    write = prepare_lineage(confs, OPTIONS, create_spark_write())
    assert write is not None
    with write.trace_save():
        pass
    flush_events(60)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


@pytest.fixture
def no_new_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reject new threads, as Python 3.12 does in atexit handlers."""

    class RejectedThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    sender_threading = SimpleNamespace(Thread=RejectedThread, Condition=threading.Condition)
    monkeypatch.setattr(lineage_sender, "threading", sender_threading)


@pytest.mark.usefixtures("no_new_threads")
def test_events_without_a_thread_are_sent_at_the_end(server: LineageServer) -> None:
    with plan_lineage_write(server).trace_save():
        pass
    assert server.events == []
    assert [event["eventType"] for event in collect_events(server)] == ["START", "COMPLETE"]


@pytest.mark.usefixtures("no_new_threads")
def test_one_of_two_flushing_threads_sends_all_events_in_order() -> None:
    sent: list[str] = []

    class FlushingTransport:
        """A transport that submits an event and flushes while it sends the first event, as another thread may."""

        def emit(self, event: str) -> None:
            if event == "first":
                sender.submit(cast(RunEvent, "second"))
                assert sender.flush(0) == 2
            sent.append(event)

    sender = EventSender(cast(Transport, FlushingTransport()), "the test")
    sender.submit(cast(RunEvent, "first"))
    assert sender.flush(60) == 0
    assert sent == ["first", "second"]


@pytest.mark.usefixtures("no_new_threads")
def test_flush_after_interrupted_flush_sends_remaining_events() -> None:
    sent: list[str] = []

    class InterruptedTransport:
        """A transport during whose first event the user presses Ctrl-C."""

        is_interrupted = False

        def emit(self, event: str) -> None:
            if not self.is_interrupted:
                self.is_interrupted = True
                raise KeyboardInterrupt
            sent.append(event)

    sender = EventSender(cast(Transport, InterruptedTransport()), "the test")
    sender.submit(cast(RunEvent, "first"))
    sender.submit(cast(RunEvent, "second"))
    with pytest.raises(KeyboardInterrupt):
        sender.flush(60)
    assert sender.flush(60) == 0
    assert sent == ["first", "second"]
