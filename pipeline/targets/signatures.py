"""Issuers of signatures on reasoning, by their form, and the endpoints that refuse signatures of other issuers.

A signature cannot be checked without its issuer, but its form often names the issuer. ``FORMS`` lists the known forms
with the number of distinct signatures of each in recorded traffic. A signature of no known form may be anyone's.

Reasoning is only removed where the endpoint is known to refuse it. An endpoint is known by its policy
(``endpoints.TARGET``) or by the name of its model; ``CHECKING`` lists the issuers whose endpoints verify signatures.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, get_args

from msgspec import Struct

from reknit.pipeline.model import Block, Issuer, RedactedThinking, Thinking
from reknit.pipeline.policy import Endpoint, IssuerName, Platform
from reknit.pipeline.targets import Setting


class Form(Struct, frozen=True, kw_only=True):
    """One form of signature.

    Attributes:
        name: the form's name.
        matches: returns a true value for a signature of the form.
        issuers: those who make such signatures.
        platforms: where they are made and accepted; everywhere if empty.
        recorded: the number of distinct ones in recorded traffic.
        source: where the form was seen.
    """

    name: str
    matches: Callable[[str], object]
    issuers: frozenset[IssuerName]
    platforms: frozenset[Platform] = frozenset()
    recorded: int = 0
    source: str


# Gemini's documented values for a call without a signature, as text and as base64 of it.
_PLACEHOLDERS: Final = frozenset(
    {
        "skip_thought_signature_validator",
        "context_engineering_is_the_way_to_go",
        "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=",
        "Y29udGV4dF9lbmdpbmVlcmluZ19pc190aGVfd2F5X3RvX2dv",
    }
)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}").fullmatch
_HEX: Final = re.compile(r"(?:[0-9a-f]{2}){8,64}").fullmatch
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}").fullmatch

# The characters of base64 in which the beginning of a message of protocol buffers is looked at.
_BEGINNING: Final = 16

# Fields of a message of protocol buffers: a tag, and a length that continues after each byte above 127.
_LENGTH: Final = rb"[\x80-\xff]*[\x00-\x7f]"
_GEMINI: Final = re.compile(rb"(?:\x12%b)?\n%b\x01|\x01" % (_LENGTH, _LENGTH), re.DOTALL).match
_CLAUDE: Final = re.compile(rb"(?:\x08%b)?\x12%b\n%b(?:\x18|\x08[\x03-\xff])" % ((_LENGTH,) * 3), re.DOTALL).match


def _is_gemini(signature: str) -> bool:
    """True if it is base64 of a field, or of one in another, whose content begins with 1; the newest have no field."""
    return signature.startswith(("E", "C", "AY8")) and _GEMINI(_beginning(signature)) is not None


def _is_claude(signature: str) -> bool:
    """True if it is base64 of a field in another, which makes it begin with ``E``, or of a number before it (``CAIS``).

    The inner field begins with a number, 3 or more: of those with 1 and 2, 12 are Gemini's and 1 is Claude's.
    """
    return signature.startswith(("E", "C")) and _CLAUDE(_beginning(signature)) is not None


def _beginning(signature: str) -> bytes:
    """Return the first bytes of a signature in base64; none if it begins with anything else."""
    head = signature[:_BEGINNING]
    if _BASE64(head) is None:
        return b""
    head = head.rstrip("=").replace("-", "+").replace("_", "/")
    return binascii.a2b_base64(head[: len(head) // 4 * 4])


FORMS: Final = (
    Form(
        name="placeholder",
        matches=_PLACEHOLDERS.__contains__,
        issuers=frozenset({"google"}),
        recorded=3,
        source="Gemini's documentation; Vertex refuses it for Claude: router-for-me/CLIProxyAPI#570",
    ),
    Form(
        name="encrypted",
        matches=lambda signature: signature.startswith("gAAAA"),
        issuers=frozenset({"openai"}),
        recorded=105,
        source="OpenAI's encrypted content; as Claude's signature: badrisnarayanan/antigravity-claude-proxy#298",
    ),
    Form(
        name="uuid",
        matches=_UUID,
        issuers=frozenset({"deepseek"}),
        source="the id of DeepSeek's message: NousResearch/hermes-agent#21048; sent to Claude: NanmiCoder/cc-haha#382",
    ),
    Form(
        name="hex",
        matches=_HEX,
        issuers=frozenset({"glm", "minimax"}),
        source="GLM, 24 digits, then Claude: can1357/oh-my-pi#12006; MiniMax: NousResearch/hermes-agent#75779, #85251",
    ),
    Form(
        name="prefixed",
        matches=lambda signature: signature.startswith(("gemini#", "gpt#")),
        issuers=frozenset(),
        source="a gateway's name for the issuer, before its signature: router-for-me/CLIProxyAPI#3615, #5150",
    ),
    Form(
        name="vertex",
        matches=lambda signature: signature.startswith("claude#"),
        issuers=frozenset({"anthropic"}),
        platforms=frozenset({"vertex"}),
        source="openclaw/openclaw#110080; sent to Gemini: router-for-me/CLIProxyAPIPlus#178",
    ),
    Form(
        name="gemini",
        matches=_is_gemini,
        issuers=frozenset({"google"}),
        recorded=513,
        source="recorded; sent to Claude: router-for-me/CLIProxyAPI#1584, #3615",
    ),
    Form(
        name="claude",
        matches=_is_claude,
        issuers=frozenset({"anthropic"}),
        recorded=181,
        source="recorded",
    ),
)


def form_of(signature: str) -> Form | None:
    """Return the form of a signature; None if it is of no known one."""
    for form in FORMS:
        if form.matches(signature):
            return form
    return None


CHECKING: Final[Mapping[IssuerName, str]] = MappingProxyType(
    {
        "anthropic": "anthropics/anthropic-sdk-python#1598; NousResearch/hermes-agent#109232",
        "google": "Corrupted thought signature: google-gemini/gemini-cli#13467; alphaXiv/agents#61",
        "minimax": "refuses a signed block of another context: NousResearch/hermes-agent#75779",
        "openai": "invalid_encrypted_content: openai/codex#8119, #8145",
    }
)
"""Issuers whose endpoints verify signatures, with the source.

The others are not known to. DeepSeek refuses a history whose thinking is missing (NousResearch/hermes-agent#17992), so
nothing is removed there.
"""


WANTING_BACK: Final[Mapping[IssuerName, str]] = MappingProxyType(
    {
        "deepseek": "`content[].thinking` in the thinking mode must be passed back: NousResearch/hermes-agent#17992",
        "minimax": "wants its reasoning back in a tool loop, signed or not: NousResearch/hermes-agent#75779, #85251",
        "moonshot": "thinking is enabled but reasoning_content is missing: openclaw/openclaw#74846",
    }
)
"""Issuers whose endpoints want reasoning back whether or not it is signed, with the source.

Other services serve models under these names too, and may check requests as Anthropic does. So a policy has to name the
endpoint before reasoning without a signature is sent there.
"""


def takes_unsigned(setting: Setting, target: str) -> bool:
    """Return True if a policy names the endpoint of a target, and it wants reasoning back that is not signed."""
    return target in setting.endpoints and _issuer_named(setting, target) in WANTING_BACK


def judged_as(setting: Setting, target: str) -> str | None:
    """Return the model by whose rules a request is judged: a look-alike has its own, whatever it calls the model."""
    is_alias = takes_unsigned(setting, target) and issuer_of(setting.model) == "anthropic"
    return _issuer_named(setting, target) if is_alias else setting.model


def _issuer_named(setting: Setting, target: str) -> IssuerName:
    return _issuer_at(setting, target, setting.endpoints.get(target, UNKNOWN).platform)


def wants_back(issuer: Issuer | None, endpoint: Endpoint) -> bool:
    """Return True if an endpoint that takes reasoning unsigned wants that of an issuer; MiniMax its own."""
    of = "" if issuer is None else issuer_of(issuer.model) or issuer_of(issuer.provider)
    return endpoint.issuer != "minimax" or of in {"", "minimax"}


class Crossing(Struct, frozen=True, kw_only=True):
    """Reasoning of one issuer at the endpoint of another, where the history states the issuer.

    Attributes:
        of: the issuers of the reasoning.
        at: the issuer whose models the endpoint has.
        since: of Claude's models, the first version that the line holds for.
        source: where this was seen.
    """

    of: frozenset[IssuerName]
    at: IssuerName
    since: tuple[int, int] = (0, 0)
    source: str


_EVERY: Final = frozenset(get_args(IssuerName))
CROSSINGS: Final = (
    Crossing(of=_EVERY, at="deepseek", source="wants all thinking back: NousResearch/hermes-agent#16748, #17992"),
    Crossing(
        of=_EVERY, at="moonshot", source="wants all thinking back: openclaw/openclaw#74846; anomalyco/opencode#10996"
    ),
    Crossing(
        of=frozenset({"anthropic"}),
        at="anthropic",
        since=(5, 1),
        source="preserved thinking drops what a model cannot read, without an error: pydantic/pydantic-ai#7984",
    ),
)
"""Reasoning of another model that may be sent.

Any other is refused, or not known to be taken: of another Claude model (vybestack/llxprt-code#2335), of another tier or
service of GPT (BerriAI/litellm#40245, manaflow-ai/subrouter#259), of another Gemini model
(lbjlaq/Antigravity-Manager#3337).
"""


def may_cross(issuer: Issuer, endpoint: Endpoint, version: tuple[int, int] | None = None) -> bool:
    """Return True if reasoning of another model may be sent to an endpoint; ``version`` is that of its Claude model.

    An unknown endpoint may have the same model under another name.
    """
    if not endpoint.issuer:
        return True
    of = issuer_of(issuer.model)
    return any(of in line.of and line.at == endpoint.issuer and (version or (0, 0)) >= line.since for line in CROSSINGS)


# The platforms that serve models of one issuer, whatever a request calls the model.
_LOOK_ALIKES: Final[Mapping[Platform, IssuerName]] = MappingProxyType(
    {"deepseek": "deepseek", "glm": "glm", "minimax": "minimax", "moonshot": "moonshot"}
)

# Words in models' names, the first that occurs decides: gateways write other vendors' names in front of Claude's.
_NAMES: Final[tuple[tuple[re.Pattern[str], IssuerName], ...]] = (
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"deepseek"), "deepseek"),
    (re.compile(r"\bglm-"), "glm"),
    (re.compile(r"minimax"), "minimax"),
    (re.compile(r"kimi|moonshot"), "moonshot"),
    (re.compile(r"gemini"), "google"),
    (re.compile(r"\b(?:gpt-(?!oss)|o[134](?:-|\b)|codex|computer-use)"), "openai"),
)


def issuer_of(model: str | None) -> IssuerName:
    """Return the issuer of a model's reasoning by its name; ``""`` if the name is of no known issuer."""
    name = (model or "").lower()
    return next((issuer for pattern, issuer in _NAMES if pattern.search(name)), "")


UNKNOWN: Final = Endpoint()
"""An unknown endpoint: it may take every signature."""


def endpoint_of(setting: Setting, target: str, platform: Platform = "") -> Endpoint:
    """Return the endpoint of a target; by policy (``reasoning=keep``) one that verifies signatures is unknown.

    ``platform`` is that of a target that has only one.
    """
    platform = setting.endpoints.get(target, UNKNOWN).platform or platform
    issuer = _issuer_at(setting, target, platform)
    return UNKNOWN if setting.reasoning == "keep" and issuer in CHECKING else Endpoint(platform, issuer)


def _issuer_at(setting: Setting, target: str, platform: Platform) -> IssuerName:
    """Return whose models a target's endpoint has: as a policy says, or by the names of its platform and model."""
    given = setting.endpoints.get(target, UNKNOWN).issuer
    return given or _LOOK_ALIKES.get(platform) or issuer_of(setting.model)


def is_foreign(signature: str, endpoint: Endpoint) -> bool:
    """Return True if an endpoint is known to refuse a signature, because another issuer or platform made it."""
    if endpoint.issuer not in CHECKING:
        return False
    form = form_of(signature)
    if form is None:
        return False
    if endpoint.issuer not in form.issuers:
        return True
    return bool(form.platforms and endpoint.platform) and endpoint.platform not in form.platforms


def has_foreign_signature(block: Block, endpoint: Endpoint) -> bool:
    """Return True if a block is reasoning that an endpoint is known to refuse for the form of its signature."""
    if isinstance(block, Thinking):
        return isinstance(block.signature, str) and is_foreign(block.signature, endpoint)
    return isinstance(block, RedactedThinking) and is_foreign(block.data, endpoint)
