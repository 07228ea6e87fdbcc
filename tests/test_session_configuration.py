"""The settings in conf/spark-defaults.conf exist, and conf/logging.json logs each line once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from spark_kafka_sink.spark.patches.drop_in import REDACTION_CONFS
from spark_kafka_sink.spark.pool import IDLE_TIMEOUT_CONF, parse_idle_timeout
from tests.documents import blocks
from tests.test_deploying_document import is_a_setting, read_jar_strings

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import logging
from spark_kafka_sink.spark.worker_log import LOGGER, install_stderr_handler
another = logging.getLogger("another")
{load}
install_stderr_handler()
LOGGER.info("wrote 10 rows")
logging.getLogger("spark_kafka_sink.client.connections").warning("No connection")
another.info("hidden")
another.warning("shown")
"""


def load_spark_defaults() -> dict[str, str]:
    """Read the file as java.util.Properties does: a value begins after the space, and a backslash escapes."""
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in pairs}


def test_spark_defaults_name_settings_of_spark_and_of_the_sink() -> None:
    sql_settings = read_jar_strings("spark-catalyst", r"internal/SQLConf") + read_jar_strings(
        "spark-sql-api", r"internal/"
    )
    names = load_spark_defaults().keys() - {IDLE_TIMEOUT_CONF}
    assert len(names) == 4
    assert {name for name in names if name not in sql_settings and not is_a_setting(name)} == set()


def test_commented_spark_defaults_name_settings_of_spark() -> None:
    text = (ROOT / "conf" / "spark-defaults.conf").read_text()
    assert [is_a_setting(name) for name in re.findall(r"^# (spark\.\S+)  ", text, re.MULTILINE)] == [True]


def test_spark_defaults_hide_the_secrets_that_register_hides() -> None:
    settings = load_spark_defaults()
    assert {
        name: value.removeprefix("(?i)url|") for name, value in settings.items() if name in REDACTION_CONFS
    } == REDACTION_CONFS
    assert settings["spark.sql.redaction.options.regex"].startswith("(?i)url|")


def test_spark_defaults_keep_idle_producers_for_the_default_time() -> None:
    assert parse_idle_timeout(load_spark_defaults()[IDLE_TIMEOUT_CONF]) == 600


def test_logging_configuration_prints_each_line_once_and_keeps_other_loggers() -> None:
    (load,) = (block for block in blocks("docs/deploying.md", "python") if "dictConfig" in block)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(load=load)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == [
        "INFO spark_kafka_sink: wrote 10 rows",
        "WARNING spark_kafka_sink.client.connections: No connection",
        "WARNING another: shown",
    ]
