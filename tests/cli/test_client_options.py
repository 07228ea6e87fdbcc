"""Files with options, and the checks before a command writes or reads.

test_cat.py and test_doctor.py test the options.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spark_kafka_sink.broker.handlers import api_03_metadata
from spark_kafka_sink.cli import main
from spark_kafka_sink.cli.client_options import (
    check_write_access,
    parse_client_options,
    parse_properties,
    read_text_file,
)
from spark_kafka_sink.errors import ConfigurationError, PreflightError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol.acl_operation import AclOperation
from spark_kafka_sink.testing import embedded_broker


def test_rejects_file_that_is_not_utf8_without_showing_it(tmp_path: Path) -> None:
    (path := tmp_path / "client.properties").write_bytes(b"sasl.password=hush\xff")
    with pytest.raises(ConfigurationError, match=r"--command-config: .*client\.properties is not UTF-8 text") as caught:
        read_text_file(path, "--command-config")
    assert "hush" not in str(caught.value)


def test_names_argument_of_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--spark-conf: .*nowhere cannot be read: No such file"):
        read_text_file(tmp_path / "nowhere", "--spark-conf")


def test_properties_continue_after_backslash_as_in_java() -> None:
    lines = [
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\",
        '  username="alice" \\',
        '\t# password="...";',
        "# A comment does not continue: \\",
        r"ssl.key.password=ends in backslashes\\",
        "acks=all\\",
        "",
        "client.id=me\\",
    ]
    assert parse_properties(lines, "--command-config") == {
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" # password="...";',
        "ssl.key.password": r"ends in backslashes\\",
        "acks": "all",
        "client.id": "me",
    }


def test_properties_separate_name_and_value_at_first_colon_or_equals_sign() -> None:
    lines = ["bootstrap.servers: a:1,b:2", "ssl.key.password : a=b", "client.id=a:b", " acks =1 ", "linger.ms="]
    assert parse_properties(lines, "--command-config") == {
        "bootstrap.servers": "a:1,b:2",
        "ssl.key.password": "a=b",
        "client.id": "a:b",
        "acks": "1",
        "linger.ms": "",
    }


@pytest.mark.parametrize("line", ["hush", "ssl.key.password hush=", "ssl.key.password hush", '"hush"=;', "=hush", ":"])
def test_names_line_that_is_not_an_option_without_showing_it(line: str) -> None:
    lines = ["# comment", "sasl.jaas.config=a \\", 'username="hush"', "", line]
    with pytest.raises(ConfigurationError) as caught:
        parse_properties(lines, "--command-config")
    assert str(caught.value) == "--command-config: line 5 is not of the form NAME=VALUE"


def test_option_argument_does_not_continue_in_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", "t", "-X", "client.id=me\\", "-X", "acks=all", "-X", "hush"]) == 1
    assert capsys.readouterr().err == "pykafka: -X: an option is not of the form NAME=VALUE\n"
    args = argparse.Namespace(command_config=None, options=["client.id=me\\", "a=1\n2"], bootstrap_server="b:1")
    assert parse_client_options(args) == {"client.id": "me\\", "a": "1\n2", "bootstrap.servers": "b:1"}


def test_write_check_raises_error_of_unreachable_server_without_logging_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("spark_kafka_sink.client")
    level = log.level
    config = ProducerConfig.parse({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(PreflightError, match=r"127\.0\.0\.1:1: Connection refused"):
        check_write_access(config, "t")
    assert [record for record in caplog.records if record.name.startswith(log.name)] == []
    assert log.level == level


@pytest.mark.parametrize(
    ("command", "required"),
    [
        (["cat", "t"], AclOperation.READ),
        (["topics", "t"], AclOperation.DESCRIBE),
        (["produce", "t"], AclOperation.WRITE),
        (["doctor", "--topic", "t"], AclOperation.WRITE),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize(
    "granted",
    [{AclOperation.READ}, {AclOperation.WRITE}, set()],
    ids=["a reader", "a writer", "a user who may only describe"],
)
def test_command_requires_only_permission_for_what_it_does(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: list[str],
    required: AclOperation,
    granted: set[AclOperation],
) -> None:
    operations = sum(1 << operation.value for operation in granted | {AclOperation.DESCRIBE})
    describe_topic = api_03_metadata._describe_topic
    monkeypatch.setattr(
        api_03_metadata,
        "_describe_topic",
        lambda *arguments: replace(describe_topic(*arguments), topic_authorized_operations=operations),
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"a\n"))))
    with embedded_broker({"t": 1}) as broker:
        status = main([command[0], "--bootstrap-server", broker.bootstrap_servers, *command[1:]])
    is_permitted = required in granted | {AclOperation.DESCRIBE}
    assert status == (0 if is_permitted else 1)
    remedy = f"Grant this user the {required.permission} permission on the topic."
    assert (remedy in "".join(capfd.readouterr())) != is_permitted
