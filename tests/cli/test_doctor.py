"""`pykafka doctor` against an embedded broker on the loopback interface."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink.cli import doctor
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.options.files import MAX_FILE_BYTES
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.reports.store import save_report
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.reports.report_factories import make_report

Output = pytest.CaptureFixture[str]

SECRET = "hush-hush"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with embedded_broker({"t": 2}) as broker:
        yield broker.bootstrap_servers


def doctor_json(output: Output, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    status = main(["doctor", "--json", *arguments])
    document = json.loads(output.readouterr().out)
    assert document["ok"] == (status == 0)
    return status, {check["name"]: check for check in document["checks"]}


def test_prints_line_with_mark_for_each_check(capsys: Output, bootstrap: str) -> None:
    assert main(["doctor", "--bootstrap-server", bootstrap, "--topic", "t", "--transactional-id", "x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-2] if not line.startswith("✔  ")] == []
    assert "✔  topic t: 2 partitions" in lines
    assert {line.split(": ")[0] for line in lines[:-2]} >= {
        "✔  names",
        "✔  bootstrap servers",
        "✔  security",
        "✔  idempotent write",
        "✔  transactions",
        "✔  largest message of t",
        "✔  clock",
    }
    assert lines[-1] == "No checks failed."


def test_failed_check_has_mark_remedy_and_exit_status(capsys: Output, bootstrap: str) -> None:
    assert main(["doctor", "--bootstrap-server", bootstrap, "--topic", "nope"]) == 1
    out = capsys.readouterr().out
    assert "✘  topic nope: does not exist\n     Correct the name or create the topic" in out
    assert out.endswith("checks failed.\n")


def test_does_not_create_missing_topic() -> None:
    with embedded_broker(auto_create_topics=True) as broker:
        assert main(["doctor", "--bootstrap-server", broker.bootstrap_servers, "--topic", "nope"]) == 1
        assert broker.cluster.topics == {}


def test_uses_ascii_marks_without_unicode_terminal(monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["doctor", "--bootstrap-server", bootstrap, "--topic", "nope"]) == 1
    out.flush()
    output = out.buffer.getvalue().decode("latin-1")
    assert "ok security" in output
    assert "X  topic nope" in output


def test_json_contains_all_checks(capsys: Output, bootstrap: str) -> None:
    status, checks = doctor_json(capsys, "--bootstrap-server", bootstrap, "--topic", "t")
    assert status == 0
    assert checks["topic t"] == {"name": "topic t", "outcome": "passed", "detail": "2 partitions", "remedy": ""}


def test_wrong_password_fails_security_and_is_hidden(capsys: Output, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nacks=all\n"
        f'sasl.jaas.config={JAAS} username="alice" password="{SECRET}-wrong";\n'
    )
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})
    with embedded_broker({"t": 1}, security=security) as broker:
        status, checks = doctor_json(
            capsys, "--bootstrap-server", broker.bootstrap_servers, "--command-config", str(config)
        )
    assert status == 1
    assert checks["security"]["outcome"] == "failed"
    assert SECRET not in json.dumps(checks)


@pytest.mark.parametrize("form", ["json", "lines"])
def test_accepts_options_of_spark_job(capsys: Output, bootstrap: str, tmp_path: Path, form: str) -> None:
    pytest.importorskip("pyspark")
    options: dict[str, object] = {"kafka.bootstrap.servers": bootstrap, "topic": "t", "includeHeaders": True}
    text = json.dumps(options) if form == "json" else "".join(f"{name}={value}\n" for name, value in options.items())
    conf = tmp_path / "options"
    conf.write_text(text)
    status, checks = doctor_json(capsys, "--spark-conf", str(conf), "-X", "client.id=me")
    assert status == 0
    assert "topic t" in checks


def test_checks_of_spark_job_name_options_with_prefix(capsys: Output, bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text(f"kafka.bootstrap.servers={bootstrap}\ntopic=t\nkafka.max.request.size=9000000\n")
    _, checks = doctor_json(capsys, "--spark-conf", str(conf))
    assert checks["largest message of t"]["detail"].endswith(", and kafka.max.request.size is 9000000")
    assert checks["largest message of t"]["remedy"].endswith(" or decrease kafka.max.request.size.")
    conf.write_text(
        f"kafka.bootstrap.servers={bootstrap}\nkafka.security.protocol=SSL\nkafka.ssl.truststore.type=PEM\n"
        "kafka.ssl.truststore.location=/nope.pem\n"
    )
    status, checks = doctor_json(capsys, "--spark-conf", str(conf))
    assert status == 1
    assert checks["security"]["detail"].startswith("kafka.ssl.truststore.location is /nope.pem, which cannot be read")


@pytest.mark.parametrize("name", ["max.request.size", "kafka.max.request.size"])
def test_option_argument_overrides_spark_conf_with_or_without_prefix(
    capsys: Output, bootstrap: str, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text(f"kafka.bootstrap.servers={bootstrap}\ntopic=t\nkafka.max.request.size=9000000\n")
    status, checks = doctor_json(capsys, "--spark-conf", str(conf), "-X", f"{name}=1000")
    assert (status, checks["largest message of t"]["outcome"]) == (0, "passed")


def test_option_that_is_null_is_not_set(capsys: Output, bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text(json.dumps({"kafka.bootstrap.servers": bootstrap, "topic": None, "reportPath": None}))
    status, checks = doctor_json(capsys, "--spark-conf", str(conf), "--topic", "t")
    assert status == 0
    assert {name for name in checks if name.startswith("topic ")} == {"topic t"}
    assert "rows by task" not in checks


def test_accepts_options_that_need_register(capsys: Output, bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text(
        f"kafka.bootstrap.servers={bootstrap}\ntopic=t\nmaxTasks=4\nmaxBytesPerSecond=1000000\n"
        "distribution=partition\ndistributionTasks=2\n"
    )
    status, checks = doctor_json(capsys, "--spark-conf", str(conf))
    assert (status, checks["topic t"]["outcome"]) == (0, "passed")


def test_checks_rows_by_task_of_latest_write(capsys: Output, bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf, path = tmp_path / "options", str(tmp_path / "reports.jsonl")
    conf.write_text(f"kafka.bootstrap.servers={bootstrap}\ntopic=t\nreportPath={path}\n")

    def rows_by_task(*rows: int) -> dict[str, Any]:
        first = make_report()
        if rows:
            tasks = tuple(replace(first.task_list[0], partition_id=task, rows=count) for task, count in enumerate(rows))
            save_report(path, replace(first, task_list=tasks, tasks=len(rows), rows=sum(rows)))
        status, checks = doctor_json(capsys, "--spark-conf", str(conf))
        assert status == 0
        return checks["rows by task"]

    assert rows_by_task()["outcome"] == "skipped"
    skewed = rows_by_task(10, 90, 10, 10)
    assert skewed["outcome"] == "warning"
    assert skewed["detail"] == (
        "latest write: 4 tasks; the largest (1) has 3.0 times the mean, which is skewed. orders-0 has 100% of the rows."
    )
    assert "use a more selective key" in skewed["remedy"]
    even = rows_by_task(10, 11)
    assert (even["outcome"], even["remedy"]) == ("passed", "")


def test_checks_permissions_of_exactly_once_write(capsys: Output, bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text(f"kafka.bootstrap.servers={bootstrap}\ntopic=t\ndeliveryGuarantee=exactly-once\n")
    status, checks = doctor_json(capsys, "--spark-conf", str(conf))
    assert (status, checks["transactions"]["outcome"]) == (0, "passed")


@pytest.mark.parametrize(
    ("arguments", "name", "where"),
    [
        ([], "orders-driver", "all transactional ids with the prefix orders."),
        (["--transactional-id", "mine"], "mine", "this transactional id."),
    ],
)
def test_names_transactional_id_and_resource_of_missing_permission(
    capsys: Output, tmp_path: Path, arguments: list[str], name: str, where: str
) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    with embedded_broker({"t": 1}) as broker:
        broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        conf.write_text(
            f"kafka.bootstrap.servers={broker.bootstrap_servers}\ntopic=t\ndeliveryGuarantee=exactly-once\n"
            "transactionalIdPrefix=orders\n"
        )
        status, checks = doctor_json(capsys, "--spark-conf", str(conf), *arguments)
    assert status == 1
    assert checks["transactions"]["detail"] == f"this user is not authorized to use the transactional id {name}"
    assert checks["transactions"]["remedy"] == f"Grant this user the Write and Describe permissions on {where}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no bootstrap server is set: pass --bootstrap-server HOST:PORT"),
        (["--bootstrap-server", "nonsense"], "'nonsense', which is not HOST:PORT"),
        (["--spark-conf", "/nowhere"], "--spark-conf: /nowhere cannot be read"),
        (["--command-config", "/nowhere"], "--command-config: /nowhere cannot be read"),
        (["--spark-conf", "/nowhere", "--command-config", "/nowhere"], "cannot be used together"),
        (["--bootstrap-server", "a:1", "-X", "acsk=1"], "acsk is not an option"),
    ],
)
def test_prints_error_for_invalid_arguments(capsys: Output, arguments: list[str], message: str) -> None:
    assert main(["doctor", *arguments]) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("pykafka: ")
    assert captured.out == ""


def test_rejects_invalid_or_large_spark_conf(capsys: Output, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text('{"a": \n1,,')
    assert main(["doctor", "--spark-conf", str(conf)]) == 1
    assert (
        "--spark-conf: the file is not valid JSON: Expecting property name enclosed in double quotes: line 2"
        in capsys.readouterr().err
    )
    conf.write_text('{"a": ' + "[" * 100_000)
    assert main(["doctor", "--spark-conf", str(conf)]) == 1
    assert "--spark-conf: the file is not valid JSON" in capsys.readouterr().err
    conf.write_text(" " * (MAX_FILE_BYTES + 1))
    assert main(["doctor", "--spark-conf", str(conf)]) == 1
    assert "is longer than" in capsys.readouterr().err


def test_every_outcome_has_a_mark() -> None:
    assert {*doctor.MARKS} == {*doctor.PLAIN_MARKS} == {"passed", "warning", "failed", "skipped"}
