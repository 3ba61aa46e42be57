"""The policy of a session: how its history is repaired, and the endpoints of its requests."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

RepairMode: TypeAlias = Literal["on", "observe"]
Platform: TypeAlias = Literal["", "anthropic", "azure", "bedrock", "deepseek", "glm", "minimax", "moonshot", "vertex"]
IssuerName: TypeAlias = Literal["", "anthropic", "deepseek", "glm", "google", "minimax", "moonshot", "openai"]
KeptReasoning: TypeAlias = Literal["keep", "same_issuer", "strip"]


class Endpoint(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The endpoint of a target's requests. An empty member is unknown."""

    platform: Annotated[
        Platform, Meta(description="The service that runs the model, or one that answers in its place.")
    ] = ""
    issuer: Annotated[
        IssuerName, Meta(description="Whose reasoning the model reads; empty: derived from the model's name.")
    ] = ""


class Policy(Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Choices of repair (DESIGN section 3)."""

    tail: Annotated[
        Literal["auto", "continue", "prefill", "keep", "reject"],
        Meta(
            description="A history that ends with the assistant: a short user turn follows (`continue`), the model "
            "continues the words (`prefill`), they stay for a next user turn (`keep`), no request is made"
            " (`reject`), or the model's default (`auto`)."
        ),
    ] = "auto"
    missing_result: Annotated[
        Literal["synthesise", "drop"],
        Meta(description="A call without a result: it gets an error as its result, or is left out."),
    ] = "synthesise"
    orphan_result: Annotated[
        Literal["drop", "text"], Meta(description="A result without its call: it is left out, or stays as text.")
    ] = "drop"
    late_result: Annotated[
        Literal["replace", "turn", "drop"],
        Meta(
            description="Another real result of a call that has one: until an assistant turn follows the first, it "
            "replaces it, and after that it becomes a user turn (`replace`), it always becomes a user turn (`turn`),"
            " or it is left out (`drop`)."
        ),
    ] = "replace"
    incomplete_call: Annotated[
        Literal["drop", "text"], Meta(description="A call that was cut off: it is left out, or stays as text.")
    ] = "drop"
    cut_text: Annotated[
        Literal["auto", "keep", "mark", "drop"],
        Meta(
            description="A text that was cut off: it stays as it is (`keep`), a line after it says so (`mark`), it is "
            "left out (`drop`), or `mark` for targets that take one text and `keep` for others (`auto`)."
        ),
    ] = "auto"
    media: Annotated[
        Literal["stub", "shrink", "reject"],
        Meta(
            description="Media beyond a limit of the target: the oldest become lines of text, in steps (`stub`), "
            "images are scaled down before (`shrink`), or the request is rejected, or sent as it is (`reject`)."
        ),
    ] = "stub"
    fit: Annotated[
        Literal["off"] | Annotated[int, Meta(ge=1)],
        Meta(
            description="The most tokens of a request, by an estimate: a longer history is cut to half of it, by whole "
            "exchanges, oldest first. `off`: no history is cut."
        ),
    ] = "off"
    summary: Annotated[
        str, Meta(description="A text that requests have at the place of a cut; empty: none is inserted.")
    ] = ""
    reasoning: Annotated[
        KeptReasoning,
        Meta(
            description="Reasoning that its target can express: it stays (`keep`), it goes where the endpoint is known "
            "to refuse its signature, for its issuer or for what has changed before it (`same_issuer`), or it goes "
            "(`strip`)."
        ),
    ] = "same_issuer"
    heal: Annotated[
        Literal["on", "once", "off"],
        Meta(
            description="Refusals that can be healed: the request is sent again without what the provider refused, up "
            "to three times in a user's turn (`on`), once (`once`), or never (`off`)."
        ),
    ] = "on"
    strip_tools: Annotated[bool, Meta(description="Whether calls and results are left out.")] = False
    record_assistant: Annotated[
        bool, Meta(description="Whether what a stream says is appended to the session's log.")
    ] = False
    open_exchanges: Annotated[
        int, Meta(description="How many of the last exchanges may still wait for a real result before they settle.")
    ] = 8
    expires_after: Annotated[
        int,
        Meta(
            ge=0,
            description="Seconds without a record of the session's own in `agent.turns` after which it is over and "
            "its state is freed; longer than any answer takes. 0: never.",
        ),
    ] = 0
    mend: Annotated[
        dict[str, RepairMode | dict[str, RepairMode]],
        Meta(
            description="Single mends by the code of their fix, or by target and code: each is made (`on`), or only "
            "recorded (`observe`) as long as the target takes the request without it."
        ),
    ] = {}
    endpoints: Annotated[
        dict[str, Endpoint],
        Meta(
            description="Where requests go, by target: the `platform`, and the `issuer` of the reasoning that its "
            "model reads. They decide which signatures of reasoning are foreign."
        ),
    ] = {}

    def observed(self, target: str) -> frozenset[str]:
        """Return the codes of repairs that are only observed for a target; its own entries take precedence."""
        if not self.mend:
            return frozenset()
        of_all = {code: how for code, how in self.mend.items() if isinstance(how, str)}
        its_own = self.mend.get(target)
        chosen = of_all | its_own if isinstance(its_own, dict) else of_all
        return frozenset(code for code, how in chosen.items() if how == "observe")
