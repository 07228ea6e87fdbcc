"""All locks that an object of ours has, wherever they are. A thread that holds one must not stop the others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


def locks_of(whole: object) -> dict[str, Any]:
    """The locks of an object of the package and of its parts, each by the way to it."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    ways = deque([(type(whole).__name__, whole)])
    while ways:
        way, one = ways.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, LOCKS):
            found[way] = one
        else:
            ways.extend((f"{way}.{name}", part) for name, part in _parts(one))
    return found


def held_locks(whole: object) -> list[str]:
    """The ways to those that any thread holds. They are asked for by a new thread, which has none."""
    locks = locks_of(whole)
    with ThreadPoolExecutor(1) as asker:
        free = asker.submit(lambda: [way for way, lock in locks.items() if lock.acquire(blocking=False)]).result()
    return [way for way in locks if way not in free]


def _parts(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        yield from ((str(key), value) for key, value in list(one.items()))
    elif isinstance(one, list | tuple | set | deque):
        yield from ((str(index), value) for index, value in enumerate(list(one)))
    elif isinstance(one, MethodType):
        yield "self", one.__self__
    elif any(kind.__module__.startswith("spark_kafka_sink.") for kind in type(one).__mro__):
        yield from list(getattr(one, "__dict__", {}).items())
        for name in getattr(type(one), "__slots__", ()):
            if hasattr(one, name):
                yield name, getattr(one, name)
