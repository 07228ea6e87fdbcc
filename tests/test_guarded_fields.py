"""The tables of what locks guard name fields, methods and test files that are there: else they would guard nothing."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from tests.conftest import BROKER, GUARDED, ROOT
from tests.guarded_fields import BROKER_GUARDS, GUARDS, Guard


def assigned_fields(kind: type) -> set[str]:
    """What methods of a class assign to `self`, also as one of several."""
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.parametrize("guard", [*GUARDS, *BROKER_GUARDS], ids=lambda guard: guard.kind.__name__)
def test_each_guarded_field_is_a_field_and_each_exempt_method_a_method(guard: Guard) -> None:
    fields = assigned_fields(guard.kind)
    assert guard.lock in fields
    assert sorted((guard.fields | guard.written) - fields) == []
    assert [name for name in sorted(guard.exempt) if not hasattr(guard.kind, name)] == []


@pytest.mark.parametrize("beginning", [*GUARDED, BROKER])
def test_the_accesses_are_looked_at_in_a_test_that_is_there(beginning: str) -> None:
    assert any(path.relative_to(ROOT).as_posix().startswith(beginning) for path in ROOT.rglob("test_*.py"))
