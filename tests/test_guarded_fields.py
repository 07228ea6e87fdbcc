"""The tables of guarded fields name only existing fields, methods and test files; others would guard nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from tests.conftest import BROKER, GUARDED, ROOT
from tests.guarded_fields import BROKER_GUARDS, GUARDS, Guard


def assigned_fields(cls: type) -> set[str]:
    """Return the attributes that the methods of a class assign to `self`, including tuple assignments."""
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.parametrize("guard", [*GUARDS, *BROKER_GUARDS], ids=lambda guard: guard.cls.__name__)
def test_guards_contain_existing_fields_and_methods(guard: Guard) -> None:
    fields = assigned_fields(guard.cls)
    assert guard.lock in fields
    assert sorted((guard.fields | guard.written) - fields) == []
    assert [name for name in sorted(guard.exempt) if not hasattr(guard.cls, name)] == []


@pytest.mark.parametrize("prefix", [*GUARDED, BROKER])
def test_guarded_paths_match_existing_tests(prefix: str) -> None:
    assert any(path.relative_to(ROOT).as_posix().startswith(prefix) for path in ROOT.rglob("test_*.py"))
