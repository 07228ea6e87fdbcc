"""The tables of docs/cli.md, made from the parser: `python -m tools.flags_document` writes them anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_kafka_sink.cli.client_options import add_connection_arguments
from spark_kafka_sink.cli.main import COMMANDS, build_parser
from tools.document_sections import with_sections

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "cli.md"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Each command's own parser."""
    (subparsers,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def sections() -> dict[str, str]:
    """Name of a section -> its table. What all commands that talk to brokers share stands once."""
    shared = argparse.ArgumentParser(add_help=False)
    add_connection_arguments(shared)
    known = {action.option_strings[0] for action in shared._actions}
    tables = {"connection": _table(shared, set())}
    for name in COMMANDS:
        own = {flag for action in commands()[name]._actions for flag in action.option_strings}
        # The demo has one argument of these by itself, with a meaning of its own.
        tables[name] = _table(commands()[name], {"-h", *known} if known <= own else {"-h"})
    return tables


def written(document: str) -> str:
    """Return the document with regenerated sections."""
    return with_sections(document, sections(), "flags of ")


def _table(command: argparse.ArgumentParser, without: set[str]) -> str:
    lines = ["| argument | meaning |", "| --- | --- |"]
    lines += [_row(command, action) for action in command._actions if not without & {*action.option_strings}]
    return "\n".join(lines) + "\n" if len(lines) > 2 else "It has no arguments of its own.\n"


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = command._get_formatter()
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    names = ", ".join(action.option_strings) or value
    shown = f"{names} {value}" if action.option_strings and value else names
    meaning = formatter._expand_help(action) if action.help else ""
    return f"| `{shown.strip()}` | {meaning} |".replace("|NAME", r"\|NAME")


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))
