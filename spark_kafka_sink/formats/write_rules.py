"""Write rules: the rules in a schema registry that a client must execute when it writes a record.

A subject in the registry can have rules, for example to validate or encrypt fields. They are in the `ruleSet` of each
version of the subject. This sink executes no rules, so SchemaRegistryClient rejects a subject that has write rules. An
unknown kind of rule counts as a write rule, so that no rule is ignored by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

_WRITE_RULE_LIST_KEYS = ("domainRules", "encodingRules")
"""The keys of a `ruleSet` whose lists contain rules for writing. `migrationRules` concern only readers."""
_NON_WRITE_RULE_MODES = ("READ", "UPGRADE", "DOWNGRADE", "UPDOWN")
"""Modes of the rules that are not executed when a record is written."""


def describe_active_write_rules(rule_set: object) -> list[str]:
    """Return a description of each active rule that applies when a record is written.

    `rule_set`: the `ruleSet` of a version, as parsed from JSON, or None if the version has no rules.
    """
    if rule_set is None:
        return []
    if isinstance(rule_set, Mapping):
        rule_lists = [rule_set.get(key) or [] for key in _WRITE_RULE_LIST_KEYS]
    else:
        rule_lists = [rule_set]  # report a rule set of unknown form as a rule
    rules: list[object] = []
    for rule_list in rule_lists:
        rules += rule_list if isinstance(rule_list, list) else [rule_list]
    return [_describe_rule(rule) for rule in rules if not _is_inactive_rule(rule)]


def _is_inactive_rule(rule: object) -> bool:
    """Return whether the rule is disabled, or known to be executed only by readers or for migrations."""
    return isinstance(rule, Mapping) and (rule.get("disabled") is True or rule.get("mode") in _NON_WRITE_RULE_MODES)


def _describe_rule(rule: object) -> str:
    if not isinstance(rule, Mapping):
        return "a rule of unknown form"
    return f"'{rule.get('name')}' (type {rule.get('type')}, mode {rule.get('mode')})"
