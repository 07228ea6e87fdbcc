"""Names of OpenLineage jobs, datasets and parent runs, and the facets of events."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.spark.lineage_events import SparkWrite, build_run, normalize_name
from spark_kafka_sink.spark.writer import commit_and_report
from tests.spark.lineage_cases import (
    APP_ID,
    OPTIONS,
    PARENT,
    PARENT_ID,
    ROOT_ID,
    collect_events,
    create_report_options,
    create_spark_write,
    plan_lineage_write,
)
from tests.spark.lineage_cases import no_senders as no_senders
from tests.spark.lineage_cases import server as server
from tests.spark.lineage_server import LineageServer, validate_event
from tests.spark.task_reports import task


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
        (create_spark_write("4.0.1"), {}, "nightly_orders.append_data.pykafka"),
        (create_spark_write("4.3.0"), {}, "nightly_orders.append_data_pykafka.pykafka"),
        (create_spark_write("4.3.0"), {"jobName.appendDatasetName": "false"}, "nightly_orders.append_data_pykafka"),
        (create_spark_write("4.3.0"), {"appName": "OrdersJob"}, "orders_job.append_data_pykafka.pykafka"),
        (create_spark_write("4.0.1", uses_map_in_arrow=True), {}, "nightly_orders.map_in_arrow"),
        (create_spark_write("3.5.9", uses_map_in_arrow=True), {}, "nightly_orders.python_map_in_arrow"),
        (create_spark_write("4.3.0", is_stream=True), {}, "nightly_orders.write_to_data_source_v2"),
    ],
)
def test_job_has_name_of_the_listener(write: SparkWrite, confs: dict[str, str], job_name: str) -> None:
    """The names are those that the listener, version 1.53, sent for such writes."""
    run = build_run(APP_ID, confs, OPTIONS, write)
    assert (run.job_namespace, run.job_name) == ("default", job_name)


def test_job_has_configured_namespace() -> None:
    assert build_run(APP_ID, {"namespace": "team"}, OPTIONS, create_spark_write()).job_namespace == "team"


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
    assert build_run(APP_ID, resolver, OPTIONS, create_spark_write()).kafka_namespace == namespace


def test_parent_is_the_run_that_started_the_application(server: LineageServer) -> None:
    with plan_lineage_write(server, PARENT).trace_save():
        pass
    parent = collect_events(server)[0]["run"]["facets"]["parent"]
    for run in (parent, parent["root"]):
        assert (run["run"]["runId"], run["job"]["namespace"], run["job"]["name"]) == (PARENT_ID, "airflow", "dag.task")


def test_parent_is_the_application_if_its_run_id_is_set(server: LineageServer) -> None:
    root = {"rootParentRunId": ROOT_ID, "rootParentJobName": "dag"}
    with plan_lineage_write(server, PARENT | root | {"applicationRunId": APP_ID}).trace_save():
        pass
    parent = collect_events(server)[0]["run"]["facets"]["parent"]
    assert (parent["run"]["runId"], parent["job"]["name"]) == (APP_ID, "nightly_orders")
    root_run = parent["root"]
    assert (root_run["run"]["runId"], root_run["job"]["namespace"], root_run["job"]["name"]) == (
        ROOT_ID,
        "airflow",
        "dag",
    )


def test_ignores_parent_whose_id_is_no_uuid(server: LineageServer) -> None:
    with plan_lineage_write(server, PARENT | {"parentRunId": "no-uuid"}).trace_save():
        pass
    assert "parent" not in collect_events(server)[0]["run"]["facets"]


def test_omits_disabled_facets(server: LineageServer) -> None:
    with plan_lineage_write(
        server, {"facets.schema.disabled": "true", "facets.disabled": "[processing_engine]"}
    ).trace_save():
        pass
    assert collect_events(server)[0]["outputs"][0]["facets"] == {}
    assert collect_events(server)[0]["run"]["facets"] == {}


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
    with pytest.raises(RuntimeError), plan_lineage_write(server, options=OPTIONS | {option: "hunter2"}).trace_save():
        raise RuntimeError("rejected: hunter2")
    assert collect_events(server)[-1]["run"]["facets"]["errorMessage"]["message"] == "RuntimeError: rejected: ***"


def test_error_of_a_task_is_the_message_of_fail(server: LineageServer) -> None:
    spark_error = "Job aborted.\nspark_kafka_sink.errors.DeliveryError: the row is too large\n\n\tat org.apache"
    with pytest.raises(RuntimeError), plan_lineage_write(server).trace_save():
        raise RuntimeError(spark_error)
    message = collect_events(server)[-1]["run"]["facets"]["errorMessage"]["message"]
    assert message == f"{DeliveryError.__name__}: the row is too large"


def test_topics_of_rows_are_outputs(server: LineageServer) -> None:
    write = plan_lineage_write(server, options={"kafka.bootstrap.servers": "one:9092"})
    with write.trace_save():
        commit_and_report(create_report_options(write), [task()])
    start, complete = collect_events(server)
    assert start["outputs"] == []
    assert [
        (output["name"], output["outputFacets"]["outputStatistics"]["rowCount"]) for output in complete["outputs"]
    ] == [("orders", 10)]


def test_validator_rejects_invalid_event() -> None:
    event: dict[str, Any] = {"eventType": "STARTED", "run": {"runId": "x"}, "job": {}, "outputs": []}
    assert validate_event(event)
