"""docs/compatibility.md: tested versions, and features on each Spark version."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.kafka_versions import VERSIONS, KafkaVersion
from tools import spark_matrix

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def find_table_rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose header begins with this text."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize(("version", "row"), [*zip(VERSIONS, find_table_rows("Apache Kafka"), strict=True)])
def test_every_tested_version_has_a_row_of_features(version: KafkaVersion, row: list[str]) -> None:
    exactly_once = "yes" if version.describes_transactions else "rejected"
    assert row == [
        version.number,
        "ZooKeeper" if version.has_zookeeper else "KRaft",
        " and ".join(map(str, version.transactions)),
        *("yes", "yes", "yes", exactly_once, "yes", exactly_once),
    ]


def test_every_tested_spark_has_a_row_of_features() -> None:
    versions = (ROOT / "tests" / "spark" / "pyspark_versions.txt").read_text().split()
    rows = [row[0] for row in find_table_rows("Spark version")]
    assert set(rows) >= {*(f"Spark {version}" for version in versions), "Sail"}


def test_platforms_page_counts_runtimes_whose_spark_runs_the_smoke_suite() -> None:
    platforms = (ROOT / "docs" / "platforms.md").read_text()
    table = platforms.split("| Runtime | Spark |", 1)[1].split("\n\n", 1)[0]
    spark_versions = [line.split(" | ")[1] for line in table.splitlines()[2:]]
    features = [*spark_matrix.FEATURES]
    required = [features.index(name) for name in ("batch", "stream", "exactly-once batch", "exactly-once stream")]
    tested = {
        row[0].removeprefix("Spark ").rpartition(".")[0]
        for row in find_table_rows("Spark version")
        if all(row[index + 1] == "yes" for index in required)
    }
    count = sum(version in tested for version in spark_versions)
    assert f"{count} of these {len(spark_versions)} runtimes" in " ".join(platforms.split())


def test_every_feature_of_the_spark_matrix_names_existing_tests() -> None:
    sources = [ROOT / "tests" / "spark" / "smoke_tests.txt", ROOT / "integration" / "test_sail.py"]
    text = "".join(source.read_text() for source in sources)
    assert [test for tests in spark_matrix.FEATURES.values() for test in tests if test not in text] == []


def write_results(file: Path, cases: dict[str, str]) -> None:
    """Write a JUnit file: test name -> element inside its test case."""
    elements = "".join(f'<testcase name="{name}">{outcome}</testcase>' for name, outcome in cases.items())
    file.write_text(f"<testsuites><testsuite>{elements}</testsuite></testsuites>")


def test_spark_matrix_shows_yes_only_if_test_of_feature_passed(tmp_path: Path) -> None:
    write_results(tmp_path / "10.0.1.xml", {"test_writes_each_row_once_and_reports_tasks": ""})
    write_results(tmp_path / "9.5.0.xml", {"test_stream_writes_in_each_output_mode[append]": ""})
    write_results(tmp_path / "sail.xml", {"test_writes_each_row_once[options0]": ""})
    table = spark_matrix.build_table(spark_matrix.read_results(tmp_path)).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in table[2:]}
    column = dict(zip(spark_matrix.FEATURES, range(len(spark_matrix.FEATURES)), strict=True))
    assert [*cells] == ["Spark 9.5.0", "Spark 10.0.1", "Sail"]
    assert cells["Spark 10.0.1"][column["`mapInArrow`"]] == "yes"
    assert cells["Spark 9.5.0"][column["`mapInArrow`"]] == "no"
    assert cells["Sail"][column["batch"]] == "yes"


@pytest.mark.parametrize("outcome", ["<failure/>", "<error/>", "<skipped/>"])
def test_spark_matrix_rejects_results_in_which_a_test_did_not_pass(tmp_path: Path, outcome: str) -> None:
    write_results(tmp_path / "4.0.1.xml", {"test_writes_each_row_once_and_reports_tasks": outcome})
    with pytest.raises(spark_matrix.MatrixError, match=r"4\.0\.1\.xml: test_writes_each_row_once_and_reports_tasks"):
        spark_matrix.read_results(tmp_path)
