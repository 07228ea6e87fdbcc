"""Secret option values appear nowhere: not in the plan, UI, event log, logs, errors or checkpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import create_pool
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.spark.secrets_job import SECRET


@pytest.mark.needs("java")
def test_spark_and_spark_connect_show_and_keep_no_secret(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.secrets_job", str(tmp_path)]
    job = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    shown = job.stdout + job.stderr
    assert job.returncode == 0, shown[-5000:]

    # The job has produced every output that could show secrets ...
    modules = (
        ["pyspark.sql.session", "pyspark.sql.connect.session"] if HAS_PYTHON_DATA_SOURCES else ["pyspark.sql.session"]
    )
    assert re.findall("=== (pyspark.*)", shown) == modules
    failed = {"batch job", "misspelt option", "stream with a misspelt option", "stream that fails"}
    assert set(re.findall("=== failed: ([^:]*)", shown)) >= failed
    ended_well = re.findall("=== ended well: (.*)", shown)
    assert sorted(ended_well) == sorted(len(modules) * ["stream without rows", "stream of changes"])
    assert "== Physical Plan ==" in shown
    assert "Unknown option 'tpoic'" in shown
    assert "127.0.0.1:1" in shown
    assert " DEBUG " in (tmp_path / "spark.log").read_text(errors="replace")
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.name == "events" and path.stat().st_size > 10_000 for path in kept)
    kinds = {path.parents[2].name for path in kept if path.parent.name == "commits"}
    assert kinds == ({"classic", "connect"} if HAS_PYTHON_DATA_SOURCES else {"classic"})
    assert any(path.parent.name == "ui" for path in kept)

    # ... and none of the output contains one.
    assert SECRET not in shown
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_debug_log_of_task_contains_no_secret(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="spark_kafka_sink")  # register() has set another level
    security = ListenerSecurity(protocol="SASL_PLAINTEXT", users={"alice": f"{SECRET}-right"})
    plan = ColumnPlan(value=0, fixed_topic="t")
    rows = pa.record_batch({"value": [b"v"]})
    with embedded_broker(topics={"t": 1}, security=security) as broker:
        pool = create_pool()
        right = _login(broker.bootstrap_servers, mechanism, "right")
        assert write_rows(right, plan, iter([rows]), pool).totals.rows == 1
        wrong = _login(broker.bootstrap_servers, mechanism, "wrong")
        with pytest.raises(DeliveryError, match=r"(?i)authentication") as raised:
            write_rows(wrong, plan, iter([rows]), pool)
        pool.close()
    assert "Connecting to" in caplog.text
    assert "authentication failed" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in str(raised.value) + repr(raised.value.__cause__) + repr(wrong) + repr(pool.__dict__)


def _login(bootstrap: str, mechanism: str, password: str) -> SinkOptions:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return parse_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": mechanism,
            "kafka.sasl.jaas.config": (
                f'org.apache.kafka.common.security.{module} required username="alice" password="{SECRET}-{password}";'
            ),
        }
    )
