"""Generator of the tables of docs/cli.md from the parser: `python -m tools.flags_document` rewrites them."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_kafka_sink.cli.client_options import add_connection_arguments
from spark_kafka_sink.cli.main import COMMANDS, build_parser
from tools.document_sections import replace_sections

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cli.md"


def find_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers by command name."""
    (subparsers,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def build_sections() -> dict[str, str]:
    """Return the tables by section name. The connection arguments, which all clients share, have their own section."""
    shared = argparse.ArgumentParser(add_help=False)
    add_connection_arguments(shared)
    connection_flags = {action.option_strings[0] for action in shared._actions}
    tables = {"connection": _format_table(shared, set())}
    for name in COMMANDS:
        command_flags = {flag for action in find_parsers()[name]._actions for flag in action.option_strings}
        # The demo has only one of the connection arguments, with a different meaning, so its table includes it.
        has_all_connection_flags = connection_flags <= command_flags
        excluded_flags = {"-h", *connection_flags} if has_all_connection_flags else {"-h"}
        tables[name] = _format_table(find_parsers()[name], excluded_flags)
    return tables


def render_document(document: str) -> str:
    """Return the document with regenerated sections."""
    return replace_sections(document, build_sections(), "flags of ")


def _format_table(command: argparse.ArgumentParser, excluded_flags: set[str]) -> str:
    lines = ["| argument | meaning |", "| --- | --- |"]
    lines += [
        _format_row(command, action) for action in command._actions if not excluded_flags & {*action.option_strings}
    ]
    return "\n".join(lines) + "\n" if len(lines) > 2 else "It has no arguments of its own.\n"


def _format_row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = command._get_formatter()
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    names = ", ".join(action.option_strings) or value
    flags_and_value = f"{names} {value}" if action.option_strings and value else names
    meaning = formatter._expand_help(action) if action.help else ""
    return f"| `{flags_and_value.strip()}` | {meaning} |".replace("|NAME", r"\|NAME")


if __name__ == "__main__":
    DOCUMENT.write_text(render_document(DOCUMENT.read_text()))
