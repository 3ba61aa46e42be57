"""Every target, the models that it writes differently for, and the inputs over which its promises are tested."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from hypothesis import strategies as st
from strategies import TOOLS, beside_spiced, histories, own, reasoned, spiced

from reknit.pipeline.registry import TARGETS

CLAUDE, LLAMA = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "meta-llama/Llama-3.1-8B-Instruct"
BRIEF = {"system": st.just("Be brief.")}


class Provider(NamedTuple):
    """The differences of one target from the others.

    ``models``: each model, with the fixes that even a history that is valid as is needs for it. ``refusals``: the
    rules that reject a tail which the policy keeps. ``read_as``: how the body is read back where it has no shape.
    """

    models: Mapping[str | None, AbstractSet[str]]
    refusals: set[str]
    histories: st.SearchStrategy[list[Any]] = histories
    beside: Mapping[str, st.SearchStrategy[Any]] = BRIEF
    read_as: str | None = None
    setting: Mapping[str, Any] = {}


NOTHING = frozenset()
INSERTED, SERIAL = {"assistant_inserted"}, {"calls_serialised"}
MISTRAL = {"id_rewritten", *INSERTED}
PROVIDERS = {
    "anthropic": Provider({None: NOTHING, "claude-sonnet-4-5": NOTHING}, {"ANT-01", "ANT-25"}),
    "claude-cli": Provider({None: NOTHING, "claude-sonnet-4-5": NOTHING}, {"CLI-01", "CLI-05"}),
    "codex-cli": Provider({None: NOTHING}, {"CDX-02", "CDX-04"}, own),
    "gemini-cli": Provider({None: NOTHING}, {"GCL-02", "GCL-04", "GCL-05"}, own),
    "copilot-cli": Provider({None: NOTHING}, {"COP-02", "COP-05"}, own),
    "bedrock-converse": Provider(
        {
            None: {"tools_stubbed"},
            CLAUDE: {"tools_stubbed"},
            "us.amazon.nova-pro-v1:0": {"tools_stubbed"},
            "us.amazon.nova-2-lite-v1:0": {"tools_stubbed"},
            "us.meta.llama3-3-70b-instruct-v1:0": {"tools_stubbed", *INSERTED},
            "us.mistral.pixtral-large-2502-v1:0": {"tools_stubbed", *INSERTED},
            "us.deepseek.r1-v1:0": {"tools_stubbed"},
        },
        {"BED-01", "BED-11", "BED-11b"},
        own,
    ),
    "gemini": Provider(
        {None: NOTHING, "gemini-2.5-flash": NOTHING, "gemini-3-pro-preview": {"signature_skipped"}},
        {"GEM-05", "GEM-09"},
        st.one_of(own, reasoned),
    ),
    "openai-chat": Provider(
        dict.fromkeys((None, "gpt-5-mini", "o1-mini", "deepseek-reasoner", "kimi-k2-thinking"), NOTHING),
        {"OAI-06", "OAI-22"},
        reasoned,
    ),
    "openai-responses": Provider(
        {None: NOTHING, "gpt-5-mini": NOTHING, "o3-mini": NOTHING},
        {"RSP-18", "RSP-23"},
        reasoned,
    ),
    "vllm": Provider(
        {
            None: NOTHING,
            "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL,
            "mistral-small": MISTRAL,
            "mistralai/Devstral-Small-2507": MISTRAL,
            LLAMA: SERIAL,
            "google/gemma-3-27b-it": {"calls_as_text"},
            "Qwen/Qwen3.5-9B": NOTHING,
        },
        {"VLM-OAI-06", "VLM-04", "VLM-09", "OAI-22"},
        reasoned,
    ),
    "mistral": Provider(
        {None: MISTRAL, "mistral-small-latest": {"id_rewritten"}, "magistral-medium-latest": MISTRAL},
        {"MIS-OAI-06", "MIS-05"},
        reasoned,
    ),
    "deepseek": Provider(
        dict.fromkeys((None, "deepseek-v4-flash", "deepseek-reasoner"), NOTHING),
        {"DSK-OAI-06", "DSK-06"},
        reasoned,
    ),
    "moonshot": Provider(
        dict.fromkeys((None, "kimi-k2.6", "kimi-k2-0905-preview"), NOTHING),
        {"KIM-OAI-06", "KIM-10"},
        reasoned,
    ),
    "cascade": Provider(
        dict.fromkeys((None, "claude-opus-4-7", "gpt-5"), NOTHING),
        {"CAS-03", "CAS-07"},
        spiced,
        beside_spiced,
        read_as="auto",
        setting={"tools": TOOLS},
    ),
}


class TargetCase(NamedTuple):
    """A target and one of its models."""

    target: str
    model: str | None

    @property
    def provider(self):
        return PROVIDERS[self.target]

    @property
    def shape(self):
        """The shape in which the body is read back."""
        return self.provider.read_as or TARGETS[self.target].shape

    @property
    def root(self):
        """The member of the body with its messages, if each block has its own place there."""
        described = TARGETS[self.target]
        return described.rules.key if described.shape else ""

    @property
    def named(self):
        return {} if self.model is None else {"model": self.model}

    @property
    def documents(self):
        required = {"messages": self.provider.histories} | {key: st.just(value) for key, value in self.named.items()}
        return st.fixed_dictionaries(required, optional=self.provider.beside)

    def __str__(self):
        return f"{self.target}-{self.model}"


TARGET_CASES = [TargetCase(target, model) for target, provider in PROVIDERS.items() for model in provider.models]
