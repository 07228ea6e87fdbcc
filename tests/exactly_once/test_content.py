"""What a batch is known by: the rows of each topic."""

from __future__ import annotations

from spark_kafka_sink.exactly_once.content import TOPICS_SHOWN_MAX, Content, added_up


def test_contents_are_the_same_if_each_topic_has_the_same_rows() -> None:
    content = Content.of({"a": 3, "b": 1}, 40)
    assert content.is_same(Content.of({"b": 1, "a": 3, "c": 0}, 40))
    assert not content.is_same(Content.of({"a": 1, "b": 3}, 40))
    assert not content.is_same(Content.of({"a": 4}, 40))
    assert not content.is_same(Content.of({"a": 3, "b": 1, "c": 1}, 40))


def test_bytes_may_honestly_differ() -> None:
    """A value may have the time in it."""
    assert Content.of({"a": 3}, 40).is_same(Content.of({"a": 3}, 41))


def test_topics_that_are_not_shown_count_as_well() -> None:
    many = {f"t{number:03}": 1 for number in range(TOPICS_SHOWN_MAX + 5)}
    content = Content.of(many, 0)
    assert len(content.topics) == TOPICS_SHOWN_MAX
    assert content.rows == len(many)
    last = max(many)
    assert not content.is_same(Content.of(many | {last: 2}, 0))


def test_the_parts_of_tasks_add_up() -> None:
    assert added_up([({"a": 1}, 10), ({"a": 2, "b": 1}, 5), ({}, 0)]) == Content.of({"a": 3, "b": 1}, 15)


def test_it_is_shown_with_rows_bytes_and_topics() -> None:
    assert str(Content.of({"b": 1, "a": 3}, 40)) == "4 rows of 40 bytes (a: 3, b: 1)"
    assert str(Content.of({}, 0)) == "0 rows of 0 bytes (no topic)"
