"""Import of functions that options name in the form "package.module:function"."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any


def import_function(name: str) -> Callable[..., Any]:
    """Import the module and return the function.

    If there is no such function, raise ImportError, AttributeError or TypeError with the reason.
    """
    module, colon, path = name.partition(":")
    if not module or not colon or not path:
        raise ImportError("it is not of the form package.module:function")
    function = attrgetter(path)(import_module(module))
    if not callable(function):
        raise TypeError("it is not callable")
    return function  # type: ignore[no-any-return]
