"""Import rules: the core is pure, rules share no code with renderers, the engine does not depend on sessions."""

import ast
import sys
from pathlib import Path

import pytest

from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.sets import RULE_SETS

ROOT = Path(__file__).parents[2]

FRONT_DOOR = ROOT / "pipeline" / "__init__.py"  # imports the core by name, when a name is first requested
GENERATOR = ROOT / "pipeline" / "history" / "unusual.py"
# Modules with access to the outside. Everything else in `pipeline` is the core, including later additions.
EDGE = (
    "cli",
    "client",
    "config",
    "settings",
    "demo",
    "engine",
    "explain",
    "helper_process",
    "integrations",
    "kafka",
    "metrics",
    "objects",
    "pages",
    "replay",
    "scaling",
    "screen_server",
    "secret_files",
    "serve",
    "testing",
    "tracing",
    "viewer",
    "web",
)
CORE = sorted(
    path.stem
    for path in (ROOT / "pipeline").iterdir()
    if path.stem not in EDGE and (path.suffix == ".py" or (path / "__init__.py").exists())
)
# Access to the outside, by kind: files, the network, clocks, chance, the machine, other threads, and hidden imports.
WAYS_OUT = """
fcntl glob io mmap os pathlib pickle shelve shutil sqlite3 tempfile
email ftplib http select selectors smtplib socket socketserver ssl urllib webbrowser
datetime sched time
random secrets uuid
ctypes locale logging platform signal subprocess sysconfig tracemalloc
_thread asyncio concurrent multiprocessing queue threading
importlib
"""
WORLD = frozenset(WAYS_OUT.split())
WORLDLY_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})


def modules(*names):
    """Return the files of packages or modules of `pipeline`, or of a top-level package."""
    found = []
    for name in names:
        base = ROOT / name if name in {"topics", "reknit"} else ROOT / "pipeline" / name
        found += sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]
    return [path for path in found if path.exists()]


def dotted(path):
    """Return the name under which a file is imported: `pipeline` and `topics` are packages of `reknit`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return name if within(name, "reknit") else f"reknit.{name}"


def imports(tree, path):
    for base, name in imported(tree, path):
        yield base
        # `from reknit.pipeline import engine` imports reknit.pipeline.engine, if there is such a module.
        if name and is_module(f"{base}.{name}"):
            yield f"{base}.{name}"


def imported(tree, path):
    """Yield the imports anywhere in a file: the module, and the name that is imported from it, if any."""
    package = dotted(path) if path.name == "__init__.py" else dotted(path).rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((base, alias.name) for alias in node.names)


def is_module(name):
    base = ROOT.joinpath(*name.removeprefix("reknit.").split("."))
    return base.is_dir() or base.with_suffix(".py").exists()


def within(name, *packages):
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def offences(path, allowed, *, banned=(), pure=False):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for name in imports(tree, path):
        root = name.partition(".")[0]
        if pure and root in WORLD:
            yield f"{name}: a way to the world"
        elif root == "reknit" and (not within(name, *allowed) or within(name, *banned)):
            yield f"{name}: not for this package"
        elif root not in sys.stdlib_module_names and root not in {"reknit", "msgspec"}:
            yield f"{name}: msgspec is all that the core needs"
    if pure:
        yield from worldly(tree)


def worldly(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"line {node.lineno}: the core does not wait"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLDLY_CALLS:
            yield f"line {node.lineno}: {node.func.id}()"


def test_the_core_is_what_the_design_says_it_is():
    assert {"model", "fixes", "history", "targets", "rules", "streams", "text", "stages", "session"} <= set(CORE)


def faults(paths, judge):
    """Return the violations by module, without modules that have no violation."""
    return {dotted(path): found for path in paths if (found := list(judge(path)))}


def named(path):
    return set(imports(ast.parse(path.read_text(encoding="utf-8")), path))


def test_the_core_is_pure():
    allowed = ["reknit.topics", *(f"reknit.pipeline.{name}" for name in CORE)]
    # `from reknit.pipeline import text` also names the package; the imported module is checked by its own name.
    excused = {"reknit.pipeline: not for this package"}

    def judge(path):
        # The front door also reads the installed version once.
        own = {FRONT_DOOR: {"importlib: a way to the world", "importlib.metadata: a way to the world"}}
        known = excused | own.get(path, set())
        found = [fault for fault in offences(path, allowed, pure=True) if fault not in known]
        # It compiles a comparison of the members of a struct, once at import.
        return [fault for fault in found if path != GENERATOR or not fault.endswith(": exec()")]

    assert faults(modules(*CORE), judge) == {}


def parts_of_providers(part):
    """Return the modules of one part of every provider: its reader, writer, stream or rules."""
    return [
        path
        for path in modules("providers")
        if part in path.relative_to(ROOT / "pipeline" / "providers").with_suffix("").parts
    ]


RULES = sorted(
    {
        f"reknit.pipeline.providers.{path.relative_to(ROOT / 'pipeline' / 'providers').parts[0]}.rules"
        for path in parts_of_providers("rules")
    }
)


def test_rules_share_no_code_with_what_they_judge():
    allowed = ["reknit.pipeline.rules", "reknit.pipeline.errors", *RULES]
    # `from reknit.pipeline.providers.gemini import rules` also names the package, which has no code.
    excused = {f"{name.removesuffix('.rules')}: not for this package" for name in RULES}

    def judge(path):
        return [fault for fault in offences(path, allowed) if fault not in excused]

    assert faults([*modules("rules"), *parts_of_providers("rules")], judge) == {}


def test_every_provider_with_a_description_is_in_the_registry():
    described = {path.parent.name for path in (ROOT / "pipeline" / "providers").glob("*/provider.py")}
    tree = ast.parse((ROOT / "pipeline" / "registry.py").read_text(encoding="utf-8"))
    (listed,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PROVIDERS"
    ]
    assert {name.id.lower() for name in listed.elts} == described
    assert {name: target.rules for name, target in TARGETS.items()} == RULE_SETS


def test_the_package_of_a_provider_has_only_a_docstring():
    fronts = (ROOT / "pipeline" / "providers").glob("*/__init__.py")
    assert [dotted(path) for path in fronts if len(ast.parse(path.read_text(encoding="utf-8")).body) != 1] == []


def test_renderers_share_no_code_with_the_rules():
    def judge(path):
        return [name for name in named(path) if within(name, "reknit.pipeline.rules", *RULES)]

    judged = [*modules("targets", "history", "text"), *parts_of_providers("reader"), *parts_of_providers("writer")]
    assert faults(judged, judge) == {}


def test_decoders_do_not_depend_on_recovery():
    def judge(path):
        return [name for name in named(path) if within(name, "reknit.pipeline.streams.recovery")]

    below = [path for path in modules("streams") if "recovery" not in path.parts and path.stem != "session"]
    assert faults([*below, *parts_of_providers("stream")], judge) == {}


def test_packages_are_imported_by_their_names_below_reknit():
    # In a checkout `pipeline` can be imported too, as a second package with classes of its own.
    def judge(path):
        found = {base for base, _ in imported(ast.parse(path.read_text(encoding="utf-8")), path)}
        return sorted(name for name in found if within(name, "pipeline", "topics"))

    files = [
        path
        for folder in ("deploy", "examples", "pipeline", "reknit", "tests", "topics")
        for path in (ROOT / folder).rglob("*.py")
        if "node_modules" not in path.parts  # of the programs that `make served` installs
    ]
    assert faults(files, judge) == {}


def test_topics_import_msgspec_only():
    assert faults(modules("topics"), lambda path: offences(path, ["reknit.topics"], pure=True)) == {}


def test_the_public_package_only_reexports():
    def judge(path):
        return {name.partition(".")[0] for name in named(path)} - {"reknit"} - sys.stdlib_module_names

    assert faults(modules("reknit"), judge) == {}


def test_the_engine_does_not_depend_on_sessions():
    known = [
        "reknit.pipeline.engine",
        "reknit.pipeline.errors",
        "reknit.pipeline.kafka",
        "reknit.pipeline.objects",
        "reknit.pipeline.scaling",
        "reknit.pipeline.stages.base",
        "reknit.pipeline.web",
        "reknit.topics",
    ]
    packages = ("reknit.pipeline", "reknit.pipeline.stages")

    def judge(path):
        return [
            name
            for name in named(path)
            if within(name, "reknit.pipeline") and name not in packages and not within(name, *known)
        ]

    assert faults(modules("engine"), judge) == {}


def imported_modules():
    """Return the project's modules that each module imports, anywhere in it: also for types only, and inside
    functions.

    A name imported from a package counts as its module of that name, if there is one, otherwise as the package
    itself.
    """
    paths = {dotted(path): path for path in modules("topics", *(entry.stem for entry in (ROOT / "pipeline").iterdir()))}
    graph = {}
    for module, path in paths.items():
        found = imported(ast.parse(path.read_text(encoding="utf-8")), path)
        named = {f"{base}.{name}" if f"{base}.{name}" in paths else base for base, name in found}
        graph[module] = named & paths.keys() - {module}
    return graph


def circles(graph):
    """Return the groups of modules that import each other, directly or indirectly."""
    reached = {module: reachable(graph, module) for module in graph}
    groups = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted(map(sorted, filter(None, groups)))


def reachable(graph, module):
    found = set()
    waiting = [*graph[module]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def test_no_modules_import_each_other_in_a_cycle():
    assert circles(imported_modules()) == []


def test_cycles_are_detected():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"d"}, "c": {"a"}, "d": set()}) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import time", ["time: a way to the world"]),
        ("from datetime import datetime", ["datetime: a way to the world"]),
        ("def f():\n    import os.path", ["os.path: a way to the world"]),
        (
            "from reknit.pipeline import engine",
            ["reknit.pipeline: not for this package", "reknit.pipeline.engine: not for this package"],
        ),
        (
            "from ..engine import worker",
            ["reknit.pipeline.engine: not for this package", "reknit.pipeline.engine.worker: not for this package"],
        ),
        ("import prometheus_client", ["prometheus_client: msgspec is all that the core needs"]),
        ("async def f(): ...", ["line 1: the core does not wait"]),
        ("open('x')", ["line 1: open()"]),
        ("import json, msgspec\nfrom reknit.pipeline.model import Turn\nfrom . import base", []),
    ],
)
def test_these_tests_detect_violations(text, found, monkeypatch):
    path = ROOT / "pipeline" / "stages" / "example.py"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    allowed = ["reknit.pipeline.model", "reknit.pipeline.stages"]
    assert list(offences(path, allowed, pure=True)) == found
