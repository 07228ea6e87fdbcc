"""OpenLineage runs of writes and their events, without Spark. The events are sent to a server that validates them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.spark import lineage
from spark_kafka_sink.spark.constants import LINEAGE_FOLDER_OPTION, MICRO_BATCH_OPTION
from spark_kafka_sink.spark.lineage import LineageWrite, finish_at_exit, flush_events, plan_write
from spark_kafka_sink.spark.lineage_events import PRODUCER, SparkWrite, build_run, normalize_name
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.patches import lineage_hooks
from spark_kafka_sink.spark.patches.lineage_hooks import trace_query, trace_save
from spark_kafka_sink.spark.writer import abort, commit
from tests.spark.lineage_server import LineageServer, lineage_server, validate_event
from tests.spark.test_report_publishing import sink_options, task

OPTIONS = {
    "kafka.bootstrap.servers": "SASL_SSL://one:9092, two:9092",
    "topic": "orders",
    "kafka.ssl.key.password": "key-password",
}
PARENT_ID, ROOT_ID, APP_ID = (f"0193a1f0-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))
PARENT = {"parentRunId": PARENT_ID, "parentJobNamespace": "airflow", "parentJobName": "dag.task"}
API_KEY = "top-secret-key"


@pytest.fixture(autouse=True)
def no_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test its own senders, which have logged no warning yet."""
    monkeypatch.setattr(lineage, "_senders", {})
    lineage_hooks._warn_about_missing_package.cache_clear()


@pytest.fixture
def server() -> Iterator[LineageServer]:
    with lineage_server() as server:
        yield server
        flush_events(60)
        assert server.violations == []


def spark_write(version: str = "4.3.0", *, is_stream: bool = False, is_map_in_arrow: bool = False) -> SparkWrite:
    return SparkWrite("Nightly Orders", version, (("value", "binary"),), is_stream, is_map_in_arrow)


def http_confs(server: LineageServer, confs: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    return {"transport.type": "http", "transport.url": server.url, **confs}


def planned(
    server: LineageServer,
    confs: Mapping[str, str] = MappingProxyType({}),
    *,
    options: Mapping[str, str] = OPTIONS,
    is_stream: bool = False,
) -> LineageWrite:
    write = plan_write(http_confs(server, confs), options, spark_write(is_stream=is_stream))
    assert write is not None
    return write


def report_options(write: LineageWrite) -> SinkOptions:
    return replace(sink_options(), lineage_folder=write.options()[LINEAGE_FOLDER_OPTION])


def events(server: LineageServer) -> list[dict[str, Any]]:
    flush_events(60)
    return server.events


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


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("Nightly Orders", "nightly_orders"),
        ("camelCaseExample", "camel_case_example"),
        ("someACRONYMInside", "some_acronym_inside"),
        ("--Café v2.1!", "cafe_v2_1"),
        ("323digits123Should45BE_ALSO34 fine89", "323digits123_should45_be_also34_fine89"),
        ("but to a degree 这是一个例子", "but_to_a_degree"),
        ("WriteToDataSourceV2", "write_to_data_source_v2"),
    ],
)
def test_normalizes_names_like_the_listener(name: str, normalized: str) -> None:
    assert normalize_name(name) == normalized


@pytest.mark.parametrize(
    ("write", "confs", "job_name"),
    [
        (spark_write("4.0.1"), {}, "nightly_orders.append_data.pykafka"),
        (spark_write("4.3.0"), {}, "nightly_orders.append_data_pykafka.pykafka"),
        (spark_write("4.3.0"), {"jobName.appendDatasetName": "false"}, "nightly_orders.append_data_pykafka"),
        (spark_write("4.3.0"), {"appName": "OrdersJob"}, "orders_job.append_data_pykafka.pykafka"),
        (spark_write("4.0.1", is_map_in_arrow=True), {}, "nightly_orders.map_in_arrow"),
        (spark_write("3.5.9", is_map_in_arrow=True), {}, "nightly_orders.python_map_in_arrow"),
        (spark_write("4.3.0", is_stream=True), {}, "nightly_orders.write_to_data_source_v2"),
    ],
)
def test_job_has_name_of_the_listener(write: SparkWrite, confs: dict[str, str], job_name: str) -> None:
    """The names are those that the listener, version 1.53, sent for such writes."""
    run = build_run(APP_ID, confs, OPTIONS, write)
    assert (run.job_namespace, run.job_name) == ("default", job_name)


def test_job_has_configured_namespace() -> None:
    assert build_run(APP_ID, {"namespace": "team"}, OPTIONS, spark_write()).job_namespace == "team"


@pytest.mark.parametrize(
    ("confs", "namespace"),
    [
        ({}, "kafka://one:9092"),
        ({"type": "hostList", "hosts": "[ONE:9092;two:9092]", "schema": "kafka"}, "kafka://prod"),
        ({"type": "hostList", "hosts": "[one:9092]", "schema": "cassandra"}, "kafka://one:9092"),
        ({"type": "hostList", "hosts": "[three:9092]"}, "kafka://one:9092"),
        ({"type": "pattern", "regex": "one.*"}, "kafka://one:9092"),
    ],
)
def test_dataset_is_named_after_first_bootstrap_server(confs: dict[str, str], namespace: str) -> None:
    resolver = {f"dataset.namespaceResolvers.prod.{name}": value for name, value in confs.items()}
    assert build_run(APP_ID, resolver, OPTIONS, spark_write()).kafka_namespace == namespace


def test_parent_is_the_run_that_started_the_application(server: LineageServer) -> None:
    with planned(server, PARENT).trace_save():
        pass
    parent = events(server)[0]["run"]["facets"]["parent"]
    for run in (parent, parent["root"]):
        assert (run["run"]["runId"], run["job"]["namespace"], run["job"]["name"]) == (PARENT_ID, "airflow", "dag.task")


def test_parent_is_the_application_if_its_run_id_is_set(server: LineageServer) -> None:
    root = {"rootParentRunId": ROOT_ID, "rootParentJobName": "dag"}
    with planned(server, PARENT | root | {"applicationRunId": APP_ID}).trace_save():
        pass
    parent = events(server)[0]["run"]["facets"]["parent"]
    assert (parent["run"]["runId"], parent["job"]["name"]) == (APP_ID, "nightly_orders")
    root_run = parent["root"]
    assert (root_run["run"]["runId"], root_run["job"]["namespace"], root_run["job"]["name"]) == (
        ROOT_ID,
        "airflow",
        "dag",
    )


def test_ignores_parent_whose_id_is_no_uuid(server: LineageServer) -> None:
    with planned(server, PARENT | {"parentRunId": "no-uuid"}).trace_save():
        pass
    assert "parent" not in events(server)[0]["run"]["facets"]


def test_batch_write_sends_start_and_complete_with_rows(server: LineageServer) -> None:
    write = planned(server, {"job.tags": "team:orders;nightly", "run.tags": "try:1", "job.owners.team": "Orders"})
    with write.trace_save():
        commit(report_options(write), [task()])
    start, complete = events(server)
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


def test_omits_disabled_facets(server: LineageServer) -> None:
    with planned(server, {"facets.schema.disabled": "true", "facets.disabled": "[processing_engine]"}).trace_save():
        pass
    assert events(server)[0]["outputs"][0]["facets"] == {}
    assert events(server)[0]["run"]["facets"] == {}


def test_failed_batch_write_sends_fail_with_its_error(server: LineageServer) -> None:
    write = planned(server, {"transport.auth.type": "api_key", "transport.auth.apiKey": API_KEY})
    abort(report_options(write), [task(), None])
    with pytest.raises(RuntimeError), write.trace_save():
        raise RuntimeError(f"rejected: {API_KEY} and key-password\n\nJVM stacktrace:\n\tat org.apache")
    fail = events(server)[-1]
    assert fail["eventType"] == "FAIL"
    error = fail["run"]["facets"]["errorMessage"]
    assert (error["message"], error["programmingLanguage"]) == ("RuntimeError: rejected: *** and ***", "PYTHON")
    assert fail["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


@pytest.mark.parametrize(
    "option",
    [
        "schema.registry.basic.auth.user.info",
        "kafka.ssl.keystore.key",
        "kafka.sasl.oauthbearer.assertion.private.key.pem",
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    ],
)
def test_error_does_not_contain_credentials(server: LineageServer, option: str) -> None:
    with pytest.raises(RuntimeError), planned(server, options=OPTIONS | {option: "hunter2"}).trace_save():
        raise RuntimeError("rejected: hunter2")
    assert events(server)[-1]["run"]["facets"]["errorMessage"]["message"] == "RuntimeError: rejected: ***"


def test_error_of_a_task_is_the_message_of_fail(server: LineageServer) -> None:
    spark_error = "Job aborted.\nspark_kafka_sink.errors.DeliveryError: the row is too large\n\n\tat org.apache"
    with pytest.raises(RuntimeError), planned(server).trace_save():
        raise RuntimeError(spark_error)
    message = events(server)[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message == f"{DeliveryError.__name__}: the row is too large"


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RuntimeError("[SPARK_JOB_CANCELLED] ..."), RuntimeError("Job 3 cancelled as part of ...")],
)
def test_interrupted_batch_write_sends_abort(server: LineageServer, error: BaseException) -> None:
    with pytest.raises(type(error)), planned(server).trace_save():
        raise error
    assert [event["eventType"] for event in events(server)] == ["START", "ABORT"]


def test_committed_batch_write_is_complete_even_if_interrupted(server: LineageServer) -> None:
    write = planned(server)
    commit(report_options(write), [task()])
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise KeyboardInterrupt
    assert [event["eventType"] for event in events(server)] == ["START", "COMPLETE"]


def test_stream_sends_start_running_and_complete_with_all_rows(server: LineageServer) -> None:
    write = planned(server, is_stream=True)
    query = FakeQuery()
    commit(report_options(write), [task()], "batch 1")
    write.watch(query)
    running, complete = events(server)
    assert (running["eventType"], complete["eventType"]) == ("RUNNING", "COMPLETE")
    assert complete["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    for event in (running, complete):
        assert event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


def test_abort_after_the_end_of_a_run_does_not_recreate_its_folder(server: LineageServer) -> None:
    """Spark may abort a write only after the user has interrupted save()."""
    write = planned(server)
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise KeyboardInterrupt
    options = report_options(write)
    abort(options, [task()])
    assert options.lineage_folder is not None
    assert not Path(options.lineage_folder).exists()


def test_stream_recreates_folder_that_the_system_deleted(server: LineageServer) -> None:
    write = planned(server, is_stream=True)
    options = report_options(write)
    assert options.lineage_folder is not None
    Path(options.lineage_folder).rmdir()

    class CommittingQuery(FakeQuery):
        """A query that commits a micro-batch after the first wait."""

        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
            has_ended = super().awaitTermination(timeout)
            if has_ended:
                commit(options, [task()], "batch 1")
            return has_ended

    write.watch(CommittingQuery())
    (complete,) = events(server)
    assert complete["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 10


def test_failed_stream_sends_fail(server: LineageServer) -> None:
    planned(server, is_stream=True).watch(FakeQuery(StreamingQueryException("the cause")))
    (fail,) = events(server)
    assert fail["eventType"] == "FAIL"
    assert "the cause" in fail["run"]["facets"]["errorMessage"]["message"]


def test_stream_whose_spark_is_lost_sends_abort(server: LineageServer) -> None:
    planned(server, is_stream=True).watch(FakeQuery(ConnectionResetError()))
    assert [event["eventType"] for event in events(server)] == ["ABORT"]


def test_stream_that_cannot_start_sends_fail(server: LineageServer) -> None:
    def start() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        planned(server, is_stream=True).start_query(start)
    assert [event["eventType"] for event in events(server)] == ["START", "FAIL"]


def test_running_stream_sends_abort_at_the_end_of_the_program(server: LineageServer) -> None:
    released = threading.Event()
    query = SimpleNamespace(isActive=True, awaitTermination=lambda _: released.wait())
    planned(server, is_stream=True).start_query(lambda: query)
    finish_at_exit()
    released.set()
    assert [event["eventType"] for event in events(server)] == ["START", "ABORT"]


def test_topics_of_rows_are_outputs(server: LineageServer) -> None:
    write = planned(server, options={"kafka.bootstrap.servers": "one:9092"})
    with write.trace_save():
        commit(report_options(write), [task()])
    start, complete = events(server)
    assert start["outputs"] == []
    assert [
        (output["name"], output["outputFacets"]["outputStatistics"]["rowCount"]) for output in complete["outputs"]
    ] == [("orders", 10)]


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
    with trace_save(fake_frame(confs, module=module), OPTIONS | options, [0], is_map_in_arrow=False) as lineage_options:
        assert lineage_options == {}
    assert events(server) == []


def test_environment_variable_disables_lineage(server: LineageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with trace_save(fake_frame(http_confs(server)), OPTIONS, [0], is_map_in_arrow=False) as lineage_options:
        assert lineage_options == {}


def test_hooks_send_events_with_the_columns_of_the_sink(server: LineageServer) -> None:
    frame = fake_frame(http_confs(server))
    with trace_save(frame, OPTIONS, [1], is_map_in_arrow=True) as lineage_options:
        assert list(lineage_options) == [LINEAGE_FOLDER_OPTION]
    start, _ = events(server)
    assert start["job"]["name"] == "my_app.map_in_arrow"
    assert [field["name"] for field in start["outputs"][0]["facets"]["schema"]["fields"]] == ["value"]


def test_missing_package_is_logged_once(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("lineage", "lineage_events", "lineage_sender"):
        monkeypatch.delitem(sys.modules, f"spark_kafka_sink.spark.{module}")
    monkeypatch.setitem(sys.modules, "openlineage.client.uuid", None)
    for _ in range(2):
        assert trace_query(fake_frame(http_confs(server)), OPTIONS, [0], lambda options: options) == {}
    (record,) = caplog.records
    assert 'pip install "spark-kafka-sink[openlineage]"' in record.getMessage()


def test_too_old_package_is_logged(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("lineage", "lineage_events", "lineage_sender"):
        monkeypatch.delitem(sys.modules, f"spark_kafka_sink.spark.{module}")
    monkeypatch.setitem(sys.modules, "openlineage.client.uuid", ModuleType("openlineage.client.uuid"))
    assert trace_query(fake_frame(http_confs(server)), OPTIONS, [0], lambda options: options) == {}
    assert "is missing or too old" in caplog.text


def test_query_without_a_thread_starts_and_is_reported_at_exit(
    server: LineageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    write = planned(server, is_stream=True)
    query = SimpleNamespace(isActive=False, awaitTermination=lambda _: True)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert write.start_query(lambda: query) is query
    finish_at_exit()
    assert [event["eventType"] for event in events(server)] == ["START", "COMPLETE"]


def test_interrupt_after_start_sends_abort(server: LineageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    write = planned(server)
    submit = write._sender.submit

    def submit_and_interrupt(event: Any) -> None:
        monkeypatch.setattr(write._sender, "submit", submit)
        submit(event)
        raise KeyboardInterrupt

    monkeypatch.setattr(write._sender, "submit", submit_and_interrupt)
    with pytest.raises(KeyboardInterrupt), write.trace_save():
        raise AssertionError("the block does not run")
    assert [event["eventType"] for event in events(server)] == ["START", "ABORT"]


def test_does_not_import_the_package_before_a_write_with_settings() -> None:
    code = "import sys; import spark_kafka_sink.spark.patches.drop_in; sys.exit('openlineage' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_validator_rejects_invalid_event() -> None:
    event: dict[str, Any] = {"eventType": "STARTED", "run": {"runId": "x"}, "job": {}, "outputs": []}
    assert validate_event(event)
