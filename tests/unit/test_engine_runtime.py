"""The clients and the host of a worker, by its configuration."""

from __future__ import annotations

import pytest

from reknit.pipeline.engine.host import make_app
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Scope, StartupError, Tuning
from reknit.pipeline.engine.worker import _make_directory
from reknit.pipeline.settings import Config


@pytest.mark.parametrize(("reads", "name"), [(None, "reknit"), ("live.", "shadow.reknit"), ("shadow.", "reknit")])
def test_the_clients_of_a_shadow_have_a_name_of_their_own(reads, name):
    # Quotas and logs of brokers are by client id.
    scope = Scope() if reads is None else Scope(source_prefix=reads)
    runtime = Runtime(Config(prefix="shadow."), {}, NoMetrics(), Tuning(), scope=scope)
    assert runtime.connection["client_id"] == name


async def test_the_host_opens_no_port_and_keeps_its_files_in_the_state_directory(tmp_path):
    app = make_app(Runtime(Config(state_dir=str(tmp_path)), {}, NoMetrics(), Tuning()))
    assert not app.conf.web_enabled
    assert app.conf.datadir == tmp_path / "faust"


def test_the_state_directory_is_made_with_those_above_it(tmp_path):
    runtime = Runtime(Config(state_dir=str(tmp_path / "a" / "b")), {}, NoMetrics(), Tuning())
    for _ in range(2):
        _make_directory(runtime)
    assert runtime.state_dir.is_dir()
    (tmp_path / "file").touch()
    unusable = Runtime(Config(state_dir=str(tmp_path / "file" / "b")), {}, NoMetrics(), Tuning())
    with pytest.raises(StartupError) as caught:
        _make_directory(unusable)
    assert caught.value.code == "state_dir_unusable"
