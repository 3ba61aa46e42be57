"""The outcomes of requests that their provider accepted: normalised for the same provider, and compared.

Run as a program, it prints the shares by provider and the requests in them:

    python tests/corpus/harmless.py [PROVIDER ...]

With ``--write`` it writes them for the page in docs/ and for the test in this folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import NamedTuple

import click
import msgspec
from recorded import accepted

from reknit import normalize
from reknit.pipeline.explain.documents import SHARES, SHARES_FILE, Shares
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.testing.promises import Difference, differences

# Of these nothing was recorded.
_UNRECORDED = {"vllm", "moonshot"}
PROVIDERS = sorted(name for name, target in TARGETS.items() if target.equalities and name not in _UNRECORDED)


class Outcome(NamedTuple):
    """The outcome of one accepted request: codes of its fixes, hard violations, and differences beyond the fixes."""

    id: str
    lossless: tuple[str, ...]
    lossy: tuple[str, ...]
    rejected: tuple[str, ...]
    different: tuple[Difference, ...]

    @property
    def harmed(self):
        """Whether something was lost, refused, or changed without a word."""
        return bool(self.lossy or self.rejected or self.different)


def is_conversation(row):
    """Whether it is a conversation's request, whose 200 was recorded and is not just assumed."""
    return not row.get("response_only") and any(key in row["request"] for key in ("messages", "input", "contents"))


def outcome(row, provider):
    request = row["request"]
    if row.get("model") and "model" not in request and "modelId" not in request:
        request = request | {"model": row["model"]}
    sent = json.dumps(request).encode()
    done = normalize(sent, to=provider)
    rejected = tuple(each.rule for each in done.violations if each.severity == "hard")
    lossless = tuple(fix.code for fix in done.fixes if FIXES[fix.code].lossless)
    lossy = tuple(fix.code for fix in done.fixes if not FIXES[fix.code].lossless)
    if done.body is None:
        return Outcome(row["id"], lossless, lossy, rejected or ("no body",), ())
    different = differences(sent, done.body, TARGETS[provider].equalities, done.fixes)
    return Outcome(row["id"], lossless, lossy, rejected, tuple(different))


def kinds(one):
    """Return the outcome of one request, in words that many requests share."""
    said = {f"lossless {code}" for code in one.lossless} | {f"lossy {code}" for code in one.lossy}
    said |= {f"rejected {rule}" for rule in one.rejected}
    return said | {f"differs  {_place(each.path)} {each.kind}" for each in one.different}


_MEASURED = ("lossless ", "lossy ", "rejected ", "differs ")


def outcomes_of(provider):
    return [outcome(row, provider) for row in accepted(provider) if is_conversation(row)]


def measured(provider):
    outcomes = outcomes_of(provider)
    codes = Counter(code for each in outcomes for code in {*each.lossless, *each.lossy})
    return Shares(
        provider=provider,
        accepted=len(outcomes),
        mended=sum(bool(each.lossless) for each in outcomes),
        codes=dict(sorted(codes.items())),
        harmed={each.id: "; ".join(sorted(kinds(each))[:3]) for each in outcomes if each.harmed},
    )


def write(path=SHARES_FILE):
    """Write the shares of all providers; reasons that were added manually stay."""
    given = {request: why for row in SHARES for request, why in row.harmed.items() if not why.startswith(_MEASURED)}
    rows = [measured(provider) for provider in PROVIDERS]
    for row in rows:
        row.harmed.update({request: given[request] for request in row.harmed.keys() & given.keys()})
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def tell(provider):
    outcomes = outcomes_of(provider)
    harmed, mended = sum(each.harmed for each in outcomes), sum(bool(each.lossless) for each in outcomes)
    click.echo(f"\n{provider}: {len(outcomes)} accepted, {harmed} harmed, {mended} with a lossless fix")
    counts = Counter()
    examples = {}
    for each in outcomes:
        counts.update(kinds(each))
        for one in each.different:
            examples.setdefault(f"differs  {_place(one.path)} {one.kind}", f"{one.before} -> {one.after}"[:150])
        examples.update(dict.fromkeys(kinds(each) - set(examples), each.id))
    for kind, count in counts.most_common(60):
        click.echo(f"{count:5} {kind}  [{examples[kind]}]")


def _place(path):
    return ".".join("N" if step.isdecimal() else step for step in path.split("."))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        for name in sys.argv[1:] or PROVIDERS:
            tell(name)
