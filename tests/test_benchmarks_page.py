"""The benchmarks page: the measuring command writes its table and chart, and the row in the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.benchmarks import page, wide
from integration.benchmarks.page import (
    BEGIN,
    END,
    FOREACH_PARTITION,
    FULL,
    QUICK,
    Line,
    build_line,
    format_results,
    format_table,
    iterate_turns,
    write_history,
    write_page,
)
from spark_kafka_sink.testing import embedded_broker

SPARK = Line(
    "**Spark**",
    "rows/s",
    [1_800_000, 1_700_000, 1_900_000],
    [1_000_000, 1_000_000, 1_000_000],
    "Spark's own",
    "1.8",
    "no disk",
)
FOREACH = Line("...", "rows/s", [1_700_000], [500_000], FOREACH_PARTITION)
BATCH = Line("a micro-batch", "ms", [100, 90, 400], [100, 100, 100], "noop")


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Return a directory with copies of the page and the README."""
    for name in ("PAGE", "README"):
        copy = tmp_path / name
        copy.write_text(getattr(page, name).read_text())
        monkeypatch.setattr(page, name, copy)
    return tmp_path / "PAGE", tmp_path / "README"


def test_row_contains_medians_and_ratios_of_all_rounds() -> None:
    assert (
        SPARK.format_row()
        == "| **Spark** | 1,800,000 rows/s | 1,000,000 | Spark's own | **1.80** | 1.8 | 1.80, 1.70, 1.90 |"
    )


def test_ratio_is_the_median_of_ratios() -> None:
    seen = {"a": [{"CPU": 10.0}, {"CPU": 40.0}, {"CPU": 90.0}], "b": [{"CPU": 10.0}, {"CPU": 20.0}, {"CPU": 30.0}]}
    assert "**2.00** |  | 1.00, 2.00, 3.00 |" in build_line("CPU", "ms", seen, "CPU", ("a", "b"), "").format_row()
    assert "**0.50** |  | 1.00, 0.50, 0.33 |" in build_line("CPU", "ms", seen, "CPU", ("b", "a"), "").format_row()


def test_formats_small_figures_with_one_more_digit() -> None:
    assert "| 2.5 ms | 1.5 |" in Line("x", "ms", [2.5], [1.5], "y").format_row()


def test_updates_only_measurements_in_page_and_readme(documents: tuple[Path, Path]) -> None:
    copy, readme = documents
    before, _, after = copy.read_text().partition(BEGIN)
    write_page(format_results([SPARK, FOREACH, BATCH], "On two cores."), [SPARK, FOREACH, BATCH])
    text = copy.read_text()
    assert text.startswith(before + BEGIN)
    assert text.endswith(END + after.partition(END)[2])
    assert format_table([SPARK, FOREACH, BATCH]) in text
    assert "On two cores." in text
    assert 'x-axis ["pykafka, no disk: 1,800", "Spark, no disk: 1,000"]' in text
    assert "bar [1800, 1000]" in text
    assert "| 1,000,000 | 500,000 | 1,800,000 |" in readme.read_text()
    assert len(readme.read_text().splitlines()) == len(page.ROOT.joinpath("README.md").read_text().splitlines())


def test_second_update_changes_nothing(documents: tuple[Path, Path]) -> None:
    text = format_results([SPARK, FOREACH], "")
    write_page(text, [SPARK, FOREACH])
    once = [document.read_text() for document in documents]
    write_page(text, [SPARK, FOREACH])
    assert [document.read_text() for document in documents] == once


def test_history_keeps_rows_of_other_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "HISTORY", tmp_path / "history.md")
    page.HISTORY.write_text("| day | commit |\n| 2026-11-01 | `old` | x |\n")
    for _ in range(2):
        write_history([SPARK, BATCH], "2026-11-02", "new")
    assert page.HISTORY.read_text().splitlines() == [
        "| day | commit |",
        "| 2026-11-01 | `old` | x |",
        "| 2026-11-02 | `new` | **Spark** | 1,800,000 rows/s | 1,000,000 rows/s | Spark's own | 1.80 |",
        "| 2026-11-02 | `new` | a micro-batch | 100 ms | 100 ms | noop | 1.00 |",
    ]


def test_reverses_order_in_every_second_round() -> None:
    assert list(iterate_turns(["a", "b"], 2)) == [(0, "b"), (0, "a"), (1, "a"), (1, "b")]


def test_quick_run_measures_at_least_one_case() -> None:
    assert [FULL.scale_count(30, 12), QUICK.scale_count(30, 12), QUICK.scale_count(100), QUICK.scale_count(1)] == [
        30,
        12,
        20,
        1,
    ]


def test_measures_wide_cluster_from_creation_to_last_acknowledgement() -> None:
    with embedded_broker(topics={"p40": 40}, nodes=3, discard=True) as broker:
        figures = wide.run_pykafka(broker.bootstrap_servers, "p40", 2 * wide.ROWS)
    assert set(figures) == {"cpu_ns", "first_ms", "first_cpu_ms", "peak_mb", "requests", "refresh_cpu_ms"}
    assert min(figures.values()) > 0
    assert figures["requests"] >= 3


def test_compares_wide_clusters_with_other_clients_and_with_few_partitions() -> None:
    results: wide.RoundFigures = {}
    for number, (nodes, partitions) in enumerate((nodes, count) for nodes in wide.NODES for count in wide.PARTITIONS):
        own = {"cpu_ns": 100.0 * (number + 1), "first_cpu_ms": 9.0, "peak_mb": 8.0, "requests": 7.0}
        results[wide.build_case_name("pykafka", nodes, partitions)] = [{**own, "refresh_cpu_ms": 30.0}]
        results[wide.build_case_name("confluent-kafka", nodes, partitions)] = [
            {key: 2 * value for key, value in own.items()}
        ]
    rows = [line.format_row() for line in wide.build_lines(results)]
    assert "| CPU of 3 brokers, 12 partitions | 100 ns/record | 200 |" in rows[0]
    assert [row.split("|")[5].strip() for row in rows[:8]] == ["**0.50**"] * 3 + ["**3.00**"] + ["**0.50**"] * 3 + [
        "**0.01**"  # 30 ms in 300 s are 0.01 % of a core
    ]
    assert len(rows) == 16
