"""Entry points, help and exit statuses of `pykafka`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

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


PROGRAM_WITH_COMMAND = """
import sys
from spark_kafka_sink.cli import main

class FailingCommand:
    COMMAND_HELP = "fail"
    add_arguments = staticmethod(lambda parser: None)
    run = staticmethod(lambda args: print("1 of 9 checks failed.") or 1)

sys.modules[main.__module__].COMMANDS = {"fail": FailingCommand}
sys.exit(main(["fail"]))
"""
"""Run a command that prints a line and fails."""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_broken_pipe_is_never_a_success(unbuffered: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM_WITH_COMMAND],
        stdout=write_end,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", [["cat", "t"], ["not-a-command"]])
def test_broken_pipe_of_stderr_has_same_status(arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "spark_kafka_sink", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=write_end,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error_even_if_stderr_is_broken() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM_WITH_COMMAND],
            stdout=stdout,
            stderr=write_end,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            check=False,
        )
    os.close(write_end)
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error(unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM_WITH_COMMAND],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"pykafka: No space left on device\n")


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_closed_stream_is_replaced_by_null_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: str
) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert main(["cat", "t"]) == 1
    opened_stream = getattr(sys, stream)
    assert opened_stream.name == os.devnull
    assert opened_stream.readable() == (stream == "stdin")
    opened_stream.close()
    if stream != "stderr":
        assert capsys.readouterr().err.startswith("pykafka: no bootstrap server is set")


def test_argument_that_is_not_utf8_is_an_error() -> None:
    arguments = [os.fsencode(sys.executable), b"-m", b"spark_kafka_sink", b"produce", b"t\xff"]
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    message = r"pykafka: the argument 't\udcff' is not encoded in UTF-8. Encode all arguments in UTF-8."
    assert (done.returncode, done.stderr) == (1, f"{message}\n")


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
