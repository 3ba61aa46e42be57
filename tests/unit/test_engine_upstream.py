from __future__ import annotations

import pytest

from reknit.pipeline.engine import upstream
from reknit.pipeline.engine.runtime import UpstreamChangedError


def test_the_installed_versions_are_those_that_the_engine_was_tested_with():
    upstream.verify_upstream()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"aiokafka": "0.0.1"}, "aiokafka is 0.14.0, not 0.0.1"),
        ({"no-such-package": "1.0"}, "no-such-package is None, not 1.0"),
    ],
)
def test_a_difference_is_an_error_that_names_it(monkeypatch, entry, said):
    monkeypatch.setattr(upstream, "VERSIONS", {**upstream.VERSIONS, **entry})
    with pytest.raises(UpstreamChangedError) as error:
        upstream.verify_upstream()
    assert error.value.code == "upstream_changed"
    assert error.value.message.startswith(said)
    assert "pip install faust-streaming==" in error.value.message
