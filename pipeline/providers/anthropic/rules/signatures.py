"""Signatures that no Claude model makes, by their form.

Anthropic's own are base64 of nested fields. Each form here was reported or recorded as another issuer's; a signature of
any other form may be Claude's.
"""

from __future__ import annotations

import binascii
import re

# A message id of DeepSeek's (NousResearch/hermes-agent#21048), hexadecimal digits of GLM's and MiniMax's
# (can1357/oh-my-pi#12006, NousResearch/hermes-agent#75779), OpenAI's encrypted content, those that
# a gateway marks (router-for-me/CLIProxyAPI#3615), and Gemini's placeholders (router-for-me/CLIProxyAPI#570), also in
# base64.
_OTHERS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}"
    r"|(?:[0-9a-f][0-9a-f]){8,64}"
    r"|gAAAA.*|gemini#.*|gpt#.*"
    r"|skip_thought_signature_validator|context_engineering_is_the_way_to_go"
    r"|c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=?|Y29udGV4dF9lbmdpbmVlcmluZ19pc190aGVfd2F5X3RvX2dv",
    re.DOTALL,
)
# The beginning of Gemini's (recorded 513 times): a field, or one in another, whose length has one to three bytes and
# whose content begins with 1; the newest begin with the content.
_GEMINI = re.compile(rb"(?:\x12[\x80-\xff]{0,2}[\x00-\x7f])?\x0a[\x80-\xff]{0,2}[\x00-\x7f]\x01|\x01\x8f", re.DOTALL)
_BEGINNING = 16
_FIRST = ("E", "C", "A")  # the first characters of base64 of the bytes 0x12, 0x0a and 0x01
_IN_BASE64 = re.compile(r"[A-Za-z0-9+/]*").fullmatch


def is_of_another_issuer(signature: str) -> bool:
    """Return True if a signature is of a form that another issuer makes and Claude does not."""
    if _OTHERS.fullmatch(signature):
        return True
    if not signature.startswith(_FIRST):
        return False
    head = signature[:_BEGINNING].replace("-", "+").replace("_", "/")
    if len(head) < _BEGINNING or not _IN_BASE64(head):
        return False
    return _GEMINI.match(binascii.a2b_base64(head)) is not None


def is_of_vertex(signature: str) -> bool:
    """Return True if Claude made it on Vertex, whose signatures have a prefix (openclaw/openclaw#110080)."""
    return signature.startswith("claude#")
