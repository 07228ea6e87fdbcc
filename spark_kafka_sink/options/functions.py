"""Functions as the value of an option: "package.module:function"."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any


def import_function(name: str) -> Callable[..., Any]:
    """Import the module and return the function. ImportError, AttributeError or TypeError say why there is none."""
    module, colon, path = name.partition(":")
    if not module or not colon or not path:
        raise ImportError("it is not of the form package.module:function")
    found = attrgetter(path)(import_module(module))
    if not callable(found):
        raise TypeError("it is not callable")
    return found  # type: ignore[no-any-return]
