"""The navigation of the documentation site contains every page, and the site builds without warnings."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from spark_kafka_sink import errors
from tests.documents import FENCE
from tools import publish_site

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[1]
CONFIG_FILE = ROOT / "docs" / "zensical.toml"
CONFIG = tomllib.loads(CONFIG_FILE.read_text())["project"]


def list_pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    assert not isinstance(entries, int | None)
    return [page for entry in entries for page in list_pages(entry)]  # type: ignore[attr-defined]


def test_navigation_contains_every_page_once() -> None:
    there = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(list_pages(CONFIG["nav"])) == sorted(there), "docs/zensical.toml has the navigation"


def test_diagrams_load_nothing_from_other_sites() -> None:
    """The Mermaid library is stored with the pages, in the version that the Makefile specifies."""
    assert CONFIG["extra_javascript"] == ["assets/mermaid.min.js"]
    assert CONFIG["theme"]["font"] is False


def test_diagram_types_are_supported_by_mermaid() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for drawing in re.findall(r"```mermaid\n(?:---\n.*?---\n)?(\S+)", page.read_text(), re.DOTALL):
            assert drawing in {"flowchart", "sequenceDiagram", "xychart-beta", "stateDiagram-v2"}


@pytest.mark.parametrize("page", list_pages(CONFIG["nav"]))
def test_blocks_in_list_items_are_indented_by_four_spaces(page: str) -> None:
    """With fewer spaces, the site ends a numbered list before a nested list or a code block."""
    text = FENCE.sub("", (ROOT / "docs" / page).read_text())
    assert re.findall(r"^ {1,3}(?:[-*] |\d+\. |```).*", text, re.MULTILINE) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    docs = tmp_path_factory.mktemp("site") / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("*.js", "site", ".cache"))
    return publish_site.build_site("https://github.com/acme/sink", docs)


def test_api_reference_lists_errors_and_no_internal_names(site: Path) -> None:
    page = (site / "api.html").read_text()
    names = set(re.findall(r'id="spark_kafka_sink\.([\w.]+)"', page))
    error_types = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    assert {name.split(".")[1] for name in names if name.startswith("errors.")} == error_types
    assert "errors.ConfigurationError.render" not in names
    assert "producer.serializers.HeaderSerializer.serialize" in names
    assert "testing.Control.when" in names
    assert not names & {"testing.Control.collect_effects", "testing.Control.add", "testing.Control.has_rules"}


def test_api_reference_lists_each_parameter_as_an_item(site: Path) -> None:
    """Lines that only begin with a parameter's name would be rendered as one paragraph."""
    page = (site / "api.html").read_text()
    assert "<li><code>topics</code>: number of partitions by topic name</li>" in page
    assert "<li><code>callback</code>: called as callback(metadata, error)" in page
    assert re.findall(r"<p><code>\w+</code>(?:, <code>\w+</code>)*: .*", page) == []


def test_published_site_has_edit_links_and_version_selector(site: Path) -> None:
    """The published site is that of `make docs` with additional settings. Both are built with --strict."""
    page = (site / "quickstart.html").read_text()
    assert 'href="https://github.com/acme/sink/edit/main/docs/quickstart.md"' in page
    assert '"provider":"mike"' in page.replace(" ", "")


def test_published_versions_are_listed_newest_first(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "published"
    site.mkdir()
    (site / "index.html").write_text("a page")
    for version in ("0.9.0", "0.10.0", "0.2.0", "0.10.0"):
        publish_site.add_version(site, folder, version)
    versions = json.loads((folder / "versions.json").read_text())
    assert [entry["version"] for entry in versions] == ["0.10.0", "0.9.0", "0.2.0"]
    assert [entry["aliases"] for entry in versions] == [["latest"], [], []]
    assert "url=0.10.0/" in (folder / "index.html").read_text()
    assert (folder / "0.9.0" / "index.html").read_text() == "a page"
