"""docs/compatibility.md lists the versions that are run, and says of each proposal whether it is there, or why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.support.kafka_versions import VERSIONS, KafkaVersion

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this one."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(("version", "row"), [*zip(VERSIONS, rows_of("Apache Kafka"), strict=True)])
def test_a_version_that_is_run_has_a_row_with_what_it_can(version: KafkaVersion, row: list[str]) -> None:
    exactly_once = "yes" if version.describes_transactions else "refused"
    assert row == [
        version.number,
        "ZooKeeper" if version.has_zookeeper else "KRaft",
        " and ".join(map(str, version.transactions)),
        *("yes", "yes", "yes", exactly_once, "yes", exactly_once),
    ]


def test_the_other_pages_name_the_same_oldest_and_newest_version() -> None:
    listing = next(version for version in VERSIONS if version.describes_transactions)
    oldest, with_exactly_once, newest = (
        ".".join(version.number.split(".")[:2]) for version in (VERSIONS[0], listing, VERSIONS[-1])
    )
    upgrading = (ROOT / "docs" / "upgrading.md").read_text()
    row = f"| Apache Kafka | {oldest}, for [exactly once](exactly-once.md) {with_exactly_once} | {newest} |"
    assert row in upgrading
    readme = (ROOT / "README.md").read_text()
    assert f"Apache Kafka {oldest} to {newest}, exactly once from {with_exactly_once} on" in readme


def test_a_service_has_a_link_to_its_own_documents() -> None:
    assert all(re.search(r"\]\(https://", row[0]) for row in rows_of("service"))


def test_a_proposal_is_there_or_the_reason_why_not() -> None:
    rows = rows_of("KIP")
    assert {row[2] for row in rows} == {"yes", "no"}
    assert [row for row in rows if row[2] == "no" and not row[3]] == []
    first = [int(row[0].split(",")[0]) for row in rows]
    assert first == sorted(first)
