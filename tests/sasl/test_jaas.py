"""sasl.jaas.config is parsed as in the Java client, and errors never quote it."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.sasl.jaas import parse_jaas_config

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{PLAIN} required username="alice" password="s3";', {"username": "alice", "password": "s3"}),
        (f"{PLAIN} required username='alice' password='it\"s';", {"username": "alice", "password": 'it"s'}),
        (f"{PLAIN} REQUIRED username=alice password=bare-word_1$ ;", {"username": "alice", "password": "bare-word_1$"}),
        (f'{PLAIN} required\n  username="a"\n\tpassword = "b" ;\n', {"username": "a", "password": "b"}),
        (f'{PLAIN} required password="a=b;c \\"d\\" \\\\e";', {"password": 'a=b;c "d" \\e'}),
        (f'{PLAIN} required /* none */ username="a" // end\n;', {"username": "a"}),
        (f'{PLAIN} required password=";";', {"password": ";"}),
        (f'{PLAIN} required password="\\101\\4009\\a\\v\\q\\8";', {"password": "A 09\a\vq8"}),
        (f'{PLAIN} required password="";', {"password": ""}),
        (f"{PLAIN} required;", {}),
        (f'"{PLAIN}" "required" "username"="alice" "password"="s3";', {"username": "alice", "password": "s3"}),
        (f"'{PLAIN}' 'Optional' 'username'='alice';", {"username": "alice"}),
        ('kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required a="b";', {"a": "b"}),
    ],
)
def test_parses_login_module_and_options(text: str, options: dict[str, str]) -> None:
    module = parse_jaas_config(text)
    assert module.mechanisms == ("PLAIN",)
    assert module.options == options


@pytest.mark.parametrize(
    ("name", "mechanisms"),
    [
        ("scram.ScramLoginModule", ("SCRAM-SHA-256", "SCRAM-SHA-512")),
        ("oauthbearer.OAuthBearerLoginModule", ("OAUTHBEARER",)),
        ("com.sun.security.auth.module.Krb5LoginModule", ("GSSAPI",)),
    ],
)
def test_class_name_selects_the_mechanisms(name: str, mechanisms: tuple[str, ...]) -> None:
    assert parse_jaas_config(f"org.{name} required;").mechanisms == mechanisms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "begin with a login module"),
        ("com.evil.JndiLoginModule required hush=hush;", "begin with a login module"),
        (f"{PLAIN} username=hush;", "'required'"),
        (f'{PLAIN} required username="hush"', "semicolon"),
        (f'{PLAIN} required username="hush;', "quote that is not closed"),
        (f"{PLAIN} required username hush;", "name=value"),
        (f"{PLAIN} required username=;", "without a value"),
        (f"{PLAIN} required password=hush; {PLAIN} required;", "one login module only"),
        ("hush", "begin with a login module"),
    ],
)
def test_rejects_invalid_value_without_quoting_it(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        parse_jaas_config(text)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("password", ["ab;cd", "abcd==", "it's", "=ab", "a;", "a b"])
def test_unquoted_password_with_special_character_leads_to_remedy(password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_jaas_config(f"{PLAIN} required username=alice password={password};")
    assert str(caught.value).endswith(
        " Put values that contain other characters than letters and digits into double quotes."
    )


def test_repr_omits_options() -> None:
    assert "hush" not in repr(parse_jaas_config(f"{PLAIN} required password=hush;"))
