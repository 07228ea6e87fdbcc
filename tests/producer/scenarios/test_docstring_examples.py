"""Each public docstring of the producer has an example, and the examples run unchanged."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pytest

import spark_kafka_sink
from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import ROOT

ADDRESS = "localhost:9092"
API_PAGE = (ROOT / "docs" / "api.md").read_text()
METHODS = [
    f"KafkaProducer.{name}"
    for name in re.findall(r"^ +- (\w+)$", API_PAGE.split("spark_kafka_sink.KafkaProducer")[1].split(":::")[0], re.M)
]
CLASSES = re.findall(r"^::: spark_kafka_sink\.([A-Z]\w+)$", API_PAGE, re.M)
TRANSACTIONS = [name for name in METHODS if "transaction" in name]
OTHERS = [name for name in (*CLASSES, *METHODS) if name not in TRANSACTIONS]


def find_example(name: str) -> str:
    """Return the indented lines after "Example:" at the end of the docstring; empty if there are none."""
    documented = reduce(getattr, name.split("."), spark_kafka_sink)
    _, _, example = (inspect.getdoc(documented) or "").partition("\nExample:\n\n")
    return textwrap.dedent(example)


def run_example(name: str, broker: EmbeddedBroker, variables: dict[str, object]) -> None:
    code = find_example(name).replace(ADDRESS, broker.bootstrap_servers)
    compiled = compile(code, f"example of {name}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    awaited = eval(compiled, variables)
    if inspect.iscoroutine(awaited):
        asyncio.run(awaited)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture
def variables() -> dict[str, object]:
    return {"KafkaProducer": KafkaProducer, "ProducerRecord": ProducerRecord, "RecordColumns": RecordColumns, "pa": pa}


@pytest.mark.parametrize("name", [*CLASSES, *METHODS, "register"])
def test_public_docstring_has_an_example(name: str) -> None:
    assert find_example(name)


@pytest.mark.parametrize("name", OTHERS)
def test_example_runs(name: str, broker: EmbeddedBroker, variables: dict[str, object]) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        variables["producer"] = producer
        run_example(name, broker, variables)
        used = variables["producer"]
        assert isinstance(used, KafkaProducer)
        used.close()
        assert used.totals().errors == producer.totals().errors == 0


def test_examples_of_transactions_run_in_the_order_of_the_page(variables: dict[str, object]) -> None:
    with embedded_broker(auto_create_topics=True) as broker:
        broker.create_topic("orders")
        for name in TRANSACTIONS:
            run_example(name, broker, variables)
        for name in ("producer", "other"):
            producer = variables[name]
            assert isinstance(producer, KafkaProducer)
            producer.close()
        # One example aborts. Those of begin, transaction, commit, offsets and the takeover commit these rows.
        assert broker.topic("accounts").read().num_rows == 2 + 2 + 1 + 1 + 1
