from __future__ import annotations

import pytest

from reknit.pipeline.engine import upstream
from reknit.pipeline.engine.runtime import UpstreamChangedError


def test_the_installed_version_is_the_one_the_engine_was_written_for():
    upstream.verify_upstream()


def test_every_part_exists_and_the_table_is_not_empty():
    assert len(upstream.PARTS) > 60
    assert [part for part in upstream.PARTS if upstream.digest_of(part) is None] == []


def test_every_method_that_the_transport_overrides_is_in_the_table():
    from reknit.pipeline.engine.transport import SpanConsumer, SpanThread

    named = {part.split(":")[1].split(".")[-1] for part in upstream.PARTS}
    for kind in (SpanConsumer, SpanThread):
        inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
        overridden = {name for name, value in vars(kind).items() if callable(value) and name in inherited}
        assert overridden - {"__init__", "__doc__"} - named == set()


@pytest.mark.parametrize(
    ("table", "entry", "said"),
    [
        ("VERSIONS", {"aiokafka": "0.0.1"}, "aiokafka is 0.14.0, not 0.0.1"),
        ("VERSIONS", {"no-such-package": "1.0"}, "no-such-package is None, not 1.0"),
        ("PARTS", {"faust.app.base:App.on_stop": "0" * 12}, "faust.app.base:App.on_stop was changed"),
        ("PARTS", {"faust.app.base:App.gone": "0" * 12}, "faust.app.base:App.gone was changed"),
        ("PARTS", {"faust.no_such_module:x": "0" * 12}, "faust.no_such_module:x was changed"),
    ],
)
def test_a_difference_is_an_error_that_names_it(monkeypatch, table, entry, said):
    monkeypatch.setattr(upstream, table, {**getattr(upstream, table), **entry})
    with pytest.raises(UpstreamChangedError) as error:
        upstream.verify_upstream()
    assert error.value.code == "upstream_changed"
    assert error.value.message.startswith(said)
    assert "pip install faust-streaming==" in error.value.message


def test_the_table_can_be_printed(capsys):
    assert upstream.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f'    "{part}": "{digest}",' for part, digest in upstream.PARTS.items()]
