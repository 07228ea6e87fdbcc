"""HTML page of reports, as text and in a browser."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals
from spark_kafka_sink.reports import text_report
from spark_kafka_sink.reports.html_page import render_page
from spark_kafka_sink.reports.write_report import FAILED, WriteReport
from tests.reports.report_factories import make_micro_batches, make_report
from tests.requirements import browser

HOSTILE_TEXT = "<script>alert(1)</script>&\"'"
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
OVERLAPS_SCRIPT = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
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
TEXT_HEIGHTS_SCRIPT = """() => [...document.querySelectorAll('svg')].map(svg =>
  parseFloat(getComputedStyle(svg).fontSize) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"""
CONTRASTS_SCRIPT = """() => {
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
        browser_instance = playwright.chromium.launch(executable_path=browser(), args=BROWSER_FLAGS)
        yield browser_instance
        browser_instance.close()


def test_page_separates_quota_and_max_bytes_per_second_throttling() -> None:
    text = render_page(
        [dataclasses.replace(make_report(), paced_ms=1_500, producer=Totals(throttle_ms=250))], "reports.jsonl"
    )
    assert "all tasks combined; 250 ms throttled by broker quotas, 1.5 s by maxBytesPerSecond" in text


def open_page(chromium: Any, path: Path, reports: list[WriteReport], **settings: Any) -> tuple[Page, list[str]]:
    """Open the page in a browser without a network. Return the page, the requested URLs and its error messages."""
    file = path / "page.html"
    file.write_text(render_page(reports, "reports.jsonl"), encoding="utf-8")
    opened_page = chromium.new_context(offline=True, **settings).new_page()
    messages: list[str] = []
    opened_page.on("request", lambda request: messages.append(request.url))
    opened_page.on("console", lambda message: messages.append(message.text))
    opened_page.on("pageerror", lambda error: messages.append(str(error)))
    opened_page.goto(file.as_uri())
    assert messages.pop(0) == file.as_uri()
    return opened_page, messages


@pytest.mark.needs("browser")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("writes", [0, 1, 40])
def test_browser_shows_all_charts_without_overlapping_text(
    chromium: Any, tmp_path: Path, writes: int, width: int
) -> None:
    opened_page, messages = open_page(
        chromium, tmp_path, make_micro_batches(writes), viewport={"width": width, "height": 900}
    )
    charts = [chart.bounding_box() for chart in opened_page.query_selector_all("figure svg")]
    assert len(charts) == 7
    assert all(box is not None and box["width"] > 250 and box["height"] > 20 for box in charts)
    assert opened_page.evaluate(OVERLAPS_SCRIPT) == []
    assert opened_page.evaluate("document.documentElement.scrollWidth") <= width
    assert min(opened_page.evaluate(TEXT_HEIGHTS_SCRIPT)) >= 9, "charts that are wider than the screen scroll"
    assert messages == [], "no requests and no errors"


@pytest.mark.needs("browser")
def test_names_of_lines_with_equal_ends_do_not_overlap(chromium: Any, tmp_path: Path) -> None:
    opened_page, _ = open_page(chromium, tmp_path, [make_report(number, latency_ms=20) for number in range(3)])
    assert opened_page.evaluate(OVERLAPS_SCRIPT) == []


@pytest.mark.needs("browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_sufficient_contrast_in_light_and_dark_mode(chromium: Any, tmp_path: Path, scheme: str) -> None:
    opened_page, _ = open_page(chromium, tmp_path, make_micro_batches(20), color_scheme=scheme)
    contrasts = opened_page.evaluate(CONTRASTS_SCRIPT)
    assert len(contrasts) > 100
    assert min(contrasts) >= 4.5
    paper = opened_page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) > 384) == (scheme == "light")


@pytest.mark.needs("browser")
def test_lines_differ_without_color(chromium: Any, tmp_path: Path) -> None:
    opened_page, _ = open_page(chromium, tmp_path, make_micro_batches(20))
    dashes = opened_page.evaluate(
        "[...document.querySelectorAll('figure:nth-child(2) path')].map(line => getComputedStyle(line).strokeDasharray)"
    )
    assert len(set(dashes)) == len(dashes) == 3
    names = opened_page.evaluate(
        "[...document.querySelectorAll('figure:nth-child(2) .name')].map(name => name.textContent)"
    )
    assert names == ["p99", "p95", "p50"]


@pytest.mark.needs("browser")
def test_tooltips_show_numbers(chromium: Any, tmp_path: Path) -> None:
    opened_page, _ = open_page(chromium, tmp_path, make_micro_batches(3))
    hints = opened_page.evaluate("[...document.querySelectorAll('svg rect > title')].map(title => title.textContent)")
    assert any(hint.startswith("orders-5: ") and hint.endswith(" rows") for hint in hints)


def test_charts_are_well_formed_and_labeled() -> None:
    text = render_page(make_micro_batches(12), "reports.jsonl")
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 7
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")


def test_page_has_no_external_resources() -> None:
    text = render_page(make_micro_batches(12), "s3a://bucket/reports")
    assert re.findall(r"(?:src|href|@import|url\()\s*=?", text) == []
    assert "<script" not in text


def test_escapes_names_of_topics_hosts_and_batches() -> None:
    hostile = dataclasses.replace(
        make_report(),
        batch=f"{HOSTILE_TEXT}/{HOSTILE_TEXT}",
        partitions={HOSTILE_TEXT: {0: OffsetRange(0, 9, 10)}},
        errors={HOSTILE_TEXT: 2},
        task_list=(dataclasses.replace(make_report().task_list[0], host=HOSTILE_TEXT),),
    )
    text = render_page([hostile], HOSTILE_TEXT)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4
    for chart in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(chart)


def test_marks_failed_write() -> None:
    reports = make_micro_batches(5)
    reports[2] = dataclasses.replace(reports[2], status=FAILED)
    text = render_page(reports, "reports.jsonl")
    assert "1 failed" in text
    assert "✗ marks 1 write that failed" in text
    assert '<td class="text failed">✗ failed</td>' in text


def test_page_describes_partition_skew() -> None:
    text = render_page(make_micro_batches(5), "reports.jsonl")
    assert re.search(r"6 partitions; the largest \(orders-5\) has 2\.\d times the mean, which is skewed", text)
    assert "99% within" in text


def test_single_partition_is_not_called_balanced() -> None:
    assert "All rows are in one partition." in render_page([make_report(0)], "reports.jsonl")


def test_page_of_write_without_rows_shows_no_partition() -> None:
    empty = dataclasses.replace(make_report(0), rows=0, partitions={}, producer=Totals())
    text = render_page([empty], "reports.jsonl")
    assert "No partition has rows." in text
    assert "nan" not in text
    assert "topic" not in "".join(text_report.render_report_lines([empty])), "no head without a row"
