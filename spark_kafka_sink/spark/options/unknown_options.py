"""Error messages about unknown options of a write. Each names the most likely mistake."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from spark_kafka_sink.client.option_parsing import parse_option_values
from spark_kafka_sink.client.option_suggestions import OptionSuggestion, suggest_option
from spark_kafka_sink.errors import option_placeholder
from spark_kafka_sink.formats.options import RECORD_PARTS
from spark_kafka_sink.formats.registry_options import suggest_for_serializers
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.options import Option
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.spark.constants import FORMAT_NAME
from spark_kafka_sink.spark.options.create_topic import TOPIC_CONFIG_PREFIX
from spark_kafka_sink.spark.options.names import (
    ASYNC_PROGRESS_OPTIONS,
    KAFKA_PREFIX,
    PREFIXED_OPTION_SPELLING,
    PRODUCER_OPTION_NAMES,
    REJECTED_OPTION_MESSAGES,
    SINK_OPTION_SPELLING,
    TABLE_AND_FILE_OPTIONS,
    render_kafka_problem,
)
from spark_kafka_sink.spark.options.table import OPTION_NAMES_BY_LOWERCASE, SINK_OPTIONS

_WORD_SEPARATOR = re.compile("[._-]")
_MIN_NAME_SIMILARITY = 0.75
"""Minimum similarity of a suggested name. Unrelated names, such as 'mergeSchema' and 'keySchema', reach 0.7."""


class UnknownOptionMessages:
    """Builder of the messages about the unknown options of one write.

    A new name for an option is suggested only if no option is set under that name and it has not been suggested for
    another option. Otherwise, one of two values would silently replace the other.
    """

    def __init__(self, spellings: Mapping[str, str]) -> None:
        """`spellings`: the names to show, by lowercase name."""
        self._spellings = spellings
        self._unknown_names_by_suggestion: dict[str, str] = {}

    def describe_sink_option(self, name: str, value: str) -> str:
        """Return the message for an unknown option without the prefix `kafka.`. `name`: in lowercase."""
        spelling = self._spellings[name]
        if name == "path":
            return "Option 'path', from save(path), has no meaning for Kafka. To set the topic, use the topic option."
        if spelling in TABLE_AND_FILE_OPTIONS:
            return f"Option '{spelling}' is for tables or files and has no meaning for Kafka. Remove it."
        if spelling in ASYNC_PROGRESS_OPTIONS:
            return (
                f"Option '{spelling}' is not supported: Spark tracks progress asynchronously only for its own Kafka "
                "sink. Remove it."
            )
        if name in PRODUCER_OPTION_NAMES:
            suggestion = OptionSuggestion(_describe_missing_prefix(name, value), KAFKA_PREFIX + name)
        else:
            suggestion = _suggest_sink_option(name, value)
        return f"Unknown option '{spelling}'. {self._advise(suggestion, spelling)}"

    def describe_kafka_option(self, name: str, value: str) -> str:
        """Return the message for an option with the prefix `kafka.` that the producer does not have.

        `name`: in lowercase, without the prefix.
        """
        spelling = self._spellings[f"{KAFKA_PREFIX}{name}"]
        sink_option = _find_sink_option(name)
        serializer_suggestion = suggest_for_serializers(name)
        if sink_option is not None:
            suggestion = OptionSuggestion(f"Use '{sink_option}', without the prefix.", sink_option)
        elif serializer_suggestion is not None:
            suggestion = OptionSuggestion(SINK_OPTION_SPELLING.format_text(serializer_suggestion))
        else:
            suggestion = _suggest_producer_option(name, value)
        return f"{spelling} is not an option of the Kafka producer. {self._advise(suggestion, spelling)}".rstrip()

    def _advise(self, suggestion: OptionSuggestion, spelling: str) -> str:
        """Return the suggestion's text, or advice to remove the unknown option if the suggested one is taken.

        `spelling`: the name of the unknown option to show.
        """
        option = suggestion.option
        if option is None:
            return suggestion.text
        lowercase_option = option.lower()
        if lowercase_option in self._spellings:
            user_spelling = self._spellings[lowercase_option]
            # Spark may have changed the name to lowercase. The documented name is easier to read.
            option = option if user_spelling == lowercase_option else user_spelling
            return f"'{option}' is also set: remove '{spelling}'."
        if lowercase_option in self._unknown_names_by_suggestion:
            other_spelling = self._unknown_names_by_suggestion[lowercase_option]
            return f"'{option}' is also suggested for '{other_spelling}': remove '{spelling}'."
        self._unknown_names_by_suggestion[lowercase_option] = spelling
        return suggestion.text


def _describe_missing_prefix(name: str, value: str) -> str:
    """Advise to add the prefix `kafka.` to a producer option.

    If the value is invalid, or Spark jobs cannot set the option, say so at once: with the prefix, the option would only
    lead to the next error.
    """
    rejection = _find_rejection(name, value)
    if rejection:
        return rejection
    problems = parse_option_values({name: _find_producer_option(name)}, {name: value}, (), FORMAT_NAME).problems
    advice = f"Options of the producer need the prefix 'kafka.': use 'kafka.{name}'."
    return " ".join([advice, *(render_kafka_problem(problem) for problem in problems)])


def _find_rejection(name: str, value: str) -> str:
    """Return why Spark jobs cannot set the producer option to this value; empty if the option is supported."""
    if name in REJECTED_OPTION_MESSAGES:
        return REJECTED_OPTION_MESSAGES[name]
    option = _find_producer_option(name)
    if not option.unsupported_reason:
        return ""
    # There is no problem if the value is the option's default, which is accepted.
    problems = parse_option_values({name: option}, {name: value}, (), FORMAT_NAME).problems
    return " ".join(render_kafka_problem(problem) for problem in problems)


def _find_producer_option(name: str) -> Option:
    return PRODUCER_OPTIONS.get(name) or SECURITY_OPTIONS[name]


def _suggest_sink_option(name: str, value: str) -> OptionSuggestion:
    """Suggest an option for an unknown name without the prefix `kafka.`, or list the known options."""
    serializer_suggestion = suggest_for_serializers(name)
    if serializer_suggestion is not None:
        return OptionSuggestion(SINK_OPTION_SPELLING.format_text(serializer_suggestion))
    part_options = [OPTION_NAMES_BY_LOWERCASE.get(part + name.replace(".", "")) for part in RECORD_PARTS]
    if None not in part_options:
        return OptionSuggestion("Did you mean " + " or ".join(f"'{option}'" for option in part_options) + "?")
    similar_names = difflib.get_close_matches(name, OPTION_NAMES_BY_LOWERCASE, n=1, cutoff=_MIN_NAME_SIMILARITY)
    is_producer_option = name.replace("_", ".") in PRODUCER_OPTION_NAMES
    if similar_names and not is_producer_option:
        similar_option = OPTION_NAMES_BY_LOWERCASE[similar_names[0]]
        return OptionSuggestion(f"Did you mean '{similar_option}'?", similar_option)
    suggestion = _suggest_producer_option(name.removeprefix("kafka"), value)
    if suggestion.text:
        return suggestion
    known_options = ", ".join(name for name in SINK_OPTIONS if "." not in name)
    return OptionSuggestion(
        f"Known options are: {known_options}, the options of schema.registry, and the producer's options with the "
        "prefix 'kafka.'."
    )


def _suggest_producer_option(name: str, value: str) -> OptionSuggestion:
    """Suggest a producer option for an unknown name. If Spark jobs cannot set that option, say so at once."""
    text, option = suggest_option(name, PRODUCER_OPTION_NAMES)
    suggested_names = [option for option in PRODUCER_OPTION_NAMES if option_placeholder(option) in text]
    rejections = [_find_rejection(option, value) for option in suggested_names]
    text = " ".join(filter(None, [PREFIXED_OPTION_SPELLING.format_text(text), *rejections]))
    return OptionSuggestion(text, None if option is None else KAFKA_PREFIX + option)


def _find_sink_option(name: str) -> str | None:
    """Return the sink's option with this lowercase name, as it is documented, or None if there is none.

    Its words may be separated, as in `value_format` and `value.format` for 'valueFormat'.
    """
    topic_config_prefix = TOPIC_CONFIG_PREFIX.lower()
    if name.startswith(topic_config_prefix):
        return TOPIC_CONFIG_PREFIX + name.removeprefix(topic_config_prefix)
    return OPTION_NAMES_BY_LOWERCASE.get(name) or OPTION_NAMES_BY_LOWERCASE.get(_WORD_SEPARATOR.sub("", name))
