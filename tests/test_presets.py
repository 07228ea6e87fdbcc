"""The files in conf/presets have valid options for the CLI and for Spark writes."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from spark_kafka_sink.cli.client_options import add_connection_arguments, parse_client_options
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.options.parse import BULK_DEFAULTS, parse_options

ROOT = Path(__file__).resolve().parents[1]
PRESETS = {path.stem: path for path in sorted((ROOT / "conf" / "presets").glob("*.properties"))}


def load(path: Path) -> dict[str, str]:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    arguments = parser.parse_args(["--bootstrap-server", "broker:9092", "--command-config", str(path)])
    return {name: str(value) for name, value in parse_client_options(arguments).items()}


def test_tuning_page_names_every_preset() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text()
    assert sorted(PRESETS) == ["cloud", "latency", "lossless", "throughput"]
    assert [name for name in PRESETS if f"`conf/presets/{name}.properties`" not in text] == []


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_accepted_by_the_cli_and_by_a_spark_write(name: str) -> None:
    options = load(PRESETS[name])
    assert options.keys() - {"bootstrap.servers"} <= PRODUCER_OPTIONS.keys()
    sink = parse_options({"topic": "t", **{f"kafka.{option}": value for option, value in options.items()}})
    assert sink.producer_options.items() >= options.items()


def test_throughput_preset_gives_the_cli_the_batches_of_a_spark_write() -> None:
    assert load(PRESETS["throughput"]).items() >= BULK_DEFAULTS.items()


def test_cloud_preset_has_the_options_of_the_event_hubs_section() -> None:
    section = (ROOT / "docs" / "providers.md").read_text().partition("## Azure Event Hubs")[2].partition("\n## ")[0]
    documented = dict(re.findall(r'"kafka\.([\w.]+)": "(\d+)"', section))
    assert len(documented) == 4
    assert {name: value for name, value in load(PRESETS["cloud"]).items() if name != "bootstrap.servers"} == documented
