"""The examples of docs/testing.md are tests, and they pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def examples() -> dict[str, Callable[[SparkSession], None]]:
    found: dict[str, Callable[[SparkSession], None]] = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        names: dict[str, object] = {"__name__": "example"}
        exec(compile(block, str(DOCUMENT), "exec"), names)
        found |= {name: made for name, made in names.items() if name.startswith("test_") and callable(made)}
    return found


@pytest.mark.parametrize("name", ["test_the_orders_are_written", "test_an_answer_that_gets_lost_doubles_nothing"])
def test_the_example_does_what_it_says(spark: SparkSession, name: str) -> None:
    examples()[name](spark)
