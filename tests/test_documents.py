"""The documents: links and make targets exist, and tables match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import error_document

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", ".github")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for name in FOLDERS for page in sorted((ROOT / name).rglob("*.md")))]
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_an_existing_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if heading:
            assert heading in _headings(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_make_target_exists(page: Path) -> None:
    for target in re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_error_table_matches_code() -> None:
    assert error_document.DOCUMENT.read_text() == error_document.render_document(), "run `make docs`"


def _headings(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
