"""The limits of media: the writers' table and the judges' agree, and an image over a limit is left out."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from reknit.pipeline import normalize
from reknit.pipeline.rules import _media as judged
from reknit.pipeline.targets.limits import CLAUDE, CLAUDE_LONG, CONVERSE, GEMINI, NO_LIMITS, limits_of


def png(width: int, height: int) -> str:
    """A whole PNG of these sides; its pixels are not all there, which no header shows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def history(*sides: tuple[int, int]) -> list[object]:
    images = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(*each)}} for each in sides
    ]
    return [{"role": "user", "content": [{"type": "text", "text": "Look."}, *images]}]


@pytest.mark.parametrize(
    ("written", "known"), [(CLAUDE, judged.CLAUDE), (CONVERSE, judged.CONVERSE)], ids=["anthropic", "bedrock-converse"]
)
def test_writers_and_judges_state_equal_limits(written, known):
    shared = ("image_bytes", "side", "many", "many_side", "body_bytes")
    assert [getattr(written, name) for name in shared] == [getattr(known, name) for name in shared]
    assert written.media == known.media_of_some


def test_the_larger_limits_are_equal_too():
    assert CLAUDE_LONG.media == judged.CLAUDE.media
    assert GEMINI.body_bytes == judged.GEMINI.body_bytes


@pytest.mark.parametrize(
    ("target", "model", "media"),
    [
        ("anthropic", "claude-sonnet-4-5-20250929", 100),
        ("anthropic", "claude-sonnet-4-20250514", 100),
        ("anthropic", "claude-opus-4-6", 100),
        ("anthropic", "claude-opus-4-8", 600),
        ("anthropic", "claude-sonnet-5", 600),
        ("anthropic", None, 100),
        ("bedrock-converse", "us.anthropic.claude-sonnet-4-20250514-v1:0", 20),
        ("bedrock-converse", "us.anthropic.claude-sonnet-5", 100),
        ("openai-chat", "gpt-5", 500),
        ("gemini", "gemini-2.5-pro", 3000),
    ],
)
def test_the_number_of_media_depends_on_the_model(target, model, media):
    assert limits_of(target, model).media == media


@pytest.mark.parametrize("target", ["vllm", "claude-cli", "codex-cli", "copilot-cli", "gemini-cli", "cascade"])
def test_targets_without_stated_limits(target):
    assert limits_of(target, None) == NO_LIMITS


@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
def test_an_image_of_8100_pixels_becomes_a_line_of_text(target):
    done = normalize(history((8100, 20), (20, 8000)), to=target)
    assert [(fix.code, fix.detail) for fix in done.fixes] == [("image_stubbed", "8100 x 20 pixels, at most 8000")]
    assert b"[Image left out: 8100 x 20 pixels, at most 8000]" in done.body
    assert [found.rule for found in done.violations if found.severity != "soft"] == []


@pytest.mark.parametrize("target", ["gemini", "openai-chat", "openai-responses", "vllm"])
def test_other_targets_take_a_long_side(target):
    done = normalize(history((8100, 20)), to=target)
    assert done.fixes == []
    assert png(8100, 20).encode() in done.body
