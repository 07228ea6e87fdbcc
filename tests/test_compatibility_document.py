"""docs/compatibility.md: lists the tested versions, and for each KIP whether it is supported, or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.kafka_versions import VERSIONS, KafkaVersion

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table whose header begins with this text."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(("version", "row"), [*zip(VERSIONS, rows_of("Apache Kafka"), strict=True)])
def test_every_tested_version_has_a_row_of_features(version: KafkaVersion, row: list[str]) -> None:
    exactly_once = "yes" if version.describes_transactions else "rejected"
    assert row == [
        version.number,
        "ZooKeeper" if version.has_zookeeper else "KRaft",
        " and ".join(map(str, version.transactions)),
        *("yes", "yes", "yes", exactly_once, "yes", exactly_once),
    ]
