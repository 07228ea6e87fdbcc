"""Topic settings of the embedded broker."""

from __future__ import annotations

import re

from spark_kafka_sink.broker.topics import TOPIC_SETTINGS
from tests.documents import ROOT


def test_documents_the_topic_settings_that_have_an_effect() -> None:
    page = (ROOT / "docs/testing-faults.md").read_text()
    (paragraph,) = [text for text in page.split("\n\n") if "`cleanup.policy`" in text]
    documented = set(re.findall(r"`([a-z.]+\.[a-z]+)`", paragraph))
    assert documented == {name for name, setting in TOPIC_SETTINGS.items() if setting.has_effect}
