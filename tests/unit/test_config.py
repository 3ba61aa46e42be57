"""Sources of settings, their precedence, and the errors for a wrong value."""

from __future__ import annotations

import pytest
from msgspec import Raw, structs

from reknit.pipeline.config import ConfigError, load_config
from reknit.pipeline.engine.runtime import DEFAULT_METRICS_PORT, Tuning
from reknit.pipeline.policy import Policy
from reknit.pipeline.settings import Config


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "reknit.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(**sources):
    with pytest.raises(ConfigError) as caught:
        load_config(**{"env": {}, **sources})
    assert caught.value.fault == "caller"
    return caught.value


def test_without_any_source_the_defaults_hold():
    assert load_config(env={}) == Config()


def test_each_source_overrides_the_one_before(toml):
    path = toml('prefix = "file."\npartitions = 3\nlog_level = "debug"\n')
    env = {"REKNIT_PREFIX": "env.", "REKNIT_PARTITIONS": "4"}
    config = load_config(path, env, {"prefix": "option.", "partitions": None})
    assert (config.prefix, config.partitions, config.log_level) == ("option.", 4, "debug")


def test_the_environment_can_name_the_file(toml):
    path = toml("partitions = 3\n")
    assert load_config(env={"REKNIT_CONFIG": str(path)}).partitions == 3
    assert load_config(env={"REKNIT_CONFIG": ""}).partitions == Config().partitions


def test_nested_keys_read_the_same_from_all_three(toml):
    from_file = load_config(toml('[session]\nmodel = "m"\n[session.policy]\ntail = "keep"\n'), {})
    from_env = load_config(env={"REKNIT_SESSION__MODEL": "m", "REKNIT_SESSION__POLICY__TAIL": "keep"})
    from_options = load_config(env={}, overrides={"session.model": "m", "session.policy.tail": "keep"})
    assert from_file == from_env == from_options
    assert from_file.session.policy == Policy(tail="keep")


def test_tables_merge_key_by_key_and_a_parameter_is_replaced_whole(toml):
    path = toml("[session.params]\ntop_k = 5\nthinking = {type = 'enabled', budget_tokens = 9}\n")
    config = load_config(path, {"REKNIT_SESSION__PARAMS": '{"temperature": 1.0, "thinking": {"type": "disabled"}}'})
    assert {key: bytes(value) for key, value in config.session.params.items()} == {
        "top_k": b"5",
        "thinking": b'{"type":"disabled"}',
        "temperature": b"1.0",
    }


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("METRICS_PORT", "0", lambda c: c.metrics_port == 0),
        ("STALL_SECONDS", "7.5", lambda c: c.stall_seconds == 7.5),
        ("SESSION__MODEL", "4", lambda c: c.session.model == "4"),
        ("SESSION__MODEL", "null", lambda c: c.session.model is None),
        ("SESSION__TARGETS", "anthropic, openai-chat", lambda c: c.session.targets == ("anthropic", "openai-chat")),
        ("SESSION__TARGETS", '["gemini"]', lambda c: c.session.targets == ("gemini",)),
        ("SESSION__TARGETS", "gemini", lambda c: c.session.targets == ("gemini",)),
        ("SESSION__POLICY__RECORD_ASSISTANT", "true", lambda c: c.session.policy.record_assistant is True),
        ("SESSION__SYSTEM", "Be brief, please.", lambda c: c.session.system == "Be brief, please."),
        ("SESSION__PARAMS__SERVICE_TIER", "auto", lambda c: c.session.params == {"service_tier": Raw(b'"auto"')}),
        ("SESSION__PARAMS__TEMPERATURE", "0.5", lambda c: c.session.params == {"temperature": Raw(b"0.5")}),
        ("SESSION__TOOLS", '[{"name": "t"}]', lambda c: c.session.tools == (Raw(b'{"name":"t"}'),)),
        ("PARTITIONS", "", lambda c: c == Config()),
    ],
)
def test_text_is_converted_to_the_type_of_the_key(name, text, read):
    assert read(load_config(env={f"REKNIT_{name}": text}))


@pytest.mark.parametrize(
    ("name", "text", "path", "words"),
    [
        ("PARTITIONS", "many", "partitions", "variable REKNIT_PARTITIONS: Expected `int`, got `str`"),
        ("PARTITIONS", "0", "partitions", "variable REKNIT_PARTITIONS: Expected `int` >= 1"),
        ("PREFIX", "a b", "prefix", "variable REKNIT_PREFIX: Expected `str` matching regex '^[a-zA-Z0-9._-]{0,100}$'"),
        (
            "DELIVERY",
            "maybe",
            "delivery",
            "variable REKNIT_DELIVERY: Invalid enum value 'maybe'; one of at-least-once, exactly-once",
        ),
        (
            "SESSION_MODEL",
            "m",
            "session_model",
            "variable REKNIT_SESSION_MODEL: there is no such key; did you mean REKNIT_SESSION__MODEL?",
        ),
        ("XYZZY", "m", "xyzzy", "variable REKNIT_XYZZY: there is no such key"),
    ],
)
def test_a_bad_variable_is_named_with_its_key(name, text, path, words):
    error = refusal(env={f"REKNIT_{name}": text})
    assert (error.code, error.path, error.message) == ("config_value", path, words)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('partitions = "3"', "partitions", "Expected `int`, got `str`"),
        ("partition = 3", "partition", "there is no such key; did you mean partitions?"),
        ("[sesion]\nmodel = 'm'", "sesion", "there is no such key; did you mean session?"),
        (
            "[session.policy]\ntial = 'keep'",
            "session.policy.tial",
            "there is no such key; did you mean session.policy.tail?",
        ),
        ("[session]\ntargets = []", "session.targets", "Expected `array` of length >= 1"),
    ],
)
def test_a_bad_value_in_the_file_is_named_with_its_key(toml, text, path, words):
    file = toml(text)
    error = refusal(toml_path=file)
    assert (error.code, error.path, error.message) == ("config_value", path, f"file {file}: {words}")


def test_a_bad_option_is_named():
    error = refusal(overrides={"metrics_port": 70000})
    assert (error.path, error.message) == ("metrics_port", "option metrics_port: Expected `int` <= 65535")


def test_an_unreadable_file_has_a_reason(toml, tmp_path):
    assert refusal(toml_path=tmp_path / "none.toml").message.endswith("none.toml: No such file or directory")
    assert refusal(toml_path=toml("a = \n")).code == "config_syntax"


def test_a_good_value_in_a_lower_source_does_not_hide_a_bad_one(toml):
    path = toml("partitions = 0\n")
    assert refusal(toml_path=path, overrides={"partitions": 3}).path == "partitions"


def test_unrelated_variables_are_ignored():
    assert load_config(env={"REKNIT_CORPUS": "/x", "REKNIT_REQUIRE_KAFKA": "1", "HOME": "/"}) == Config()


def test_every_setting_can_be_set_in_the_environment():
    said = Config(source_prefix="live.", publish=("history.fixes.v1",))
    tables = {
        "kafka",
        "limits",
        "objects",
        "otel",
        "requests",
        "serve",
        "session",
        "state",
        "text",
    }
    given = {name: value for name, value in structs.asdict(said).items() if name not in tables}
    texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in given.items()}
    assert load_config(env={f"REKNIT_{name.upper()}": text for name, text in texts.items()}) == said


def test_planner_redactions_can_be_set_in_the_environment():
    given = {"REKNIT_TEXT__REDACT_ROOTS": "/srv/a,/srv/b-{id}", "REKNIT_TEXT__REDACT_MARKER": "∎"}
    text = load_config(env=given).text
    assert (text.redact_roots, text.redact_marker) == (("/srv/a", "/srv/b-{id}"), "∎")


def test_the_engines_bounds_have_the_engines_defaults():
    config, tuning = Config(), Tuning()
    assert config.metrics_port == DEFAULT_METRICS_PORT
    shared = set(Config.__struct_fields__) & set(Tuning.__struct_fields__)
    assert shared == {
        "batch_bytes",
        "batch_records",
        "commit_interval_ms",
        "compression",
        "heartbeat_seconds",
        "metrics_host",
        "rebalance_seconds",
        "session_seconds",
        "stall_seconds",
        "stop_seconds",
        "transaction_seconds",
        "wait_seconds",
    }
    for name in shared:
        assert getattr(config, name) == getattr(tuning, name), name
