"""What the pages name exists: options, commands and their flags, extras, modules, fields of the public names."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from spark_kafka_sink.cli.main import COMMANDS, parser
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.others import CONSUMER_OPTIONS, SOURCE_OPTIONS
from spark_kafka_sink.spark.options.table import SINK_OPTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KAFKA_OPTIONS = {*PRODUCER_OPTIONS, *SECURITY_OPTIONS, *CONSUMER_OPTIONS}
OWN_OPTIONS = {*SINK_OPTIONS, *SOURCE_OPTIONS}
EXTRAS = set(
    re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1], re.M)
)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_options_of_kafka_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"[`\"]kafka\.([a-z][a-z.]*[a-z])[`\"]", page.read_text()))
    assert sorted(named - KAFKA_OPTIONS) == []


@each_page
def test_options_that_examples_set_exist(page: Path) -> None:
    set_there = set(re.findall(r"\.option\(\s*\"(\w[\w.]*)\"", page.read_text()))
    own = {name for name in set_there if not name.startswith("kafka.")}
    assert sorted(own - OWN_OPTIONS) == []


@each_page
def test_extras_that_are_named_exist(page: Path) -> None:
    named = {
        name for names in re.findall(r"spark-kafka-sink\[([\w,]+)\]", page.read_text()) for name in names.split(",")
    }
    assert sorted(named - EXTRAS) == []


@each_page
def test_modules_that_are_run_or_imported_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"python -m ((?:spark_kafka_sink|tests|integration)[\w.]*)", text)
    named += re.findall(r"^from ((?:spark_kafka_sink)[\w.]*) import", text, re.M)
    for name in named:
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), name


@each_page
def test_commands_and_flags_that_are_named_exist(page: Path) -> None:
    flags = flags_of_commands()
    for line in re.findall(r"(?:^|`)pykafka ([a-z][^`\n]*)", page.read_text(), re.M):
        command = line.split()[0]
        assert command in COMMANDS, line
        assert set(re.findall(r"(--[a-z-]+)", line)) <= flags[command], line


def flags_of_commands() -> dict[str, set[str]]:
    found = {}
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found[name] = {flag for one in command._actions for flag in one.option_strings}
    return found
