"""Python 3.14, which no machine of these tests has: pip finds a wheel of each package that Reknit needs there."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "wheels.py"


def wheels():
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_extra_names_what_it_includes():
    extras = wheels().requirements()
    assert extras["core"][0].startswith("msgspec")
    assert {each.split("[")[0] for each in extras["viewer"]} & {"reknit"} == set()
    assert any(each.startswith("faust-streaming") for each in extras["viewer"])
    assert set(extras["worker"]) < set(extras["all"])


def test_every_extra_has_wheels_for_python_3_14():
    module = wheels()
    extras = module.requirements()
    required = sorted({*extras["all"], *extras["embedded"]})
    try:
        missing = module.lacking(required, "3.14", "linux-x86_64")
    except RuntimeError as error:
        pytest.skip(f"no package index answers: {str(error)[-200:]}")
    assert missing == ""


def test_a_package_without_a_wheel_is_named():
    module = wheels()
    try:
        missing = module.lacking(["faust-streaming==0.15.3"], "3.14", "linux-aarch64")
    except RuntimeError as error:
        pytest.skip(f"no package index answers: {str(error)[-200:]}")
    assert missing == "faust-streaming==0.15.3"
