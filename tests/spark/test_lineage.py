"""OpenLineage runs of writes and their events, without Spark. The events are sent to a server that validates them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_kafka_sink.spark.constants import LINEAGE_DIRECTORY_OPTION, MICRO_BATCH_OPTION
from spark_kafka_sink.spark.lineage import finish_at_exit
from spark_kafka_sink.spark.lineage_events import PRODUCER
from spark_kafka_sink.spark.patches.lineage_hooks import trace_query, trace_save
from spark_kafka_sink.spark.writer import abort_and_report, commit_and_report
from tests.spark.lineage_cases import (
    API_KEY,
    OPTIONS,
    build_http_confs,
    collect_events,
    create_report_options,
    plan_lineage_write,
)
from tests.spark.lineage_cases import no_senders as no_senders
from tests.spark.lineage_cases import server as server
from tests.spark.lineage_server import LineageServer
from tests.spark.task_reports import task


def fake_frame(confs: dict[str, str], *, module: str = "pyspark.sql.session") -> Any:
    class FakeSession:
        version = "4.3.0"
        sparkContext = SimpleNamespace(  # noqa: N815
            appName="My App",
            _jsc=SimpleNamespace(
                sc=lambda: SimpleNamespace(
                    getConf=lambda: SimpleNamespace(
                        getAllWithPrefix=lambda _: [
                            SimpleNamespace(_1=lambda name=name: name, _2=lambda value=value: value)
                            for name, value in confs.items()
                        ]
                    )
                )
            ),
        )

    FakeSession.__module__ = module
    schema = StructType([StructField("other", BinaryType()), StructField("value", BinaryType())])
    return SimpleNamespace(sparkSession=FakeSession(), schema=schema)


class FakeQuery:
    """A query that ends when `awaitTermination` is called the second time."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._waits = 0

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        self._waits += 1
        if self._waits == 1:
            return False
        if self._error is not None:
            raise self._error
        return True


def test_batch_write_sends_start_and_complete_with_rows(server: LineageServer) -> None:
    write = plan_lineage_write(
        server, {"job.tags": "team:orders;nightly", "run.tags": "try:1", "job.owners.team": "Orders"}
    )
    with write.trace_save():
        commit_and_report(create_report_options(write), [task()])
    start, complete = collect_events(server)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["eventTime"] <= complete["eventTime"]
    assert complete["producer"] == complete["job"]["facets"]["jobType"]["_producer"] == PRODUCER
    assert complete["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert [(tag["key"], tag["value"]) for tag in complete["job"]["facets"]["tags"]["tags"]] == [
        ("team", "orders"),
        ("nightly", "true"),
    ]
    assert complete["job"]["facets"]["ownership"]["owners"] == [{"name": "Orders", "type": "team"}]
    assert complete["run"]["facets"]["processing_engine"]["version"] == "4.3.0"
    (output,) = complete["outputs"]
    assert (output["namespace"], output["name"]) == ("kafka://one:9092", "orders")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 10
    assert output["facets"]["schema"]["fields"] == [{"name": "value", "type": "binary", "fields": []}]
    assert start["outputs"][0]["outputFacets"] == {}


def test_failed_batch_write_sends_fail_with_its_error(server: LineageServer) -> None:
    write = plan_lineage_write(server, {"transport.auth.type": "api_key", "transport.auth.apiKey": API_KEY})
    abort_and_report(create_report_options(write), [task(), None])
    with pytest.raises(RuntimeError), write.trace_save():
        raise RuntimeError(f"rejected: {API_KEY} and key-password\n\nJVM stacktrace:\n\tat org.apache")
    fail = collect_events(server)[-1]
    assert fail["eventType"] == "FAIL"
    error = fail["run"]["facets"]["errorMessage"]
    assert (error["message"], error["programmingLanguage"]) == ("RuntimeError: rejected: *** and ***", "PYTHON")
    assert fail["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("[SPARK_JOB_CANCELLED] ..."), RuntimeError("Job 3 cancelled as part of ...")],
)
def test_interrupted_batch_write_sends_abort(server: LineageServer, error: BaseException) -> None:
    with pytest.raises(type(error)), plan_lineage_write(server).trace_save():
        raise error
    assert [event["eventType"] for event in collect_events(server)] == ["START", "ABORT"]


def test_committed_batch_write_is_complete_even_if_interrupted(server: LineageServer) -> None:
    write = plan_lineage_write(server)
    commit_and_report(create_report_options(write), [task()])
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise KeyboardInterrupt
    assert [event["eventType"] for event in collect_events(server)] == ["START", "COMPLETE"]


def test_stream_sends_start_running_and_complete_with_all_rows(server: LineageServer) -> None:
    write = plan_lineage_write(server, is_stream=True)
    query = FakeQuery()
    commit_and_report(create_report_options(write), [task()], "batch 1")
    write.watch(query)
    running, complete = collect_events(server)
    assert (running["eventType"], complete["eventType"]) == ("RUNNING", "COMPLETE")
    assert complete["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    for event in (running, complete):
        assert event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


def test_abort_after_the_end_of_a_run_does_not_recreate_its_directory(server: LineageServer) -> None:
    """Spark may abort a write only after the user has interrupted save()."""
    write = plan_lineage_write(server)
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise KeyboardInterrupt
    options = create_report_options(write)
    abort_and_report(options, [task()])
    assert options.lineage_directory is not None
    assert not Path(options.lineage_directory).exists()


def test_stream_recreates_directory_that_the_system_deleted(server: LineageServer) -> None:
    write = plan_lineage_write(server, is_stream=True)
    options = create_report_options(write)
    assert options.lineage_directory is not None
    Path(options.lineage_directory).rmdir()

    class CommittingQuery(FakeQuery):
        """A query that commits a micro-batch after the first wait."""

        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
            has_ended = super().awaitTermination(timeout)
            if has_ended:
                commit_and_report(options, [task()], "batch 1")
            return has_ended

    write.watch(CommittingQuery())
    (complete,) = collect_events(server)
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


def test_failed_stream_sends_fail(server: LineageServer) -> None:
    plan_lineage_write(server, is_stream=True).watch(FakeQuery(StreamingQueryException("the cause")))
    (fail,) = collect_events(server)
    assert fail["eventType"] == "FAIL"
    assert "the cause" in fail["run"]["facets"]["errorMessage"]["message"]


def test_stream_whose_spark_is_lost_sends_abort(server: LineageServer) -> None:
    plan_lineage_write(server, is_stream=True).watch(FakeQuery(ConnectionResetError()))
    assert [event["eventType"] for event in collect_events(server)] == ["ABORT"]


def test_stream_that_cannot_start_sends_fail(server: LineageServer) -> None:
    def start() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        plan_lineage_write(server, is_stream=True).start_query(start)
    assert [event["eventType"] for event in collect_events(server)] == ["START", "FAIL"]


def test_running_stream_sends_abort_at_the_end_of_the_program(server: LineageServer) -> None:
    released = threading.Event()
    query = SimpleNamespace(isActive=True, awaitTermination=lambda _: released.wait())
    plan_lineage_write(server, is_stream=True).start_query(lambda: query)
    finish_at_exit()
    released.set()
    assert [event["eventType"] for event in collect_events(server)] == ["START", "ABORT"]


@pytest.mark.parametrize(
    ("confs", "options", "module"),
    [
        ({}, {}, "pyspark.sql.session"),
        ({"transport.type": "http", "disabled": "true"}, {}, "pyspark.sql.session"),
        ({"transport.type": "http"}, {}, "pyspark.sql.connect.session"),
        ({"transport.type": "http"}, {MICRO_BATCH_OPTION: "true"}, "pyspark.sql.session"),
    ],
)
def test_sends_nothing_without_settings(
    server: LineageServer, confs: dict[str, str], options: dict[str, str], module: str
) -> None:
    confs = confs and confs | {"transport.url": server.url}
    with trace_save(
        fake_frame(confs, module=module), OPTIONS | options, [0], uses_map_in_arrow=False
    ) as lineage_options:
        assert lineage_options == {}
    assert collect_events(server) == []


def test_environment_variable_disables_lineage(server: LineageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with trace_save(fake_frame(build_http_confs(server)), OPTIONS, [0], uses_map_in_arrow=False) as lineage_options:
        assert lineage_options == {}


def test_hooks_send_events_with_the_columns_of_the_sink(server: LineageServer) -> None:
    frame = fake_frame(build_http_confs(server))
    with trace_save(frame, OPTIONS, [1], uses_map_in_arrow=True) as lineage_options:
        assert list(lineage_options) == [LINEAGE_DIRECTORY_OPTION]
    start, _ = collect_events(server)
    assert start["job"]["name"] == "my_app.map_in_arrow"
    assert [field["name"] for field in start["outputs"][0]["facets"]["schema"]["fields"]] == ["value"]


def test_missing_package_is_logged_once(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("lineage", "lineage_events", "lineage_sender"):
        monkeypatch.delitem(sys.modules, f"spark_kafka_sink.spark.{module}")
    monkeypatch.setitem(sys.modules, "openlineage.client.uuid", None)
    for _ in range(2):
        assert trace_query(fake_frame(build_http_confs(server)), OPTIONS, [0], lambda options: options) == {}
    (record,) = caplog.records
    assert 'pip install "spark-kafka-sink[openlineage]"' in record.getMessage()


def test_too_old_package_is_logged(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("lineage", "lineage_events", "lineage_sender"):
        monkeypatch.delitem(sys.modules, f"spark_kafka_sink.spark.{module}")
    monkeypatch.setitem(sys.modules, "openlineage.client.uuid", ModuleType("openlineage.client.uuid"))
    assert trace_query(fake_frame(build_http_confs(server)), OPTIONS, [0], lambda options: options) == {}
    assert "is missing or too old" in caplog.text


def test_query_without_a_thread_starts_and_is_reported_at_exit(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    write = plan_lineage_write(server, is_stream=True)
    query = SimpleNamespace(isActive=False, awaitTermination=lambda _: True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert write.start_query(lambda: query) is query
    finish_at_exit()
    assert [event["eventType"] for event in collect_events(server)] == ["START", "COMPLETE"]


def test_interrupt_after_start_sends_abort(server: LineageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    write = plan_lineage_write(server)
    submit = write._sender.submit

    def submit_and_interrupt(event: Any) -> None:
        monkeypatch.setattr(write._sender, "submit", submit)
        submit(event)
        raise KeyboardInterrupt

    monkeypatch.setattr(write._sender, "submit", submit_and_interrupt)
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise AssertionError("the block does not run")
    assert [event["eventType"] for event in collect_events(server)] == ["START", "ABORT"]


def test_does_not_import_the_package_before_a_write_with_settings() -> None:
    code = "import sys; import spark_kafka_sink.spark.patches.drop_in; sys.exit('openlineage' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
