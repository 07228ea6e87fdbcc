"""Search for locks in an object of the package and in all objects that it references."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition)


def find_locks(root: object) -> dict[str, Any]:
    """Return the locks that are reachable from an object of the package, by their attribute paths."""
    locks: dict[str, Any] = {}
    visited: set[int] = set()
    queue = deque([(type(root).__name__, root)])
    while queue:
        path, item = queue.popleft()
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, LOCKS):
            locks[path] = item
        else:
            queue.extend((f"{path}.{name}", child) for name, child in _children(item))
    return locks


def held_locks(root: object) -> list[str]:
    """Return the paths of the locks that are held by any thread.

    A new thread tries to acquire them, because the current thread may hold reentrant locks itself.
    """
    locks = find_locks(root)
    with ThreadPoolExecutor(1) as executor:
        free = executor.submit(lambda: [path for path, lock in locks.items() if lock.acquire(blocking=False)]).result()
    return [path for path in locks if path not in free]


def _children(item: object) -> Iterator[tuple[str, object]]:
    if isinstance(item, Mapping):
        yield from ((str(key), value) for key, value in list(item.items()))
    elif isinstance(item, list | tuple | set | deque):
        yield from ((str(index), value) for index, value in enumerate(list(item)))
    elif isinstance(item, MethodType):
        yield "self", item.__self__
    elif any(base.__module__.startswith("spark_kafka_sink.") for base in type(item).__mro__):
        yield from list(getattr(item, "__dict__", {}).items())
        for name in getattr(type(item), "__slots__", ()):
            if hasattr(item, name):
                yield name, getattr(item, name)
