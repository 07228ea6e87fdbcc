"""The rule that brokers have for the names of topics."""

from __future__ import annotations

import re
from functools import lru_cache

TOPIC_NAME_CHARACTERS_MAX = 249
TOPIC_NAME_RULE = (
    f"1 to {TOPIC_NAME_CHARACTERS_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..' alone"
)
"""The rule for topic names, in the words of error messages."""

_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_CHARACTERS_MAX}}}")


@lru_cache(1024)  # a producer asks for each record, and writes to few topics
def is_topic_name(name: str) -> bool:
    return name not in (".", "..") and _NAME.fullmatch(name) is not None
