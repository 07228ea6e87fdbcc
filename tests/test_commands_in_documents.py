"""Commands in the documents: every command in a shell block exists and accepts its arguments.

Other tests run the commands of docs/cli.md (tests/cli/scenarios/test_documented_commands.py), and those of
docs/deploying.md that work on a cluster of one machine (integration/test_spark_submit.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

import pytest

from spark_kafka_sink.cli.main import build_parser
from tests.documents import ROOT, command_lines, pages

MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = set(
    re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1], re.M)
)
WHEEL = r"(WHEEL|dist/\*\.whl|\$\(ls dist/\*\.whl\))"
EXTERNAL_PACKAGES = {"numpy<2", "pyarrow<26", "venv-pack", "pyspark[connect]>=4.0", "pyspark[connect,pipelines]"}
"""Third-party packages that the pages install."""
LINES = [(page, line) for page in pages() for line in command_lines(page)]


def simple_commands(line: str) -> list[list[str]]:
    """Split a command line into its simple commands: `a | b && c` has three."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def check_make(arguments: list[str]) -> None:
    for target in arguments:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def check_pykafka(arguments: list[str]) -> None:
    build_parser().parse_args(arguments)


def check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    for wanted in arguments[1:]:
        ours = re.fullmatch(rf"{WHEEL}(?:\[([\w,]+)\])?", wanted)
        assert ours or wanted in EXTERNAL_PACKAGES, (
            f"{wanted}: the package is not published, so a page installs the wheel"
        )
        extras = (ours[2] or "").split(",") if ours else []
        assert set(extras) - {""} <= EXTRAS


def check_python(arguments: list[str]) -> None:
    assert arguments[0] == "-m"
    if arguments[1] == "pytest":
        assert all((ROOT / path).exists() for path in arguments[2:] if not path.startswith("-"))
    else:
        module = arguments[1].replace(".", "/")
        assert arguments[1] == "venv" or (ROOT / f"{module}.py").exists()


def check_go(arguments: list[str]) -> None:
    assert arguments[0] == "-C"
    assert (ROOT / arguments[1] / "go.mod").exists()


def check_nothing(arguments: list[str]) -> None:
    """Accept any arguments, because another test runs the command or the page states that it is untested."""


CHECKS: Mapping[str, Callable[[list[str]], None]] = {
    "make": check_make,
    "pykafka": check_pykafka,
    "pip": check_pip,
    "environment/bin/pip": check_pip,
    "go": check_go,
    "python3": check_python,
    ".venv/bin/python": check_python,
    # Commands that the tests of docs/cli.md, docs/formats.md and docs/deploying.md run or check.
    **dict.fromkeys((".", "cp", "docker", "eval", "export", "jq", "printf", "protoc", "seq"), check_nothing),
    "kafka-acls.sh": check_nothing,  # one of Kafka's commands, as in Kafka's documentation
    **dict.fromkeys(
        ("environment/bin/venv-pack", "sbin/start-connect-server.sh", "spark-pipelines", "spark-submit"), check_nothing
    ),
}


@pytest.mark.parametrize(("page", "line"), LINES)
def test_documented_commands_and_arguments_exist(page: str, line: str) -> None:
    for command in simple_commands(line):
        CHECKS[command[0]](command[1:])


def test_splits_command_lines_like_a_shell() -> None:
    assert simple_commands("seq 3 | pykafka produce 'a b' && make x") == [
        ["seq", "3"],
        ["pykafka", "produce", "a b"],
        ["make", "x"],
    ]


@pytest.mark.parametrize("page", pages())
def test_installs_short_name_only_after_the_package(page: str) -> None:
    """Otherwise pip would search an index for a package that is not published yet."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"pip install [\"']?spark[-_]kafka[-_]sink", text):
        around = text[max(0, found.start() - 250) : found.end() + 250].replace("\n", " ")
        assert "already installed" in around or "Once the package is published" in around
