"""docs/cli.md documents every flag of every command with its help text."""

from __future__ import annotations

import re

from spark_kafka_sink.cli.main import COMMANDS
from tools.flags_document import DOCUMENT, build_sections, find_parsers, render_document

PAGE = DOCUMENT.read_text()


def test_flag_tables_match_parser() -> None:
    assert render_document(PAGE) == PAGE, "run `make docs`"


def test_every_command_has_a_heading() -> None:
    headings = re.findall(r"^## `pykafka ([a-z-]+)", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


def test_documented_flags_exist() -> None:
    known = {
        flag for command in find_parsers().values() for action in command._actions for flag in action.option_strings
    }
    known |= {"--version", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+(?:\.[a-z]+)?", PAGE)) - known == set()


def test_every_argument_has_help() -> None:
    tables = "".join(build_sections().values())
    assert re.findall(r"^\| (`[^`]+`) \|  \|$", tables, re.MULTILINE) == []
