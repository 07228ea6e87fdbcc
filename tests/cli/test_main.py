"""Entry points, help and exit statuses of `pykafka`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from spark_kafka_sink import __version__
from spark_kafka_sink.cli import main as cli_main
from spark_kafka_sink.cli.main import COMMANDS, main
from spark_kafka_sink.errors import KafkaSinkError


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["spark_kafka_sink", "spark_kafka_sink.cli"])
def test_module_prints_version(module: str) -> None:
    done = run_module(module, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pykafka {__version__}\n", "")


def test_version_matches_installed_package() -> None:
    assert version("spark-kafka-sink") == __version__


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    output = capsys.readouterr().out
    assert [
        name
        for name, command in COMMANDS.items()
        if name not in output or command.COMMAND_HELP.split()[0] not in output
    ] == []
    assert "pykafka doctor --bootstrap-server" in " ".join(output.split()), "where to begin"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KafkaSinkError("the broker is on fire"), 1, "pykafka: the broker is on fire\n"),
        (OSError(28, "No space left on device"), 1, "pykafka: No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_error_becomes_exit_status_and_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    class Ending:
        COMMAND_HELP = "end"

        def add_arguments(self, parser: object) -> None:
            pass

        def run(self, args: object) -> int:
            raise error

    monkeypatch.setattr(sys.modules[main.__module__], "COMMANDS", {"end": Ending()})
    assert main(["end"]) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    "arguments",
    [[], ["cat"], ["cat", "t", "--nope"], ["cat", "t", "--format", "csv"], ["cat", "t", "--max-messages", "abc"]],
)
def test_unparsable_command_line_exits_with_status_2_and_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: pykafka")


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat", "t"],
        ["cat", "t", "--bootstrap-server", "a:1", "--max-messages", "-1"],
        ["cat", "t", "--bootstrap-server", "a:1", "-X", "request.timeout.ms=abc"],
        ["transactions", "finish", "--bootstrap-server", "a:1"],
    ],
)
def test_invalid_value_that_parser_accepts_exits_with_status_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("pykafka: ")


def test_parser_imports_neither_pyarrow_nor_spark() -> None:
    code = "import sys, spark_kafka_sink.cli; sys.exit(bool({'pyarrow', 'pyspark', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_entry_point_is_main() -> None:
    assert cli_main is main
