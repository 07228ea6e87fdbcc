"""Handlers of the embedded broker: one file for each API, named `api_<key>_<name>`, with a function `handle`.

`handle` takes a RequestContext and a request, and returns a response, NoAnswer or NotYet. A new file needs no entry
anywhere: the broker offers the API that its name says.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType

from spark_kafka_sink.protocol.message import ApiKey


@cache
def handled_api_keys() -> list[ApiKey]:
    return sorted(ApiKey(int(module.name.split("_")[1])) for module in pkgutil.iter_modules(__path__))


def handler_module(api_key: ApiKey) -> ModuleType:
    return import_module(f"{__name__}.api_{api_key:02}_{api_key.name.lower()}")
