"""Functions that options name: "package.module:function"."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any


def named_function(name: str) -> Callable[..., Any]:
    """The function, imported here. ImportError, AttributeError or TypeError say why there is none."""
    module, colon, path = name.partition(":")
    if not module or not colon or not path:
        raise ImportError("it is not of the form package.module:function")
    found = attrgetter(path)(import_module(module))
    if not callable(found):
        raise TypeError("it is not callable")
    return found  # type: ignore[no-any-return]
