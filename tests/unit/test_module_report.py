"""The report of modules that may hold more than one idea."""

from textwrap import indent

from module_report import groups, report

BODY = "    x = 1\n" * 30


def test_definitions_that_refer_to_each_other_are_one_group():
    source = f"LIMIT = 1\ndef one():\n{BODY}    return LIMIT\ndef other():\n{BODY}    return LIMIT\n"
    assert [(group.names, group.lines) for group in groups(source)] == [(("LIMIT", "one", "other"), 65)]


def test_a_class_and_a_function_that_share_nothing_are_two_groups():
    source = f"def one():\n{BODY}class Two:\n    def method(self):\n{indent(BODY, '    ')}"
    assert [group.names for group in groups(source)] == [("Two",), ("one",)]


def test_small_groups_are_left_out():
    assert groups("A = 1\ndef f(): return 2\n") == []


def test_long_modules_and_modules_with_two_groups_are_listed(tmp_path):
    (tmp_path / "long.py").write_text("A = 1\n" * 601)
    (tmp_path / "two.py").write_text(f"def one():\n{BODY}def two():\n{BODY}")
    lines = list(report(sorted(tmp_path.glob("*.py"))))
    assert lines == [
        f"{tmp_path}/long.py: 601 lines",
        f"{tmp_path}/two.py: 2 groups of definitions that do not refer to each other",
        "      31 lines: one",
        "      31 lines: two",
    ]
