"""From a refusal to one narrower request: the cases of reports, errors in every envelope, and what is never healed."""

import json
from pathlib import Path

import pytest
from build import answered, called, image, png, said, user
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from mock_provider.values import Mint

import reknit
from reknit.pipeline.cli import main
from reknit.pipeline.errors import InputError
from reknit.pipeline.healing.body import EVERY
from reknit.pipeline.healing.errors import read_error
from reknit.pipeline.healing.single import Healed, NotHealed, heal, try_healing
from reknit.pipeline.healing.table import HEALINGS, row_for
from reknit.pipeline.validation import validate

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "refused_requests.jsonl").read_text("utf-8").splitlines()
]
# The repair needs the session's history, or the requests that were accepted before.
NEED_A_SESSION = {
    "rsp-compaction-blob",
    "rsp-previous-not-found",
    "rsp-previous-zdr",
    "rsp-previous-invalid-words-only",
    "gem-cache-403",
    "gem-cache-vertex-expired",
}
BY_NAME = {case["name"]: case for case in CASES}


def tried(case, **changes):
    given = {**case, **changes}
    return try_healing(given["request"], given["target"], status=given["status"], error=given["error"], attempt=2)


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if case["mend"] != "none"])
def test_a_reported_refusal_heals_as_stated(name):
    case = BY_NAME[name]
    done = tried(case)
    if name in NEED_A_SESSION:
        assert isinstance(done, NotHealed)
        return
    assert isinstance(done, Healed)
    text = json.dumps(json.loads(done.body), ensure_ascii=False)
    assert [words for words in case["gone"] if words in text] == []
    assert [words for words in case["kept"] if words not in text] == []
    assert {fix.target for fix in done.fixes} <= {case["target"], ""}
    # The same sentence for the healed request heals more of it, or nothing. It never comes back to a request before.
    seen = [json.dumps(case["request"], sort_keys=True)]
    while isinstance(done, Healed):
        assert json.dumps(json.loads(done.body), sort_keys=True) not in seen
        seen.append(json.dumps(json.loads(done.body), sort_keys=True))
        done = tried(case, request=json.loads(done.body))
    assert len(seen) <= 4


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if case["mend"] == "none"])
def test_keys_quotas_lengths_and_policies_are_never_healed(name):
    done = tried(BY_NAME[name])
    assert isinstance(done, NotHealed)
    assert done.reason in {"unknown", "no_change"}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["name"] not in NEED_A_SESSION], ids=lambda c: c["name"]
)
def test_a_healed_request_breaks_no_rule_that_the_refused_one_kept(case):
    done = tried(case)
    if isinstance(done, Healed):
        rules = [
            {each.rule for each in validate(body, case["target"]) if each.severity == "hard"}
            for body in (done.body, json.dumps(case["request"]).encode())
        ]
        assert rules[0] <= rules[1]


# Errors.

SENTENCE = "messages.1.content.0: Invalid `signature` in `thinking` block"
PLAIN = {"type": "error", "error": {"type": "invalid_request_error", "message": SENTENCE}}


@pytest.mark.parametrize(
    "error",
    [
        PLAIN,
        json.dumps(PLAIN),
        json.dumps(PLAIN).encode(),
        {"error": PLAIN["error"]},
        {"error": {"code": 400, "message": json.dumps(PLAIN), "status": "INVALID_ARGUMENT"}},
        {"message": f"The model returned the following errors: {SENTENCE}"},
        {"message": f"Validation error: The model returned the following errors: {SENTENCE}"},
        {"message": f"The model returned the following errors: {json.dumps(PLAIN)}"},
        {
            "error": {
                "message": f"litellm.BadRequestError: AnthropicException - {json.dumps(PLAIN)}. Received Model {{x}}"
            }
        },
        {"error": {"message": "Provider returned error", "metadata": {"raw": json.dumps(PLAIN)}}},
        {"error": {"message": f"CAPIError: 400 {SENTENCE} (request_id: 1F:2)", "code": ""}},
        {"object": "error", "message": SENTENCE, "type": "BadRequestError", "param": None, "code": 400},
        {"type": "response.failed", "response": {"status": "failed", "error": {"message": SENTENCE, "code": None}}},
        SENTENCE,
        [{"error": {"code": 400, "message": json.dumps(PLAIN), "status": "INVALID_ARGUMENT"}}],
        {"error": {"message": "Provider returned error", "metadata": {"raw": PLAIN}}},
        {"success": False, "errors": [{"code": 7003, "message": SENTENCE}]},
        {"error": SENTENCE},
        {"error": json.dumps(PLAIN)},
        {"detail": PLAIN},
        {"detail": json.dumps(PLAIN)},
        {"statusCode": 400, "body": json.dumps(PLAIN)},
        {"error": {"message": PLAIN}},
        {"error": {"message": "The request failed", "upstream": PLAIN}},
        {"message": SENTENCE, "error": "Bad Request", "statusCode": 400},
        f"Error code: 400 - {PLAIN!r}",
        {"error": {"message": f"litellm.BadRequestError: VertexAIException - b'{json.dumps(PLAIN)}'. Received"}},
        f"400 {json.dumps(PLAIN)}",
        f"API Error: 400 {json.dumps(PLAIN)} · run /rewind",
        f"unexpected status 400 Bad Request: {json.dumps(PLAIN)}",
        f"unexpected status 400 Bad Request: {SENTENCE}",
        f"HTTP 400: {SENTENCE}",
        f"400 {SENTENCE}",
        f"anthropic error: {SENTENCE}",
        f"{SENTENCE} (request id: 20260801)",
        f"An error occurred (ValidationException) when calling the Converse operation: {SENTENCE}",
        f"{SENTENCE} (Service: BedrockRuntime, Status Code: 400, Request ID: 1-2)",
        json.dumps(PLAIN).encode() + b"\xff\xfe",
        b"\xef\xbb\xbf" + json.dumps(PLAIN).encode(),
        json.dumps(PLAIN)[:-1] + ', "echo": "' + "}" * 100_000,
        json.dumps(PLAIN) + "}" * 100_000,
    ],
)
def test_the_sentence_is_found_in_every_envelope(error):
    assert read_error(400, error).sentence == SENTENCE


@pytest.mark.parametrize(
    "error",
    [
        b"",
        b"\xff\xfe",
        "<html>502</html>",
        "[]",
        "null",
        "1",
        b"{" * 100_000,
        {},
        {"error": 1},
        {"error": {"message": 1}},
        {"errors": []},
        [],
        [1],
        "{'error': " * 5_000,
        "data: {\n" * 100_000,
        {"input": {"error": {"message": "`temperature` is deprecated for this model."}}},
    ],
)
def test_an_answer_without_a_sentence_heals_nothing(error):
    done = try_healing(BY_NAME["ant-param-temperature"]["request"], "anthropic", status=400, error=error)
    assert isinstance(done, NotHealed)
    assert done.reason == "unknown"


def test_the_last_error_of_a_stream_counts():
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": '{"error": {"message": "no"}}'}}
    failed = {"type": "response.failed", "response": {"error": {"code": "x", "message": SENTENCE}}}
    for last in (PLAIN, failed):
        text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in (delta, last))
        assert read_error(400, text).sentence == SENTENCE


def test_errors_within_errors_are_opened_to_a_limit():
    error = SENTENCE
    for _ in range(12):
        error = json.dumps({"error": {"message": error}})
    assert isinstance(try_healing({"messages": []}, "anthropic", status=400, error=error), NotHealed)


# Requests.


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_no_request_is_refused(body):
    with pytest.raises(InputError):
        heal(body, "anthropic", error=PLAIN)


def test_a_target_that_takes_a_text_is_refused():
    with pytest.raises(InputError, match="takes a text"):
        heal(b"{}", "codex-cli", error=PLAIN)


def thought(signature, text="hm"):
    return {"type": "thinking", "thinking": text, "signature": signature}


def test_only_the_named_block_goes_and_the_body_is_valid_json_with_its_numbers():
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "temperature": 1.0,
        "messages": [
            user("hi"),
            {"role": "assistant", "content": [thought("EpwBAAAA"), {"type": "text", "text": "a"}]},
            user("b"),
            {"role": "assistant", "content": [thought("EpwBBBBB"), {"type": "text", "text": "c"}]},
            user("12345678901234567890"),
        ],
    }
    done = heal(body, "anthropic", error=PLAIN)
    left = json.loads(done.body)
    assert left["messages"][1]["content"] == [{"type": "text", "text": "a"}]
    assert left["messages"][2:] == body["messages"][2:]
    assert {name: left[name] for name in ("model", "max_tokens", "temperature")} == {
        name: body[name] for name in ("model", "max_tokens", "temperature")
    }
    assert [(fix.code, fix.path, fix.lossless) for fix in done.fixes] == [
        ("healed_thinking_signature", "messages.1.content.0", False)
    ]


def test_a_turn_of_nothing_but_the_refused_block_is_repaired_like_any_history():
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [user("hi"), {"role": "assistant", "content": [thought("EpwBAAAA")]}, user("b")],
    }
    done = heal(body, "anthropic", error=PLAIN)
    assert [each for each in validate(done.body, "anthropic") if each.severity == "hard"] == []
    assert "EpwBAAAA" not in done.body.decode()


@pytest.mark.parametrize(
    "place",
    [
        "messages.3.content.0: ",
        "messages.3.content.0.thinking: ",
        "messages.3.content.0.thinking.signature: ",
        "messages[3].content[0]: ",
        "messages.9.content.9: ",
        "",
    ],
)
@pytest.mark.parametrize("quote", ["`", "'", '"', ""])
def test_a_signature_is_found_in_other_notations_and_without_a_place(place, quote):
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [
            user("hi"),
            {"role": "assistant", "content": [thought("EpwBAAAA"), {"type": "text", "text": "a"}]},
            user("b"),
            {"role": "assistant", "content": [thought("EpwBBBBB"), {"type": "text", "text": "c"}]},
            user("d"),
        ],
    }
    done = heal(body, error=f"{place}Invalid {quote}signature{quote} in {quote}thinking{quote} block")
    assert [name in done.body.decode() for name in ("EpwBAAAA", "EpwBBBBB")] == [place != "", False]


@pytest.mark.parametrize(
    ("sentence", "left_out"),
    [
        ("`top_k` must be unset when thinking is enabled. Please consult our documentation", "top_k"),
        ("top_p must be unset when thinking is enabled.", "top_p"),
        ("`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.", "top_p"),
        ("`top_p` and `temperature` cannot both be specified for this model. Please use only one.", "top_p"),
        ("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.", "temperature"),
    ],
)
def test_a_parameter_that_thinking_excludes_is_left_out(sentence, left_out):
    params = {"top_k": 5, "top_p": 0.9, "temperature": 0.5}
    body = {"model": "claude-sonnet-4-0", "max_tokens": 9000, "messages": [user("hi")], **params}
    done = json.loads(heal(body, error={"message": f"The model returned the following errors: {sentence}"}).body)
    assert {name for name in params if name not in done} == {left_out}


def test_a_call_stays_when_its_reasoning_goes():
    body = {
        "model": "claude-opus-4-7",
        "max_tokens": 9,
        "messages": [user("hi"), called("a"), answered("a"), said("x"), user("go on")],
    }
    body["messages"][1]["content"].insert(0, thought("EpwBAAAA"))
    done = heal(body, "anthropic", error=PLAIN)
    assert '"tool_use"' in done.body.decode()


def test_a_sentence_about_something_else_changes_nothing():
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [user("hi")]}
    done = try_healing(body, "anthropic", status=400, error=PLAIN)
    assert (done.reason, done.sentence) == ("no_change", SENTENCE)


def test_what_may_pass_by_itself_is_healed_only_at_the_second_refusal():
    case = BY_NAME["rsp-image-download"]
    first = try_healing(case["request"], case["target"], status=400, error=case["error"])
    assert (first.reason, isinstance(tried(case), Healed)) == ("retry", True)


def test_the_public_function_gives_the_body_and_the_fixes_or_none():
    case = BY_NAME["ant-param-temperature"]
    done = reknit.heal(json.dumps(case["request"]).encode(), target="anthropic", status=400, error=case["error"])
    assert "temperature" not in json.loads(done.body)
    assert [fix.code for fix in done.fixes] == ["healed_deprecated"]
    assert reknit.heal(case["request"], status=400, error="another sentence") is None


@pytest.mark.parametrize(("model", "left"), [("claude-fable-5-1", 1), ("claude-opus-4-7", 2)])
def test_reasoning_after_a_change_goes_where_it_is_bound_to_its_prefix(model, left):
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/gone.png"}}
    body = {
        "model": model,
        "max_tokens": 9,
        "messages": [
            user("hi"),
            {"role": "assistant", "content": [thought("EpwBAAAA"), {"type": "text", "text": "a"}]},
            {"role": "user", "content": [picture, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [thought("EpwBBBBB"), {"type": "text", "text": "c"}]},
            user("d"),
        ],
    }
    error = "Unable to download the file. Please verify the URL and try again."
    done = heal({name: value for name, value in body.items() if name != "model"}, error=error, model=model)
    assert done.body.decode().count('"thinking":"hm"') == left
    assert heal(body, error=error).body.decode().count('"thinking":"hm"') == left


def sentence_of(target, words):
    error = {"message": words} if target == "bedrock-converse" else {"error": {"message": words}}
    return {"target": target, "error": error}


def test_media_of_results_follow_them_where_a_result_must_be_a_string():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    calls = [
        {"id": name, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for name in ("call_1", "call_2")
    ]
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a"}, picture]},
            {"role": "tool", "tool_call_id": "call_2", "content": "b"},
            {"role": "assistant", "content": "Seen."},
            {"role": "user", "content": "Good."},
        ],
    }
    done = heal(body, **sentence_of("openai-chat", "tool message content must be a string"))
    messages = json.loads(done.body)["messages"]
    assert [each["content"] for each in messages] == ["Look.", None, "a", "b", [picture], "Seen.", "Good."]
    assert [(fix.code, fix.lossless) for fix in done.fixes] == [("healed_tool_text", True)]


def test_thinking_is_left_out_where_converse_has_it():
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2048, "block_binding": {}}, "top_k": 5}
    body = {
        "inferenceConfig": {"maxTokens": 2048},
        "additionalModelRequestFields": thinking,
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
    }

    def healed(words):
        done = heal(body, **sentence_of("bedrock-converse", words), model="anthropic.claude-sonnet-4")
        return json.loads(done.body)["additionalModelRequestFields"], [fix.path for fix in done.fixes]

    place = "additionalModelRequestFields.thinking"
    assert healed("Thinking may not be enabled when tool_choice forces tool use") == ({"top_k": 5}, [place])
    left, paths = healed("`max_tokens` must be greater than `thinking.budget_tokens`.")
    assert (left["thinking"]["budget_tokens"], paths) == (1024, [f"{place}.budget_tokens"])
    left, paths = healed("thinking.adaptive.block_binding: Extra inputs are not permitted")
    assert ("block_binding" in left["thinking"], paths) == (False, [f"{place}.block_binding"])


def test_a_parameter_with_one_value_is_left_out():
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "top_p": 1}
    words = sentence_of("openai-chat", "invalid temperature: only 1 is allowed for this model")
    assert json.loads(heal(body, **words).body) == {"messages": body["messages"], "top_p": 1}


def test_a_forced_tool_is_no_longer_forced_where_the_model_thinks():
    body = {"messages": [{"role": "user", "content": "hi"}], "tool_choice": "required"}
    words = sentence_of("openai-chat", "Thinking mode does not support this tool_choice")
    assert json.loads(heal(body, **words).body)["tool_choice"] == "auto"
    assert heal({**body, "tool_choice": "auto"}, **words) is None


@pytest.mark.parametrize(
    ("sides", "words", "left"),
    [
        ((9000, 100, 9000), "At least one of the image dimensions exceed max allowed size: 8000 pixels", [100]),
        (
            (2500, 1500, 2500),
            "At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels",
            [1500],
        ),
        ((2500, 1500, 2500), "The file format is invalid or unsupported", [1500]),
        ((2500, 1500, 2600), "The file format is invalid or unsupported", [1500, 2600]),
        ((10, 20, 30), "image exceeds 5 MB maximum: 48 bytes > 47 bytes", []),
        ((10, 20, 30), "image exceeds 5 MB maximum: 49 bytes > 48 bytes", [20, 30]),
    ],
)
@pytest.mark.parametrize("target", ["anthropic", "bedrock-converse"])
def test_all_media_beyond_the_stated_limit_go_in_one_step(target, sides, words, left):
    sources = {side: png(side, 1) for side in sides}
    if target == "anthropic":
        blocks = [image(sources[side]) for side in sides]
        path = "messages.0.content.0.image.source.base64.data"
    else:
        blocks = [{"image": {"format": "png", "source": {"bytes": sources[side]}}} for side in sides]
        path = "messages.0.content.0.image.source.base64"
    body = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": blocks}]}
    done = heal(body, **sentence_of(target, f"{path}: {words}")).body.decode()
    assert [side for side in sides if sources[side] in done] == left


def test_a_picture_is_found_by_its_host():
    pictures = [{"type": "image_url", "image_url": {"url": f"https://{host}.example/p.png"}} for host in ("a", "b")]
    body = {"messages": [{"role": "user", "content": pictures}]}
    words = "Failed to download image from a.example. Image size exceeds the limit."
    content = json.loads(heal(body, **sentence_of("openai-chat", words)).body)["messages"][0]["content"]
    assert ([part["type"] for part in content], content[1]) == (["text", "image_url"], pictures[1])


SIGNED = [Mint("seed").claude_signature("direct", number) for number in range(2)]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (SIGNED[0][:-1], SIGNED[1][:-2], 0),  # both are cut
        (SIGNED[0][:-1], SIGNED[1], 1),
        (SIGNED[0], SIGNED[0], 0),  # the same one again
        (SIGNED[0], SIGNED[1], 1),
        ("0123456789abcdef01234567", "89abcdef0123456789abcdef", 0),
    ],
)
def test_what_is_invalid_for_the_same_reason_goes_in_the_same_step(first, second, left):
    messages = [user("hi")]
    for signature in (first, second):
        messages += [{"role": "assistant", "content": [thought(signature), {"type": "text", "text": "a"}]}, user("b")]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}
    assert heal(body, error=PLAIN).body.decode().count('"thinking":"hm"') == left


@pytest.mark.parametrize("case", [case for case in CASES if case["mend"] != "none"], ids=lambda c: c["name"])
def test_a_cut_answer_is_read_by_its_words(case):
    whole = json.dumps(case["error"])
    sentence = read_error(case["status"], whole).sentence
    once = json.dumps(sentence)[1:-1]
    end = max(whole.find(words) + len(words) for words in (once, json.dumps(once)[1:-1]) if words in whole)
    for cut in range(end + 3, len(whole)):
        assert read_error(case["status"], whole[:cut]).sentence == sentence


# The table.


@pytest.mark.parametrize(
    ("target", "words", "row"),
    [
        ("anthropic", "messages.0.content.1.image.source.base64: Could not process image", "image_at_place"),
        (
            "anthropic",
            "messages.1.content.1: Invalid `encrypted_content` in `web_search_result` block",
            "search_result",
        ),
        (
            "anthropic",
            "messages.1.content.1: invalid encrypted_stdout in encrypted_code_execution_result block",
            "search_result",
        ),
        ("openai-responses", "Expected container_id: cntr_68", "container_expired"),
        ("moonshot", "invalid temperature: only 1 is allowed for this model", "one_value"),
        ("openai-chat", "invalid temperature: only 0.6 is allowed for this model", "one_value"),
        (
            "openai-responses",
            "The `reasoning_text` in the thinking mode must be passed back to the API.",
            "deepseek_reasoning",
        ),
        ("anthropic", 'tool_choice: type "tool" and "any" are not supported for this model.', None),
        ("gemini", "JSON mode is not enabled for models/x", None),
        (
            "openai-chat",
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            "json_word",
        ),
        (
            "openai-responses",
            "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'x'.",
            "json_word",
        ),
        (
            "deepseek",
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.",
            "json_word",
        ),
    ],
)
def test_a_sentence_has_its_row(target, words, row):
    found = row_for(target, read_error(400, {"error": {"message": words}}))
    assert (found and found[0].name) == row


def test_each_row_has_a_name_a_source_and_known_targets():
    names = [row.name for row in HEALINGS]
    assert len(names) == len(set(names))
    assert [row.name for row in HEALINGS if not row.source or not row.targets <= EVERY] == []
    assert {row.loss for row in HEALINGS} == {"", "reasoning", "media", "setting"}


words = st.text(st.characters(codec="utf-8"), max_size=40)


@given(
    target=st.sampled_from(sorted(EVERY)),
    case=st.sampled_from(CASES),
    body=st.dictionaries(
        st.sampled_from(["messages", "input", "contents", "thinking", "tools", "generationConfig"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | words,
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["role", "content", "parts", "type", "id", "source"]), inner, max_size=4
                )
            ),
            max_leaves=12,
        ),
    ),
)
def test_no_body_and_no_sentence_makes_it_fail(target, case, body):
    done = try_healing(body, target, status=case["status"], error=case["error"], attempt=2)
    assert isinstance(done, (Healed, NotHealed))


# The command.


def run(tmp_path, case, *options):
    (tmp_path / "body.json").write_text(json.dumps(case["request"]))
    (tmp_path / "error.json").write_text(json.dumps(case["error"]))
    arguments = ["heal", "--target", case["target"], "--status", str(case["status"]), *options]
    return CliRunner().invoke(main, [*arguments, "--error", str(tmp_path / "error.json"), str(tmp_path / "body.json")])


def test_the_command_prints_the_request_or_why_there_is_none(tmp_path):
    healed = run(tmp_path, BY_NAME["ant-param-temperature"])
    assert (healed.exit_code, healed.stderr) == (3, "healed: healed_deprecated x1\n")
    assert "temperature" not in json.loads(healed.stdout)

    unknown = run(tmp_path, BY_NAME["none-ant-credit"])
    assert (unknown.exit_code, unknown.stdout) == (4, "")
    assert unknown.stderr.splitlines()[1].startswith("not healed: no row of the table has this sentence")

    retry = run(tmp_path, BY_NAME["rsp-image-download"])
    assert (retry.exit_code, "--attempt 2" in retry.stderr) == (4, True)
    assert run(tmp_path, BY_NAME["rsp-image-download"], "--attempt", "2").exit_code == 3

    wrong = run(tmp_path, {**BY_NAME["none-ant-credit"], "request": []})
    assert (wrong.exit_code, "an object" in wrong.stderr) == (2, True)
