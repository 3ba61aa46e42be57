"""Pages as Markdown: what `make docs` writes into docs/: all fixes, each target's rules, what programs act on.

A code is its heading, so that its anchor is the code itself: ``fixes.md#result_moved``, ``rules/anthropic.md#ant-08``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.explain.pages import explain, summaries
from pipeline.explain.plain import plain
from pipeline.rules import RULES
from pipeline.text.acts import ACTS, Act

_ACTS = "acts.md"
_FIXES = "fixes.md"
_WRITTEN = "<!-- Written by `make docs` from the catalogue and its examples; not to be edited. -->"
_FIXES_INTRO = (
    "Every change that Reknit makes to a history has a code, and nothing changes without one. `reknit explain CODE` "
    "prints the same. In the examples `-` marks what is only there before the fix, `+` what is only there after it."
)
_RULES_INTRO = (
    "What the provider was seen to refuse, in its own words. A `hard` rule fails a validation, a `model` rule only for "
    "the models that have it, a `soft` rule warns. `reknit explain CODE` prints the same."
)
_ACTS_INTRO = (
    "A target that takes one text hands everybody's words to its program, and programs act on words. What each of them "
    "acts on, how that is known, and what is done about it in everything but the current user's own words: `broken` "
    "with one invisible U+200B ([words_neutralised](fixes.md#words_neutralised)), tags of the text protocol with a "
    "backslash ([wrapper_broken](fixes.md#wrapper_broken)); taking the added characters out gives the text back. "
    "`told` by a soft rule, or `left` as it is."
)


def documents() -> Mapping[str, str]:
    """The pages by their place under docs/."""
    fixes: dict[str, Mapping[str, str]] = {}
    pages: dict[str, str] = {}
    for group, codes in summaries().items():
        page = place_of(next(iter(codes))).partition("#")[0]
        if page == _FIXES:
            fixes[group] = codes
        else:
            pages[page] = "\n".join(_page(_sentence(group), _RULES_INTRO, {"": codes}))
    return {_FIXES: "\n".join(_page("Fixes", _FIXES_INTRO, fixes)), _ACTS: "\n".join(_acts_page()), **pages}


def place_of(code: str) -> str:
    """Where a fix or a rule is explained: a page under docs/ and the anchor in it."""
    page = f"rules/{RULES[code].target}.md" if code in RULES else _FIXES
    return f"{page}#{code.lower()}"


def _acts_page() -> Iterator[str]:
    yield from ("# What programs act on", "", _WRITTEN, "", _ACTS_INTRO)
    for target in dict.fromkeys(act.target for act in ACTS):
        yield from ("", f"## {target}", "", "| words | what they do | known | answer |", "|---|---|---|---|")
        yield from (_row(act) for act in ACTS if act.target == target)
    yield ""


def _row(act: Act) -> str:
    known = f"{act.basis}: {act.source}"
    answer = f"{act.answer}: {act.why}" if act.why else act.answer
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (act.words, act.effect, known, answer)) + " |"


def _page(title: str, introduction: str, groups: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield f"# {title}"
    yield ""
    yield _WRITTEN
    yield ""
    yield introduction
    for group, codes in groups.items():
        if group:
            yield ""
            yield f"## {_sentence(group)}"
        for code in codes:
            yield ""
            yield f"{'###' if group else '##'} {code}"
            yield ""
            yield from _section(code)
    yield ""


def _section(code: str) -> Iterator[str]:
    title, facts, example = plain(explain(code)).split("\n\n", 2)
    yield _prose(_sentence(title.removeprefix(f"{code}: ").rstrip("."))) + "."
    yield ""
    yield from _facts(facts)
    yield ""
    fence = "````" if "```" in example else "```"
    yield f"{fence}text"
    # A NUL has no place in a text file; its picture has.
    yield example.rstrip("\n").replace("\0", "\N{SYMBOL FOR NULL}")
    yield fence


def _facts(text: str) -> Iterator[str]:
    """Sentences as they are; what a provider says, which is indented, as a list."""
    quoted = False
    for line in text.splitlines():
        if line.startswith("  ") != quoted:
            quoted = not quoted
            yield ""
        yield f"- {_span(line.strip())}" if quoted else _prose(line)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _span(text: str) -> str:
    ticks = "``" if "`" in text else "`"
    return f"{ticks} {text} {ticks}" if ticks == "``" else f"{ticks}{text}{ticks}"


def _prose(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")
