"""The pages for the first hour that need no broker are run in an empty folder, with their output as they show it."""

import json
import socket

import pytest
from aiohttp import web
from gateway import Provider
from page_shell import PageShell, first_missing

ANSWER = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Here I am."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


async def accepted(_):
    return web.json_response(ANSWER)


@pytest.mark.parametrize("page", ["start/library.md", "tutorials/broken-session.md", "tutorials/items.md"])
async def test_a_page_runs_as_it_is(page, tmp_path):
    ran = await PageShell(tmp_path / "empty").run(page)
    assert ran.count("sh") > 3
    assert ran.count("text") > 2


@pytest.mark.parametrize("page", ["concepts/history.md", "concepts/ledger.md"])
async def test_the_program_of_a_concept_prints_what_the_page_shows(page, tmp_path):
    assert await PageShell(tmp_path / "empty").run(page) == ["python", "text"]


@pytest.mark.parametrize("page", ["start/gateway.md", "tutorials/gateway.md"])
async def test_a_page_of_the_gateway_runs_in_front_of_a_provider_of_this_machine(page, tmp_path):
    provider, port = Provider(accepted), free_port()
    async with provider.running() as url:
        upstream = [{"name": "anthropic", "prefix": "/anthropic", "to": url}]
        shell = PageShell(
            tmp_path / "empty",
            {"127.0.0.1:8787": f"127.0.0.1:{port}", "9464": str(free_port()), "https://api.anthropic.com": url},
            {
                "ANTHROPIC_API_KEY": "a key",
                "ANTHROPIC_BASE_URL": url,
                "REKNIT_METRICS_PORT": "0",
                **(
                    {"REKNIT_SERVE__LISTEN": f"127.0.0.1:{port}", "REKNIT_SERVE__UPSTREAM": json.dumps(upstream)}
                    if page.startswith("start/")
                    else {}
                ),
            },
        )
        ran = await shell.run(page)
    assert ran.count("text") > 2
    assert "tool_result" in provider.received[-1].body.decode()
    assert "a key" in str(provider.received[-1].headers)


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("a\nc\n", None),
        ("a…z\n", "a…z"),
        ("c\na\n", "a"),
        ("b…2\nc\n", None),
        ("b.1\n", "b.1"),
    ],
)
def test_a_line_that_was_not_written_in_this_order_is_found(shown, missing):
    assert first_missing(shown, "a\nb 12\nc\n") == missing
