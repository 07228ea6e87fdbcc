"""The description in the package's metadata: README.md without its relative links, which lead nowhere on PyPI."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

RELATIVE_LINK_PATTERN = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)]*\)")

setup(
    long_description=RELATIVE_LINK_PATTERN.sub(r"\1", Path("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
