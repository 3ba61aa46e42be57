"""Pages as Markdown: what `make docs` writes into docs/: all fixes, each target's rules, what programs act on, streams.

A code is its heading, so that its anchor is the code itself: ``fixes.md#result_moved``, ``rules/anthropic.md#ant-08``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.explain.pages import explain, summaries
from pipeline.explain.plain import plain
from pipeline.rules import RULES
from pipeline.streams.recovery.inputs import Input
from pipeline.streams.recovery.memory import State
from pipeline.streams.recovery.table import MEANINGS, TABLE
from pipeline.text.acts import ACTS, Act

_ACTS = "acts.md"
_FIXES = "fixes.md"
_STREAMS = "streams.md"
_WRITTEN = "<!-- Written by `make docs` from the catalogue and its examples; not to be edited. -->"
_DRAWN = "<!-- Written by `make docs` from the transition table; not to be edited. -->"
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
_STREAMS_INTRO = (
    "A source streams attempts at messages, and an attempt may be cut and replaced without a word. What an attempt is "
    "worth when the next thing comes is one table for all sources (`pipeline/streams/recovery/table.py`), from which "
    "this page is made. What streamed stays unconfirmed until a complete message holds it; of an API, which repeats "
    "nothing, a block's stop and the message's stop reason confirm it. An input that is not named in a state cannot "
    "come there."
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
    return {
        _FIXES: "\n".join(_page("Fixes", _FIXES_INTRO, fixes)),
        _ACTS: "\n".join(_acts_page()),
        _STREAMS: "\n".join(_streams_page()),
        **pages,
    }


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


def _streams_page() -> Iterator[str]:
    yield from ("# The states of a stream", "", _DRAWN, "", _STREAMS_INTRO, "")
    everywhere = {given: after for given in Input if (after := _same_everywhere(given)) is not None}
    told = [f"*{given.value}* leads to `{after.value}`" for given, after in everywhere.items()]
    yield f"From every state {', '.join(told[:-1])}, and {told[-1]}; the diagram leaves these out."
    yield from ("", "```mermaid", "stateDiagram-v2", f"    [*] --> {State.IDLE.value}")
    moves: dict[tuple[State, State], list[str]] = {}
    for (state, given), (after, _) in TABLE.items():
        if after is not state and given not in everywhere:
            moves.setdefault((state, after), []).append(given.value)
    for (state, after), words in moves.items():
        yield f"    {state.value} --> {after.value}: {'<br/>'.join(words)}"
    yield "```"
    for state, meaning in MEANINGS.items():
        yield from ("", f"## {state.value}", "", meaning, "", "| input | next | what is done |", "|---|---|---|")
        for (before, given), (after, action) in TABLE.items():
            if before is state:
                done = (action.__doc__ or "").partition("\n")[0].rstrip(".")
                yield f"| {given.value} | {'' if after is state else after.value} | {done[0].lower()}{done[1:]} |"
    yield ""


def _same_everywhere(given: Input) -> State | None:
    """The state to which an input leads from all of them, if there is one."""
    after = {TABLE[state, given][0] if (state, given) in TABLE else None for state in State}
    return after.pop() if len(after) == 1 else None


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
