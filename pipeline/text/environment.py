"""The caller's environment, read from the words of the caller.

A planner has a workspace of its own and trusts it, so the caller's must be stated with authority. It is extracted from
the system prompt and the user's words, which have many forms: lines of key and value (bullets, bold type and backticks
included), tags, and prose ("the current working directory is /srv/app"). Assistant and tool texts are never read: a
file with ``cwd: /elsewhere`` must not move the session.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from reknit.pipeline.text.redaction import Redactor

WORKING_DIRECTORY: Final = "Working directory"
# The roles of the caller.
_TRUSTED: Final = frozenset({"system", "developer", "user"})
# The usual marker, whatever is configured here: the text may have been redacted elsewhere.
_ELLIPSIS: Final = "…"

# Characters of a value; longer ones are refused, not cut.
_LONGEST: Final = 1024
_REST: Final = rf"[^\r\n<]{{0,{_LONGEST + 1}}}"


def _pattern(names: str, tags: str, prose: str = "") -> re.Pattern[str]:
    """A key at the start of a line, or a tag, or a phrase; what follows is in the group of the same name."""
    bullet = r"(?:(?:[-*+•>]|\d{1,2}[.)])[ \t]+)?"
    line = rf"^[ \t]*(?:<\w{{1,40}}>[ \t]*)?{bullet}[*_`]{{0,2}}(?:{names})[*_`]{{0,2}}[ \t]*[:=][*_]{{0,2}}"
    forms = [rf"{line}(?P<line>{_REST})", rf"<(?:{tags})>(?P<tag>{_REST})"]
    if prose:
        # Looked at without being taken, for a line may hold several phrases.
        forms.append(rf"{prose}(?=(?P<prose>{_REST}))")
    return re.compile("|".join(forms), re.IGNORECASE | re.MULTILINE)


_DIRECTORY: Final = _pattern(
    names=r"(?:(?:primary|current|initial)[ ]+)?working[ _]?directory|cwd",
    tags=r"cwd|(?:current[_-]?)?working[_-]?directory",
    prose=r"\bcurrent[ ]working[ ]directory(?:[ ]is)?:?[ ]+",
)
# In the order of the facts of one message; each with a word that excludes most texts quickly.
_OTHERS: Final = {
    "Is the directory a git repo": (
        "git",
        _pattern(
            names=r"is[ ](?:(?:the[ ])?(?:current[ ]|working[ ])?directory[ ])?(?:a[ ])?git[ ]repo(?:sitory)?",
            tags=r"is_(?:directory_a_)?git_repo(?:sitory)?",
        ),
    ),
    "Platform": ("platform", _pattern(names="platform", tags="platform")),
    "OS version": ("version", _pattern(names=r"os[ ]version", tags="os_version")),
}

_ABSOLUTE: Final = re.compile(r"/|~(?:[\w.-]*/|$)|[A-Za-z]:[\\/]|\\\\[^\\]")
_QUOTES: Final = {"`": "`", '"': '"', "'": "'", "“": "”", "‘": "’"}  # noqa: RUF001  they are meant
# The end of a path on a line of its own: another sentence, remark or key. "Program Files (x86)\" continues.
_LINE_END: Final = re.compile(
    r"[>\"`\t]|[,;.](?=\s|$)| \((?!\w{1,20}\)[\\/])| (?:[#|\[–—]|--? )| (?=[A-Z][A-Za-z ]{0,24}[:=])"  # noqa: RUF001  an en dash
)
_WORD: Final = r"[^\s\"'`<>]"
_NAME: Final = r"[A-Z][^\s\"'`<>\\/]*"
# A path in prose ends at a space, unless capitalised names lead on to another separator ("/Users/My Name/x").
_IN_PROSE: Final = re.compile(rf"{_WORD}+(?:(?<![.,;:!?)])(?: {_NAME}){{0,3}} {_NAME}[\\/]{_WORD}*)*")
_TRAILING: Final = ".,;:!?"

_RESULTS: Final = re.compile(r"<tool_result\b.*?(?:</tool_result>|\Z)", re.DOTALL | re.IGNORECASE)

# Words that refer to a place and precede a path: wordings that were not seen yet.
_HINT: Final = re.compile(
    r"\b(?:(?:work(?:ing|space)?|current|project|repo(?:sitory)?|root|source|base)[ _-]?"
    r"(?:dir(?:ectory)?|folder|path|root|tree)|cwd|pwd|workspace|workdir)\b"
    r"[^\r\n]{0,40}?[ \t:=`\"'(](?=(?:~?/|[A-Za-z]:[\\/]|\\\\)[\w.~-])",
    re.IGNORECASE,
)


def lift_environment(messages: Iterable[Mapping[str, Any] | None] | None, redactor: Redactor | None = None) -> str:
    """Return the caller's environment as lines such as ``- Working directory: /srv/app``; ``""`` without a directory.

    ``messages`` are read if they have a known shape: a role, and a string or text blocks as content. The first usable
    value of a key counts; lines are in the order of discovery. A path that ``redactor`` would hide is refused, by
    default one under the source's own roots.
    """
    redactor = redactor or Redactor()
    facts: dict[str, str] = {}
    for text in _trusted_texts(messages):
        for name, value in environment_facts(text, redactor).items():
            facts.setdefault(name, value)
    return environment_lines(facts)


def environment_facts(text: str, redactor: Redactor) -> dict[str, str]:
    """Return the facts about the environment in one text of the caller's, by their name in the preamble."""
    text = _spoken(text)
    lowered = text.lower()
    facts: dict[str, str] = {}
    for match in _DIRECTORY.finditer(text) if "working" in lowered or "cwd" in lowered else ():
        path = _path(match)
        if _usable(path, redactor):
            facts[WORKING_DIRECTORY] = path
            break
    for name, (word, pattern) in _OTHERS.items():
        for match in pattern.finditer(text) if word in lowered else ():
            given = match["line"] or match["tag"] or ""
            value = given.strip().strip("*`\"'").strip()
            if len(given) <= _LONGEST and _usable(value, redactor):
                facts[name] = value
                break
    return facts


def environment_lines(facts: Mapping[str, str]) -> str:
    """The facts as a list; ``""`` without a working directory, for the rest says nothing alone."""
    if WORKING_DIRECTORY not in facts:
        return ""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def nearest_phrase(text: str) -> str:
    """The words that look most as if a working directory followed, the path left out; ``""`` where none do.

    It is for texts from which no directory was lifted: a known key has a value that was refused, other words may be
    a wording to add here.
    """
    text, words = _spoken(text), ""
    # Prose that only mentions a working directory does not count.
    key = next((match for match in _DIRECTORY.finditer(text) if match["prose"] is None), None)
    if key is not None:
        words = text[key.start() : key.start("tag" if key["line"] is None else "line")]
    elif ("/" in text or "\\" in text) and (found := _HINT.search(text)) is not None:
        words = found[0]
    return " ".join(words.split()).rstrip(" `\"'(")


def _spoken(text: str) -> str:
    """The text without results: in a history that was flattened before, the caller only passes them on."""
    return _RESULTS.sub("", text) if "<tool_result" in text.lower() else text


def _path(match: re.Match[str]) -> str:
    in_prose = match["prose"] is not None
    given = match["prose"] or match["line"] or match["tag"] or ""
    value = given.strip()
    quote = _QUOTES.get(value[:1])
    if quote is not None:
        path, closed, _ = value[1:].partition(quote)
        path = path.strip() if closed else ""
    elif in_prose:
        found = _IN_PROSE.match(value)
        path = found[0].rstrip(_TRAILING) if found else ""
        path = path if "(" in path else path.rstrip(f"){_TRAILING}")
    else:
        end = _LINE_END.search(value)
        path = (value[: end.start()] if end else value).rstrip().rstrip(_TRAILING)
    cut = len(given) > _LONGEST and value.endswith(path)
    return path if _ABSOLUTE.match(path) and not cut else ""


def _usable(value: str, redactor: Redactor) -> bool:
    """Return True if a value can be used: valid characters, and no text that was or would be redacted."""
    if not value or len(value) > _LONGEST or _ELLIPSIS in value or redactor.marker in value:
        return False
    if not value.isascii() or not value.isprintable():
        bad = {"Cc", "Cf", "Cs", "Zl", "Zp"}
        if any(unicodedata.category(char) in bad for char in value):
            return False
    return redactor.whole(value) == value


def _trusted_texts(messages: Iterable[Mapping[str, Any] | None] | None) -> Iterator[str]:
    if not isinstance(messages, Iterable) or isinstance(messages, (str, bytes, Mapping)):
        return
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in _TRUSTED:
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            blocks = [block for block in content if isinstance(block, Mapping) and block.get("type") == "text"]
            yield "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
