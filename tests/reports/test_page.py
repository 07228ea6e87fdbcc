"""The page of reports: whole in one file, and looked at in a browser."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.reports import text_report
from spark_kafka_sink.reports.figures import build_figures
from spark_kafka_sink.reports.html_page import render_page
from spark_kafka_sink.reports.write_report import FAILED, WriteReport
from tests.reports.some_reports import job, report
from tests.requirements import browser

EVIL = "<script>alert(1)</script>&\"'"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBBox()]);
  const view = svg.viewBox.baseVal, found = [];
  boxes.forEach(([words, box], index) => {
    if (box.x < -1 || box.y < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1)
      found.push(words + ' is cut off');
    for (const [others, other] of boxes.slice(index + 1))
      if (box.x < other.x + other.width && other.x < box.x + box.width &&
          box.y + 3 < other.y + other.height - 3 && other.y + 3 < box.y + box.height - 3)
        found.push(words + ' lies upon ' + others);
  });
  return found;
})"""
HEIGHTS_OF_WORDS = """() => [...document.querySelectorAll('svg')].map(svg =>
  parseFloat(getComputedStyle(svg).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
CONTRASTS = """() => {
  const parts = color => color.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = color => parts(color).map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const card = light(getComputedStyle(document.querySelector('figure')).backgroundColor);
  const ratio = one => (Math.max(one, card) + 0.05) / (Math.min(one, card) + 0.05);
  return [...document.querySelectorAll('svg text, figcaption, h2, td, dd, dt, small')].map(each => {
    const style = getComputedStyle(each);
    return ratio(light(each instanceof SVGElement ? style.fill : style.color));
  });
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=browser(), args=FLAGS)
        yield found
        found.close()


def dots(svg: str, style: str) -> list[float]:
    return [float(place) for place in re.findall(rf'<circle class="dot {style}" cx="([0-9.]+)"', svg)]


def test_times_are_to_scale() -> None:
    seconds = (0, 10, 100, 1_000)
    reports = [dataclasses.replace(report(), started_ms=1_700_000_000_000 + 1_000 * one) for one in seconds]
    throughput, latency, _, retries, *_ = build_figures([*reversed(reports)])
    bars = [
        float(x) + float(wide) / 2
        for x, wide in re.findall(r'class="bar" x="([0-9.]+)".*? width="([0-9.]+)"', retries.svg)
    ]
    for places in (dots(throughput.svg, "s1"), dots(latency.svg, "s3"), bars):
        assert len(places) == len(seconds)
        wide = places[-1] - places[0]
        assert [(place - places[0]) / wide for place in places] == pytest.approx([0, 0.01, 0.1, 1], abs=0.002)
        assert wide > 380


def test_no_line_is_drawn_through_a_pause() -> None:
    seconds = (0, 10, 20, 30, 1_000, 1_010)
    reports = [dataclasses.replace(report(), started_ms=1_700_000_000_000 + 1_000 * each) for each in seconds]
    throughput, latency, *_ = build_figures(reports)
    for svg in (throughput.svg, latency.svg):
        for path in re.findall(r'<path class="line s\d" d="([^"]*)"', svg):
            assert re.sub(r"[^ML]", "", path) == "MLLLML"


def test_writes_at_usual_intervals_are_one_line() -> None:
    reports = [dataclasses.replace(report(), started_ms=1_700_000_000_000 + each) for each in (0, 10, 25, 60, 65)]
    throughput, *_ = build_figures(reports)
    (path,) = re.findall(r'<path class="line s1" d="([^"]*)"', throughput.svg)
    assert re.sub(r"[^ML]", "", path) == "MLLLL"


def test_separates_waits_for_quotas_from_waits_for_max_bytes_per_second() -> None:
    text = render_page(
        [dataclasses.replace(report(), paced_ms=1_500, producer=Totals(throttle_ms=250))], "reports.jsonl"
    )
    assert "throttled by quotas 250 ms, by maxBytesPerSecond 1.5 s; total of all tasks" in text


def test_writes_of_one_moment_stand_side_by_side() -> None:
    throughput, *_ = build_figures([report(), report(), report()])
    first, second, third = dots(throughput.svg, "s1")
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert first < second


def test_writes_of_several_days_are_labelled_with_the_day_and_not_upon_each_other() -> None:
    hours = [0, 1, 2, 30, 31, 47, 48]
    reports = [dataclasses.replace(report(), started_ms=1_700_000_000_000 + 3_600_000 * one) for one in hours]
    throughput, *_ = build_figures(reports)
    labels = re.findall(r'<text class="tick" x="([0-9.]+)" y="240.0" text-anchor="middle">([^<]*)<', throughput.svg)
    assert [label for _, label in labels] == ["11-14 22:13", "11-16 04:13", "11-16 22:13"]
    places = [float(place) for place, _ in labels]
    assert min(after - before for before, after in pairwise(places)) > 90


def opened(chromium: Any, path: Path, reports: list[WriteReport], **settings: Any) -> tuple[Page, list[str]]:
    """The page in a browser without a network, and what it asked for and complained of."""
    file = path / "page.html"
    file.write_text(render_page(reports, "reports.jsonl"), encoding="utf-8")
    shown = chromium.new_context(offline=True, **settings).new_page()
    noticed: list[str] = []
    shown.on("request", lambda request: noticed.append(request.url))
    shown.on("console", lambda message: noticed.append(message.text))
    shown.on("pageerror", lambda error: noticed.append(str(error)))
    shown.goto(file.as_uri())
    assert noticed.pop(0) == file.as_uri()
    return shown, noticed


@pytest.mark.needs("browser")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("writes", [0, 1, 40])
def test_a_browser_shows_all_charts_and_no_words_lie_upon_each_other(
    chromium: Any, tmp_path: Path, writes: int, width: int
) -> None:
    shown, noticed = opened(chromium, tmp_path, job(writes), viewport={"width": width, "height": 900})
    charts = [chart.bounding_box() for chart in shown.query_selector_all("figure svg")]
    assert len(charts) == 7
    assert all(box is not None and box["width"] > 250 and box["height"] > 20 for box in charts)
    assert shown.evaluate(OVERLAPS) == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert min(shown.evaluate(HEIGHTS_OF_WORDS)) >= 9, "a chart that is wider than the screen is moved sideways"
    assert noticed == [], "it asks for nothing and has no complaints"


@pytest.mark.needs("browser")
def test_names_of_lines_that_end_together_stand_below_each_other(chromium: Any, tmp_path: Path) -> None:
    shown, _ = opened(chromium, tmp_path, [report(number, latency_ms=20) for number in range(3)])
    assert shown.evaluate(OVERLAPS) == []


@pytest.mark.needs("browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_by_day_and_by_night(chromium: Any, tmp_path: Path, scheme: str) -> None:
    shown, _ = opened(chromium, tmp_path, job(20), color_scheme=scheme)
    contrasts = shown.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert min(contrasts) >= 4.5
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 384) == (scheme == "light")


@pytest.mark.needs("browser")
def test_lines_differ_without_colour(chromium: Any, tmp_path: Path) -> None:
    shown, _ = opened(chromium, tmp_path, job(20))
    dashes = shown.evaluate(
        "[...document.querySelectorAll('figure:nth-child(2) path')].map(line => getComputedStyle(line).strokeDasharray)"
    )
    assert len(set(dashes)) == len(dashes) == 3
    names = shown.evaluate("[...document.querySelectorAll('figure:nth-child(2) .name')].map(name => name.textContent)")
    assert names == ["p99", "p95", "p50"]


@pytest.mark.needs("browser")
def test_what_the_mouse_rests_on_says_its_numbers(chromium: Any, tmp_path: Path) -> None:
    shown, _ = opened(chromium, tmp_path, job(3))
    hints = shown.evaluate("[...document.querySelectorAll('svg rect > title')].map(title => title.textContent)")
    assert any(hint.startswith("orders-5: ") and hint.endswith(" rows") for hint in hints)


def test_every_chart_is_well_formed_and_named() -> None:
    text = render_page(job(12), "reports.jsonl")
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 7
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_the_page_needs_nothing_but_itself() -> None:
    text = render_page(job(12), "s3a://bucket/reports")
    assert re.findall(r"(?:src|href|@import|url\()\s*=?", text) == []
    assert "<script" not in text


def test_names_of_topics_hosts_and_batches_are_only_words() -> None:
    hostile = dataclasses.replace(
        report(),
        batch=f"{EVIL}/{EVIL}",
        partitions={EVIL: {0: OffsetRange(0, 9, 10)}},
        errors={EVIL: 2},
        task_list=(dataclasses.replace(report().task_list[0], host=EVIL),),
    )
    text = render_page([hostile], EVIL)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(chart)


def test_a_write_that_failed_is_marked() -> None:
    reports = job(5)
    reports[2] = dataclasses.replace(reports[2], status=FAILED)
    text = render_page(reports, "reports.jsonl")
    assert "1 failed" in text
    assert "✗: 1 write that failed" in text
    assert '<td class="text failed">✗ failed</td>' in text


def test_skew_is_described_in_words() -> None:
    text = render_page(job(5), "reports.jsonl")
    assert re.search(r"6 partitions; the largest \(orders-5\) has 2\.\d times the mean, which is skewed", text)
    assert "99 % within" in text


def test_a_single_partition_is_not_called_even() -> None:
    assert "All rows are in one partition." in render_page([report(0)], "reports.jsonl")


def test_a_write_without_rows_has_a_page_and_a_table_that_say_so() -> None:
    empty = dataclasses.replace(report(0), rows=0, partitions={}, producer=Totals())
    text = render_page([empty], "reports.jsonl")
    assert "No partition has rows." in text
    assert "nan" not in text
    assert "topic" not in "".join(text_report.render_lines([empty])), "no head without a row"
