"""docs/architecture.md names every module that compares single error codes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "spark_kafka_sink"
THE_TABLE_AND_THOSE_WHO_ANSWER = ("protocol", "broker")


def looks_for_codes(module: Path) -> bool:
    """Whether it names a code other than NONE, which is no error."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("codes", "error_codes")
        and node.attr.isupper()
        and node.attr != "NONE"
        for node in ast.walk(ast.parse(module.read_text()))
    )


def test_the_architecture_names_every_module_that_looks_for_an_error_code() -> None:
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    looking = {
        str(module)
        for module in modules
        if module.parts[0] not in THE_TABLE_AND_THOSE_WHO_ANSWER and looks_for_codes(PACKAGE / module)
    }
    text = (ROOT / "docs" / "architecture.md").read_text()
    paragraph = re.search(r"- \*\*The error table decides\.\*\*.*?\n(?=- \*\*|\n)", text, re.DOTALL)
    assert paragraph is not None
    named = set(re.findall(r"`([\w/]+\.py)`", paragraph[0])) - {"protocol/error_codes.py"}
    assert named == looking
