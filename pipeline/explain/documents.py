"""The Markdown that `make docs` writes into docs/ from the catalogues, their examples and recorded traffic.

A code is its heading, so its anchor is the code itself: ``fixes.md#result_moved``, ``rules/anthropic.md#ant-08``.
``shares.jsonl`` has the outcomes of accepted requests in the last measurement over recorded traffic, and
``refusals.jsonl`` the causes of the refused ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.explain import explain, summaries
from reknit.pipeline.explain.framework_versions import IN_CI
from reknit.pipeline.explain.page_text import Said, as_text, written
from reknit.pipeline.healing.table import HEALED_CODES, HEALINGS, IN_SESSIONS, Healing
from reknit.pipeline.history.frameworks import FRAMEWORKS
from reknit.pipeline.history.pieces import NATIVE_TYPES
from reknit.pipeline.history.writers import WRITERS
from reknit.pipeline.history.writers.base import EVERY, Writer
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.streams.recovery import MEANINGS, TABLE
from reknit.pipeline.streams.recovery.memory import Input, MessageState


class Shares(Struct, frozen=True, kw_only=True):
    """The requests of one provider, sent back to it.

    Attributes:
        provider: the provider of the traffic.
        accepted: the number of requests that were recorded as accepted.
        mended: the number of those with a lossless repair.
        codes: the number of those with each fix.
        harmed: the ids of those with a loss, a refusal, or a change without a fix, each with the reason.
    """

    provider: str
    accepted: int
    mended: int
    codes: dict[str, int]
    harmed: dict[str, str]


SHARES_FILE: Final = Path(__file__).with_name("shares.jsonl")
SHARES: Final = tuple(msgspec.json.decode(line, type=Shares) for line in SHARES_FILE.read_bytes().splitlines())


class Refused(Struct, frozen=True):
    """Recorded refusals of one class that one thing decided.

    ``rule`` foresees them, with the severity in ``why``; where it is ``""``, ``why`` is the fact that no body shows.
    ``requests`` are their ids.
    """

    provider: str
    error_class: str
    rule: str
    why: str
    requests: list[str]


REFUSALS_FILE: Final = Path(__file__).with_name("refusals.jsonl")
REFUSALS: Final = tuple(msgspec.json.decode(line, type=Refused) for line in REFUSALS_FILE.read_bytes().splitlines())

_FIXES, _HEALING = "fixes.md", "healing.md"
_WRITTEN = "<!-- Written by `make docs` from the catalogue and its examples; not to be edited. -->"
_DRAWN = "<!-- Written by `make docs` from the transition table; not to be edited. -->"
_FIXES_INTRO = (
    "Every change that Reknit makes to a history has a code, and nothing changes without one. `reknit explain CODE` "
    "prints the same. In the examples `-` marks what is only there before the fix, `+` what is only there after it. "
    "Codes that begin with `healed_` are of refusals, and have a table of their own ([healing](healing.md))."
)
_RULES_INTRO = (
    "The provider's observed refusals, in its own words. A `hard` rule fails a validation, a `model` rule only for "
    "the models that have it, a `soft` rule warns. `reknit explain CODE` prints the same."
)
_ACTS_INTRO = (
    "A target that takes one text passes the words of all parties to its program, and programs act on words. The "
    "table lists the words that each of them acts on, their source, and the treatment in everything but the current "
    "user's own words: `broken` with one invisible U+200B ([words_neutralised](fixes.md#words_neutralised)), tags of "
    "the text protocol with a backslash ([wrapper_broken](fixes.md#wrapper_broken)); removing the added characters "
    "restores the text. `reported`: by a soft rule. `left`: unchanged."
)
_NATIVE_INTRO = (
    "Types of items, blocks and parts that only one provider has. Each is sent back to it unchanged, at its place. "
    "The table has the role of its turn, the members with the id of the call that it opens or answers, its required "
    "neighbours, and whether only the model that wrote it can read it. For another provider it is left out "
    "([native_dropped](fixes.md#native_dropped), or [unknown_dropped](fixes.md#unknown_dropped) where the shape does "
    "not show its provider), or converted as in the last column; a message without other content is left out with it."
    " A type that is not listed is treated as the model's and bound to its neighbours.\n\nMembers of a message, block, "
    "part or item that only one provider's client library defines are also sent back to it unchanged: "
    "`prompt_cache_breakpoint`, `toolset_name`, `partMetadata` and others. For another provider each of them is a fix"
    " ([field_dropped](fixes.md#field_dropped)). A member that no library defines is left out, with the same fix."
)
_SHARES_INTRO = (
    "Recorded requests that their provider had accepted, sent back to it through Reknit: the number with a loss, a "
    "refusal, or a change without a fix (`harmed`), the number with a lossless repair, and the number with each fix. "
    "The goal is at most one in 200 harmed and one in 50 repaired. The equalities are a published list "
    "(`pipeline/rules/equalities.py`)."
)
_REFUSALS_INTRO = (
    "Every recorded request that its provider refused, by the class of the refusal and its cause: a rule that "
    "foresees it (for APIs that others imitate, in the provider's own words), or a fact that no body shows: a header,"
    " an account, an upload, the bytes at a URL, the limits of one model. `Nothing` means that the body shows it and "
    "a rule is missing."
)
_WORKS_INTRO = (
    "Histories that Reknit reads, in `reknit normalize`, `Session.append`, `turn.appended`, `history.restored` and "
    "`reknit ingest turns`. A shape is detected by the keys that only its messages or its document have, or named with "
    "`--from`. A message that several shapes can have is read by the shape that an earlier message of the session has "
    "decided; a history in which two messages decide for different frameworks is refused (`unknown_shape`), and so is "
    "a whole history of no known shape, one that is mostly blocks of types that no shape has, and one that lists calls "
    "in a member of no shape. Content that a framework does not send to a model (notices, questions to a person, "
    "artifacts, compacted originals) is left out, "
    "with [field_dropped](fixes.md#field_dropped) where it has content. Calls without a result stay open, a denied "
    "call has a result without an error flag, and arguments that never finished are not parsed. Reasoning has the "
    "provider that the framework names as its issuer; a signature without one stays where its form proves the issuer. "
    "The files of pi, Copilot and ACP are read as a whole only.\n\n"
    "`reknit convert --from A --to B` and `reknit.convert(history, to=…)` write the shapes that have a name under "
    "`--to`; `reknit export SESSION --as …` writes a session. [Files of "
    "programs](transcripts.md#written-transcripts) have a line for each message. A conversion repairs nothing: broken "
    "histories stay broken, and `reknit normalize` repairs them. Content without a place in a shape is left out, and "
    "each such loss is a fix; the last table has what each shape holds. Reknit changes histories and requests at the "
    "places in the column `hooks in` ([repair inside a framework](integrations.md)); a framework without one uses the "
    "[gateway](serve.md) where its client takes a base URL, or converts what it "
    "stores."
)
_BY_PROVIDERS = (
    ("anthropic", "Anthropic Messages", "messages, request bodies"),
    ("openai-chat", "OpenAI Chat Completions and APIs like it", "messages, request bodies"),
    ("openai-responses", "OpenAI Responses, OpenAI Agents SDK", "items, request bodies"),
    ("gemini", "Gemini", "contents, request bodies"),
    ("bedrock-converse", "Bedrock Converse, Strands", "messages, request bodies, `message_N.json`"),
    ("claude-code", "Claude Code", "[transcripts](transcripts.md) (`.jsonl`)"),
    ("codex-rollout", "Codex CLI", "[rollouts](transcripts.md) (`.jsonl`)"),
    ("gemini-chat", "Gemini CLI", "[chats](transcripts.md)"),
)
_TRIED = {
    "claude-code": "1.0.0 to 2.1.332",
    "codex-rollout": "0.44 to 0.169",
    "gemini-chat": "0.12.0, 0.61.0",
}
_GATEWAY: Final = "[gateway](serve.md)"
_REPAIR: Final = "[`reknit repair`](broken-sessions.md)"
_FETCH: Final = f"[`mendingFetch`](../js/README.md), {_GATEWAY}"
_TRANSPORT: Final = f"[`RepairTransport`](integrations.md#sdks-of-anthropic-and-openai), {_FETCH}"
_HOOKS: Final = {
    "langchain": "[`RepairMiddleware`](integrations.md#langchain)",
    "pydantic-ai": "[`repair_history`](integrations.md#pydantic-ai)",
    "openai-agents": "[`repair_input`](integrations.md#openai-agents-sdk)",
    "adk-events": "[`repair_contents`](integrations.md#google-adk)",
    "bedrock-converse": "[`RepairHook`](integrations.md#strands) of Strands",
    "anthropic": _TRANSPORT,
    "openai-chat": f"[`RepairCallback`](integrations.md#litellm) of LiteLLM, {_TRANSPORT}",
    "openai-responses": _TRANSPORT,
    "gemini": _GATEWAY,
    "ai-sdk-model": _FETCH,
    "ai-sdk-ui": _FETCH,
    "claude-code": _REPAIR,
    "codex-rollout": _REPAIR,
    "gemini-chat": _REPAIR,
}
_HELD: Final = (
    "shape", "message ids", "system messages", "signatures of", "author of reasoning", "Gemini's signatures",
    "reasoning items of Responses", "error flag of results", "calls that were cut", "media of", "sources of media",
    "titles of documents", "cache breakpoints",
)  # fmt: skip
_HEALING_INTRO = (
    "Some causes of a refusal are in no request: a signature that the provider no longer accepts, an item that it "
    "did not store, a file that expired. The provider states them in its refusal, and refuses every later request "
    "of the session too. `reknit heal --target anthropic --status 400 --error error.json < body.json` prints the "
    "request without what was refused (exit code 3), or says why no change is known (4); `reknit.heal(body, "
    "target=…, status=…, error=…)` returns the same, or `None`. The provider's own sentence is found under the "
    "envelopes of clouds and routers, and the first row below that has it decides the change. Each change is a fix "
    "`healed_` with the name of the row. A sentence without a row is never interpreted, so keys, quotas, lengths, "
    "policies and overload are not healed. A cause that may pass by itself, such as a timeout of a download, is "
    "healed at the second refusal (`--attempt 2`). A healed request breaks no rule that the refused one kept. [The "
    "gateway](serve.md) heals requests on their way, and remembers what was refused for a conversation; a session "
    "remembers its refusals too."
)
_HEALING_SESSIONS = (
    "## Sessions",
    "",
    (
        '`session.refused("anthropic", status=400, error=…)` returns the session\'s request without what the '
        "provider refused, or `None`; give it `request_id`, if you have one, for the fixes. The session "
        "remembers the refusal in its state, so the next request of the target is written correctly the first "
        "time: single values (a signature, an id, an image) by a digest of 16 bytes, and facts of a model (a "
        "parameter that it does not take) by the row and what the sentence named. The memory is of one "
        "target, and facts of a model of this model. It survives restarts, rewinds, restores, exports, and "
        "another target in between. It ends when the session is closed, forgotten or expired, or by "
        '`session.opened` with the policy `{"heal": "reset"}` (`session.forget_refusals()`). A session that '
        "was never refused stores nothing, and its requests are the same bytes as without healing."
    ),
    "",
    (
        "The place in a sentence (`messages.3.content.0`) is looked up in the refused request, and its fix "
        "names the place in the history. If the session's request is no longer the refused one, the repair "
        "goes by kind: all reasoning in place of the named block. On models whose reasoning is bound to its "
        "prefix, all reasoning after a changed place goes in the same step."
    ),
    "",
    (
        "Policy `heal` limits the healings of one target in a user's turn: `on` (the default) allows three, "
        "`once` one, `off` none, and applies no memory. If the same sentence comes again, the last of the "
        "three healings is the widest of its kind. A new turn of the user resets the count, never the memory. "
        "The same bytes are never sent again. A cause that may pass by itself is healed when it is reported "
        "for a second attempt. Below `[state] format = 3` nothing is healed (`reknit config show` lists "
        "`healing` as off)."
    ),
    "",
    (
        "In the pipeline a refusal arrives as [events of the request](feeding.md) with their status, or as "
        "`provider.answered`. The worker publishes the healed request in the same transaction, with `reason: "
        "healed`, `heals` and `supersedes`, as [a consumer sees it](consuming.md). It is a function of the "
        "log: a restart, a replay or another batch gives the same bytes, and a refusal that is delivered "
        "twice heals once. A healed refusal makes a fix and no dead letter; one that is not healed makes a "
        "dead letter `refused_…` as before. If the user has sent another turn in the meantime, the next "
        "request is written without the cause, and no older one is sent again. `reknit_healed_total` counts "
        "healed requests by target, class (the row) and outcome (`accepted`, `refused`); after a late refusal "
        "the next request is the healed one. `reknit replay --policy heal=off` makes requests as before."
    ),
    "",
    (
        "A provider may also accept a request without some of its blocks, and report that in its answer "
        "(`input_transformations`). Each of these losses is a fix [`provider_dropped`](fixes.md#provider_dropped) "
        "with the place in the request and the reason: in `history.fixes` and its metrics, in the fixes of "
        "`session.append` if the answer is appended whole, and in `reknit_serve_fixes_total` of the gateway."
    ),
    "",
    (
        "`reknit feedback propose` prints rows for this table: the sentences of refusals that no row has, "
        "grouped by their shape, with a pattern that finds them. A person adds the repair."
    ),
    "",
    "Rows that only a session has, since the repair needs its history:",
    "",
)
_HEALING_COLUMNS = (
    "| name | targets | sentence (a regular expression) | the model loses | seen in |",
    "|---|---|---|---|---|",
)
_STREAMS_INTRO = (
    "A source streams attempts at messages, and an attempt may be cut and replaced without a notice. One table for "
    "all sources (`pipeline/streams/recovery/`), from which this page is made, defines the value of an attempt when "
    "the next event arrives. Streamed content stays unconfirmed until a complete message holds it; for an API, which "
    "repeats nothing, a block's stop and the message's stop reason confirm it. A program that sends whole blocks only"
    " (`codex-cli`) confirms each by sending it, and keeps the content of an attempt that was cut: nothing is "
    "withdrawn, and repeated content of the next attempt is marked. For one that does not report its attempts "
    "(`gemini-cli`), a possible second one is marked, and content that its own transcript does not hold is withdrawn "
    "at the end (`pipeline/streams/recovery/transcript.py`). An input that is not named in a state cannot occur "
    "there."
)


def documents() -> Mapping[str, str]:
    """The pages by their place under docs/."""
    fixes: dict[str, Mapping[str, str]] = {}
    pages: dict[str, str] = {}
    for group, codes in summaries().items():
        page = place_of(next(iter(codes))).partition("#")[0]
        if page == _FIXES:
            fixes[group] = codes
        elif page != _HEALING:
            pages[page] = "\n".join(_page(_sentence(group), _RULES_INTRO, {"": codes}))
    return {
        _FIXES: "\n".join(_page("Fixes", _FIXES_INTRO, fixes)),
        "acts.md": "\n".join(_acts_page()),
        _HEALING: "\n".join(_healing_page()),
        "native.md": "\n".join(_native_page()),
        "works-with.md": "\n".join(_works_page()),
        "shares.md": "\n".join(_shares_page()),
        "refusals.md": "\n".join(_refusals_page()),
        "streams.md": "\n".join(_streams_page()),
        **pages,
    }


def place_of(code: str) -> str:
    """Return the page under docs/ that explains a fix or a rule, with its anchor."""
    if code in HEALED_CODES:
        return _HEALING
    page = f"rules/{RULES[code].target}.md" if code in RULES else _FIXES
    return f"{page}#{code.lower()}"


class Act(Struct, frozen=True, kw_only=True):
    """Words that a target's program, or its model, acts on without a request.

    Attributes:
        words: the form of the words.
        effect: their effect.
        basis: ``measured`` on the program itself, ``documented`` by its makers or users, or ``reknit``: the model would
            take a line for one that Reknit wrote.
        source: the source of that.
        answer: ``broken`` in all but the current user's own words; ``reported`` by a soft rule, since they are the
            current user's own; ``left`` as ordinary words.
        why: the reason for an answer other than breaking them.
        examples: texts with such words, as tools may return them.
    """

    target: str
    words: str
    effect: str
    basis: Literal["measured", "documented", "reknit"]
    source: str
    answer: Literal["broken", "reported", "left"]
    why: str = ""
    examples: tuple[str, ...]


_ACTS_FILE: Final = Path(__file__).with_name("acts.jsonl")
# ``reknit.pipeline.text.neutral`` defines which words are neutralized, and how.
ACTS: Final = tuple(msgspec.json.decode(line, type=Act) for line in _ACTS_FILE.read_bytes().splitlines())


def _healing_page() -> Iterator[str]:
    yield from ("# Healing", "", _HEALING_INTRO, "", *_HEALING_COLUMNS)
    yield from map(_healing_row, HEALINGS)
    yield from ("", *_HEALING_SESSIONS, *_HEALING_COLUMNS)
    yield from map(_healing_row, IN_SESSIONS)


def _healing_row(row: Healing) -> str:
    sentence = row.pattern.pattern.replace("|", "\\|") or f"`param` is {row.param}"
    targets = ", ".join(sorted(row.targets))
    return f"| `{row.name}` | {targets} | `` {sentence} `` | {row.loss or 'nothing'} | {row.source} |"


def _acts_page() -> Iterator[str]:
    rows = [(act.target, (act.words, act.effect, f"{act.basis}: {act.source}", _answer(act))) for act in ACTS]
    return _tables("Words that programs act on", _ACTS_INTRO, ("words", "what they do", "known", "answer"), rows)


def _answer(act: Act) -> str:
    return f"{act.answer}: {act.why}" if act.why else act.answer


def _native_page() -> Iterator[str]:
    columns = "type", "turn", "opens", "answers", "next to", "one model's", "elsewhere"
    rows = []
    for each in NATIVE_TYPES:
        ids = (f"`{name}`" if name else "" for name in (each.opens, each.answers))
        cells = f"`{each.kind}`", each.turn, *ids, each.beside, "yes" if each.bound else "", each.elsewhere
        rows.append((each.provider, cells))
    return _tables("Provider-specific types", _NATIVE_INTRO, columns, rows)


def _works_page() -> Iterator[str]:
    columns = "framework or program", "`--from`", "reads", "`--to`", "writes", "hooks in", "versions that were tried"
    rows = [
        ("Frameworks", (each.title, f"`{each.name}`", each.forms, *_written(each.name), _tried(each.name, each.tried)))
        for each in sorted(FRAMEWORKS.values(), key=lambda each: each.title.lower())
    ]
    rows += [
        ("Providers and agent programs", (title, f"`{name}`", forms, *_written(name), _tried(name, _resumed(name))))
        for name, title, forms in _BY_PROVIDERS
    ]
    yield from _tables("Works with", _WORKS_INTRO, columns, rows)
    yield from ("## Content of the written shapes", "", *_table(_HELD, map(_held, WRITERS.values())), "")


def _tried(shape: str, written: str) -> str:
    """Return the versions that wrote samples of a shape, and those that CI runs."""
    in_ci = ", ".join(f"{package} {version}" for package, version in IN_CI.get(shape, {}).items())
    return "; ".join(filter(None, (written, in_ci and f"in CI: {in_ci}")))


def _written(name: str) -> tuple[str, str, str]:
    """Return the name of the writer of a shape, its form with the function that loads it, and the hooks."""
    writer = next((each for each in WRITERS.values() if each.source == name), None)
    hooks = _HOOKS.get(name, "")
    return ("", "", hooks) if writer is None else (f"`{writer.name}`", f"{writer.forms}, for {writer.loads}", hooks)


def _resumed(name: str) -> str:
    """Return the versions of a program whose files were read, and those that have resumed a written one."""
    writer = next((each for each in WRITERS.values() if each.source == name and each.tried), None)
    read = _TRIED.get(name, "")
    return read if writer is None else f"{read}; resumed what is written: {writer.tried}"


def _held(writer: Writer) -> Sequence[str]:
    """Return the row of a writer in the table of contents of shapes."""
    holds = writer.holds
    signed = "every provider" if holds.signers is EVERY else ", ".join(sorted(holds.signers))
    model = {"": "", "plain": " and model", "all": " and model"}[holds.models]
    issuer = {"": "", "signed": f"provider{model}, next to a signature", "all": f"provider{model}"}[holds.issuers]
    items = {"": "", "one": "with one summary", "named": "with an id", "all": "yes"}[holds.reasoning_items]
    return (
        f"`{writer.name}`",
        ", ".join(sorted("results" if each == "result" else each for each in holds.ids)),
        "yes" if holds.system else "",
        signed,
        issuer,
        {"": "", "calls": "of calls", "all": "yes"}[holds.seals],
        items,
        {"": "", "text": "of a text", "all": "yes"}[holds.errors],
        {"": "", "text": "by their text", "marked": "yes"}[holds.cut_calls],
        ", ".join(sorted("results" if each == "result" else each for each in holds.media))
        + ("" if holds.documents else ", images only"),
        ", ".join(sorted(holds.sources)),
        {"": "", "some": "yes", "all": "always"}[holds.titles],
        {"": "", "text": "on texts", "all": "yes"}[holds.cache],
    )


def _refusals_page() -> Iterator[str]:
    columns = "class", "decided by", "refusals", "requests"
    rows = []
    for row in REFUSALS:
        decided = f"[{row.rule}]({place_of(row.rule)}), {row.why}" if row.rule else row.why
        rows.append((row.provider, (row.error_class, decided, str(len(row.requests)), "<br>".join(row.requests))))
    return _tables("Causes of recorded refusals", _REFUSALS_INTRO, columns, rows)


def _tables(
    title: str, introduction: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]
) -> Iterator[str]:
    """A page with a table for each group; a row is its group, and its cells."""
    yield from (f"# {title}", "", _WRITTEN, "", introduction)
    groups: dict[str, list[Sequence[str]]] = {}
    for group, cells in rows:
        groups.setdefault(group, []).append(cells)
    for group, of_group in groups.items():
        yield from ("", f"## {group}", "", *_table(columns, of_group))
    yield ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    yield from ("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows)


def _shares_page() -> Iterator[str]:
    yield from ("# Outcomes of accepted requests", "", _WRITTEN, "", _SHARES_INTRO, "")
    counts = [
        (row.provider, str(row.accepted), *(f"{n} ({n / row.accepted:.1%})" for n in (len(row.harmed), row.mended)))
        for row in SHARES
    ]
    yield from _table(("provider", "accepted", "harmed", "mended without a loss"), counts)
    shares = [
        (
            f"[{code}]({place_of(code)})",
            *(f"{row.codes[code] / row.accepted:.1%}" if code in row.codes else "" for row in SHARES),
        )
        for code in sorted({code for row in SHARES for code in row.codes})
    ]
    yield from ("", *_table(("fix", *(row.provider for row in SHARES)), shares))
    for row in SHARES:
        if row.harmed:
            yield from ("", f"## {row.provider}", "", *_table(("request", "why"), row.harmed.items()))
    yield ""


def _streams_page() -> Iterator[str]:
    yield from ("# The states of a stream", "", _DRAWN, "", _STREAMS_INTRO, "")
    everywhere = {given: after for given in Input if (after := _same_everywhere(given)) is not None}
    as_text = [f"*{given.value}* leads to `{after.value}`" for given, after in everywhere.items()]
    yield f"From every state {', '.join(as_text[:-1])}, and {as_text[-1]}; the diagram leaves these out."
    yield from ("", "```mermaid", "stateDiagram-v2", f"    [*] --> {MessageState.IDLE.value}")
    moves: dict[tuple[MessageState, MessageState], list[str]] = {}
    for (state, given), (after, _) in TABLE.items():
        if after is not state and given not in everywhere:
            moves.setdefault((state, after), []).append(given.value)
    for (state, after), words in moves.items():
        yield f"    {state.value} --> {after.value}: {'<br/>'.join(words)}"
    yield "```"
    for state, meaning in MEANINGS.items():
        rows = []
        for (before, given), (after, action) in TABLE.items():
            if before is state:
                done = (action.__doc__ or "").partition("\n")[0].rstrip(".")
                rows.append((given.value, "" if after is state else after.value, f"{done[0].lower()}{done[1:]}"))
        yield from ("", f"## {state.value}", "", meaning, "", *_table(("input", "next", "action"), rows))
    yield ""


def _same_everywhere(given: Input) -> MessageState | None:
    """The state to which an input leads from all of them, if there is one."""
    after = {TABLE[state, given][0] if (state, given) in TABLE else None for state in MessageState}
    return after.pop() if len(after) == 1 else None


def _page(title: str, introduction: str, groups: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    yield from (f"# {title}", "", _WRITTEN, "", introduction)
    for group, codes in groups.items():
        if group:
            yield from ("", f"## {_sentence(group)}")
        for code in codes:
            yield from ("", f"{'###' if group else '##'} {code}", "", *_section(code))
    yield ""


def _section(code: str) -> Iterator[str]:
    said = as_text(explain(code))
    yield from (_prose(_sentence(said.summary.rstrip("."))) + ".", "", *_facts(said.facts), "")
    example = "\n".join(written(said.example))
    fence = "````" if "```" in example else "```"
    yield f"{fence}text"
    # A NUL has no place in a text file; its picture has.
    yield example.replace("\0", "\N{SYMBOL FOR NULL}")
    yield fence


def _facts(facts: Iterable[Said]) -> Iterator[str]:
    """Sentences as they are; what a provider says as a list."""
    quoted = False
    for fact in facts:
        if quoted:
            yield ""
        yield _prose(fact.text)
        quoted = bool(fact.lines)
        if quoted:
            yield ""
            yield from (f"- {_span(line.text)}" for line in fact.lines)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _span(text: str) -> str:
    ticks = "``" if "`" in text else "`"
    return f"{ticks} {text} {ticks}" if ticks == "``" else f"{ticks}{text}{ticks}"


def _prose(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")
