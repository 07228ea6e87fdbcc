"""Files with options, and the check before a command writes. test_cat.py and test_doctor.py test the options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_kafka_sink.cli.client_options import check_write_access, read_text_file
from spark_kafka_sink.errors import ConfigurationError, PreflightError
from spark_kafka_sink.producer.config import ProducerConfig


def test_rejects_file_that_is_not_utf8_without_showing_it(tmp_path: Path) -> None:
    (path := tmp_path / "client.properties").write_bytes(b"sasl.password=hush\xff")
    with pytest.raises(ConfigurationError, match=r"--command-config: .*client\.properties is not UTF-8 text") as caught:
        read_text_file(path, "--command-config")
    assert "hush" not in str(caught.value)


def test_names_argument_of_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--spark-conf: .*nowhere cannot be read: No such file"):
        read_text_file(tmp_path / "nowhere", "--spark-conf")


def test_write_check_raises_error_of_unreachable_server_without_logging_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("spark_kafka_sink.client")
    level = log.level
    config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(PreflightError, match=r"127\.0\.0\.1:1: Connection refused"):
        check_write_access(config, "t")
    assert [record for record in caplog.records if record.name.startswith(log.name)] == []
    assert log.level == level
