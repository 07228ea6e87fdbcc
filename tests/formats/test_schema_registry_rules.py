"""Rejection of data contract rules that apply to writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_kafka_sink.errors import SchemaRegistryError
from spark_kafka_sink.formats.registry_transport import RegistryConfig
from spark_kafka_sink.formats.schema_registry import SchemaRegistryClient
from tests.formats.fake_registry import FakeRegistry, fake_registry
from tests.formats.registry_contract import avro_schema


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


def rule_set(
    mode: str, *, name: str = "encryptPII", disabled: bool = False, rules: str = "domainRules"
) -> dict[str, Any]:
    return {rules: [{"name": name, "kind": "TRANSFORM", "type": "ENCRYPT", "mode": mode, "disabled": disabled}]}


def lookup(registry: SchemaRegistryClient) -> int:
    return registry.lookup("s", avro_schema("a")).id


def register(registry: SchemaRegistryClient) -> int:
    return registry.register("s", avro_schema("a")).id


def use_latest(registry: SchemaRegistryClient) -> int:
    return registry.get_latest("s").id


@pytest.mark.parametrize("returns_id_only", [False, True])
@pytest.mark.parametrize("rules", ["domainRules", "encodingRules"])
@pytest.mark.parametrize("mode", ["WRITE", "WRITEREAD", None])
@pytest.mark.parametrize("use", [register, lookup, use_latest])
def test_rejects_active_write_rules_by_name(
    fake: FakeRegistry, use: Callable[[SchemaRegistryClient], int], mode: str, rules: str, returns_id_only: bool
) -> None:
    fake.returns_id_only = returns_id_only
    fake.subjects["s"] = [(1, {"schema": avro_schema("a").text, "ruleSet": rule_set(mode, rules=rules)})]
    registry = SchemaRegistryClient(RegistryConfig((fake.url,)))
    for _ in range(2):
        with pytest.raises(SchemaRegistryError, match=rf"'s' has 1 active write rule.*'encryptPII' .*ENCRYPT.*{mode}"):
            use(registry)


@pytest.mark.parametrize("returns_id_only", [False, True])
def test_rejects_default_write_rules_of_a_new_subject(fake: FakeRegistry, returns_id_only: bool) -> None:
    fake.default_rule_set, fake.returns_id_only = rule_set("WRITE", name="checkLen"), returns_id_only
    with pytest.raises(SchemaRegistryError, match="'checkLen'"):
        register(SchemaRegistryClient(RegistryConfig((fake.url,))))


def test_waits_until_follower_has_registered_version(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps_s: list[float] = []
    respond = fake.handle_request
    fake.returns_id_only = True

    def respond_like_follower(method: str, *request: Any) -> tuple[int, dict[str, Any]]:
        if method == "GET" and not sleeps_s:
            return 404, {"error_code": 40401, "message": "Subject 's' not found."}
        return respond(method, *request)

    monkeypatch.setattr(fake, "handle_request", respond_like_follower)
    assert register(SchemaRegistryClient(RegistryConfig((fake.url,)), sleep=sleeps_s.append)) == 1
    assert sleeps_s == [0.1]


@pytest.mark.parametrize("unknown", ["rules", ["rule"], {"domainRules": "rule"}, {"domainRules": ["rule"]}])
def test_rejects_write_rules_of_unknown_form(fake: FakeRegistry, unknown: object) -> None:
    fake.subjects["s"] = [(1, {"schema": "{}", "ruleSet": unknown})]
    with pytest.raises(SchemaRegistryError, match="a rule of unknown form"):
        use_latest(SchemaRegistryClient(RegistryConfig((fake.url,))))


@pytest.mark.parametrize(
    "inactive",
    [
        None,
        {},
        {"domainRules": None},
        {"domainRules": []},
        {"migrationRules": [{"name": "m", "mode": "UPGRADE"}]},
        rule_set("READ"),
        rule_set("WRITE", disabled=True),
    ],
)
@pytest.mark.parametrize("use", [register, lookup, use_latest])
def test_accepts_rules_that_do_not_apply_to_writes(
    fake: FakeRegistry, use: Callable[[SchemaRegistryClient], int], inactive: dict[str, Any] | None
) -> None:
    fake.subjects["s"] = [(1, {"schema": avro_schema("a").text, "ruleSet": inactive})]
    assert use(SchemaRegistryClient(RegistryConfig((fake.url,)))) == 1
