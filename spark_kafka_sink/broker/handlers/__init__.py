"""Request handlers of the embedded broker: one module for each API, `api_<key>_<name>`, with a function `handle`.

`handle` takes a RequestContext and a request, and returns a response, NoResponse or DelayedResponse. A new module needs
no registration: the broker supports the API that the module is named after.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType

from spark_kafka_sink.protocol.message import ApiKey


@cache
def list_handled_api_keys() -> list[ApiKey]:
    return sorted(ApiKey(int(module.name.split("_")[1])) for module in pkgutil.iter_modules(__path__))


def load_handler(api_key: ApiKey) -> ModuleType:
    return import_module(f"{__name__}.api_{api_key:02}_{api_key.name.lower()}")
