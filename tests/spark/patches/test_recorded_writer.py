"""Writers that record the calls of their methods, tested with a fake writer class."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.spark.patches.recorded_writer import (
    get_recorded_calls,
    get_writer_dataframe,
    install_call_recorder,
    rebuild_writer,
)


def new_class() -> type[Any]:
    """Create a writer class like those of pyspark, before `record` has changed it."""

    class Writer:
        def __init__(self, df: object) -> None:
            self.df = df
            self.calls: list[object] = []

        def format(self, source: str) -> Writer:
            self.calls.append(source)
            return self

        def option(self, key: str, value: object) -> Writer:
            self.calls.append((key, value))
            return self

        def options(self, **options: object) -> Writer:
            for key, value in options.items():
                self.option(key, value)
            return self

        def mode(self, saveMode: str) -> Writer:  # noqa: N803
            self.calls.append(saveMode)
            return self

        def foreachBatch(self, func: object) -> Writer:  # noqa: N802
            return self

        def count(self) -> int:
            return 7

    return Writer


@pytest.fixture
def writer_class() -> type[Any]:
    made = new_class()
    install_call_recorder(made)
    return made


def test_returns_options_as_spark_passes_them(writer_class: type[Any]) -> None:
    writer = writer_class("frame").option("Topic", "a").options(**{"kafka.acks": 1, "includeHeaders": True})
    writer.option(key="TOPIC", value="b").option("reportPath", None)
    calls = get_recorded_calls(writer)
    assert calls is not None
    assert calls.options() == {"topic": "b", "kafka.acks": "1", "includeheaders": "true"}
    assert calls.options_as_written() == {"TOPIC": "b", "kafka.acks": "1", "includeHeaders": "true"}


def test_last_spelling_and_value_of_an_option_count(writer_class: type[Any]) -> None:
    writer = writer_class("frame").option("topic", "a").option("Topic", "b").option("topic", "c")
    calls = get_recorded_calls(writer)
    assert calls is not None
    assert calls.options() == calls.options_as_written() == {"topic": "c"}


def test_returns_last_format_unless_a_function_replaced_it(writer_class: type[Any]) -> None:
    writer = writer_class("frame")
    calls = get_recorded_calls(writer)
    assert calls is not None
    assert calls.format() is None
    assert writer.format("json").format(source="pykafka") is writer
    assert calls.format() == "pykafka"
    writer.foreachBatch(print)
    assert calls.format() == ""


def test_rebuilt_writer_repeats_calls_for_another_dataframe(writer_class: type[Any]) -> None:
    writer = writer_class("frame").format("pykafka").option("a", 1).mode("overwrite").options(b=2)
    assert writer.count() == 7, "what does not return the writer is no setting"
    made = rebuild_writer(writer, "another", excluding=["mode"])
    assert (get_writer_dataframe(writer), get_writer_dataframe(made)) == ("frame", "another")
    assert [call for call in writer.calls if call != "overwrite"] == ["pykafka", ("a", 1), ("b", 2)]
    assert dict.fromkeys(made.calls) == dict.fromkeys(["pykafka", ("a", 1), ("b", 2)])


def test_writer_created_before_the_change_records_nothing() -> None:
    writer_class = new_class()
    before = writer_class("frame")
    install_call_recorder(writer_class)
    install_call_recorder(writer_class)
    assert before.option("a", 1).calls == [("a", 1)]
    assert get_recorded_calls(before) is None
    writer = writer_class("frame").option("a", 1)
    calls = get_recorded_calls(writer)
    assert calls is not None
    assert len(calls.calls) == 1
