"""Request handlers of the embedded broker: one module per API, named `api_<key>_<name>`, with a function `handle`.

`handle` takes a RequestContext and a request, and returns a response, NoResponse or DelayedResponse. New modules need
no registration, because the broker finds supported APIs by module name.
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
