"""The Python examples of pages that need no Spark run as they stand there, in order; only the address is put in.

Those of the other pages: tests/spark/test_documented_examples.py runs jobs and tests; tests/test_security_document.py
has the recipes parsed by the sink.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.spark.options import parse_options
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("producer.md",)
ELSEWHERE = {"developing.md", "formats.md", "index.md", "quickstart.md", "security.md", "testing.md"}
OF_OTHERS = {"cli.md", "deploying.md", "exactly-once.md", "monitoring.md"}
ADDRESS = "localhost:9092"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.mark.parametrize(("page", "number"), [(page, n) for page in PAGES for n in range(len(blocks(page)))])
def test_the_example_runs(broker: EmbeddedBroker, page: str, number: int) -> None:
    run(broker, page, number)


def run(broker: EmbeddedBroker, page: str, number: int) -> None:
    code = blocks(page)[number].replace(ADDRESS, broker.bootstrap_servers)
    exec(compile(code, f"{page}, example {number + 1}", "exec"), {"__name__": "example"})


def test_the_examples_of_the_producer_have_written_what_they_say() -> None:
    with embedded_broker(auto_create_topics=True) as broker:
        for number in range(len(blocks("producer.md"))):
            run(broker, "producer.md", number)
        assert {b"hello", b"hallo"} <= set(broker.topic("greetings").read().column("value").to_pylist())
        assert broker.topic("accounts").read().column("value").to_pylist() == [b"-100", b"+100"]
        assert broker.topic("orders").read().num_rows > 11_000


def test_no_page_has_examples_that_are_not_run() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "```python" in page.read_text()}
    assert pages - OF_OTHERS == {*PAGES, *ELSEWHERE}


class RecordedWriter:
    """What a job does with a DataFrame and its writer, noted down."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.saved = 0

    @property
    def write(self) -> RecordedWriter:
        return self

    def format(self, name: str) -> RecordedWriter:
        assert name == "pykafka"
        return self

    def option(self, name: str, value: str) -> RecordedWriter:
        self.options[name] = value
        return self

    def save(self) -> None:
        self.saved += 1


@pytest.mark.parametrize("number", range(len(blocks("formats.md"))))
def test_the_options_of_a_job_with_a_value_format_are_taken_by_the_sink(number: int) -> None:
    orders = RecordedWriter()
    exec(compile(blocks("formats.md")[number], "formats.md", "exec"), {"orders": orders})
    assert orders.saved == 1
    assert parse_options(orders.options).formats


def test_the_cluster_of_the_tests_has_what_its_example_calls(tmp_path: Path) -> None:
    made = create_autospec(KafkaCluster)
    made.return_value.__enter__.return_value = made.return_value
    example = next(block for block in blocks("developing.md") if "KafkaCluster" in block)
    exec(compile(example, "developing.md", "exec"), {"KafkaCluster": made, "folder": tmp_path})
    assert made.return_value.restart.call_count == 1
