"""The playground: the result of `reknit normalize` for a pasted text, and the safety of the viewer against texts.

Each code has a page with the catalogue's text, and every link to a code resolves.
"""

import html
import io
import json
import re

import pytest
from browser import ELSEWHERE, browsing, needs_browser
from browser import HOSTILE as HOSTILE_TEXTS
from empty_viewer import page_getter, serving_nothing, words

from reknit import pipeline
from reknit.pipeline.cli.offline import reported
from reknit.pipeline.errors import InputError
from reknit.pipeline.explain import FIX_EXAMPLES, explain, summaries
from reknit.pipeline.explain.page_text import as_text
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.viewer.outcome import Choice, outcome_of
from reknit.pipeline.viewer.playground import EXAMPLES, LARGEST, linked, path_of

LOST = EXAMPLES["lost-result"].text
HOSTILE = "</textarea></pre><script>alert('ran')</script><img src=x onerror=alert('ran')>\u202e\u200b"


def test_the_playground_shows_each_example_like_normalize():
    failures = {}
    for name in EXAMPLES:
        try:
            check_example(name)
        except AssertionError as error:
            failures[name] = str(error)
    assert failures == {}


def check_example(name):
    example, outcome = EXAMPLES[name], outcome_of(EXAMPLES[name].text, EXAMPLES[name].choice)
    choice = example.choice
    if outcome.wrong is not None:
        with pytest.raises(InputError) as found:
            pipeline.normalize(example.text, to=choice.target, source=choice.shape, policy=choice.policy)
        assert (outcome.wrong.code, outcome.wrong.path) == (found.value.code, found.value.path)
        return
    report = reported(pipeline.normalize(example.text, to=choice.target, source=choice.shape, policy=choice.policy))
    assert [mend.fix for mend in outcome.mends] == report.fixes
    assert list(outcome.violations) == report.violations
    shown, cut, more = ("" if outcome.request is None else outcome.request).partition("\n… ")
    if cut:  # the page shows the beginning of a long request
        assert (len(shown), more.endswith(" more characters")) == (60_000, True)
        assert "".join(bytes(report.request).decode().split()).startswith("".join(shown.split()))
    elif not isinstance(report.request, str | None):
        assert json.loads(outcome.request) == json.loads(bytes(report.request))
    else:
        assert outcome.request == report.request
    if name in FIX_EXAMPLES:
        assert name in outcome.codes
    linked = {violation.rule for violation in (*outcome.violations, *outcome.refused)} | outcome.codes.keys()
    assert linked <= {*FIXES, *RULES}


@pytest.mark.parametrize(
    ("text", "choice", "wrong"),
    [
        ('{"messages": [\n  {"role": "user",,}]}', {}, ("not_json", "", 2, 19, "")),
        ('{"messages": [{"role": 7}]}', {}, ("wrong_type", "messages.0.role", 0, 0, "7")),
        ('[{"role": "user", "content": "x"}]', {"target": "nobody"}, ("unknown_target", "", 0, 0, "")),
        ("[]", {"policy": {"tail": "wag"}}, ("policy", "policy.tail", 0, 0, "")),
        ("[]", {"policy": {"mend.result_moved": "perhaps"}}, ("policy", "policy.mend.result_moved", 0, 0, "")),
        ("[" * 2000, {}, ("nested_too_deeply", "messages.0", 0, 0, "")),
    ],
    ids=["a place in the text", "a place in the history", "target", "policy", "mend", "nesting"],
)
def test_an_error_is_shown_at_its_place(text, choice, wrong):
    found = outcome_of(text, Choice(**choice)).wrong
    assert (found.code, found.path, found.line, found.column, found.value) == wrong


def test_the_providers_refusal_of_the_original_text_is_shown():
    assert [violation.rule for violation in outcome_of(LOST, Choice()).refused] == ["ANT-07"]
    assert outcome_of(LOST, Choice("gemini")).refused == ()
    unnamed = outcome_of('{"messages": [{"role": "assistant", "content": "hi"}]}', Choice(model="claude-opus-4-6"))
    assert json.loads(unnamed.request)["model"] == "claude-opus-4-6"


def test_a_choice_is_an_address_and_an_address_a_choice():
    given = {"target": "gemini", "from": "anthropic", "model": " m ", "tail": "keep", "mend.x": "", "text": "secret"}
    choice = Choice.of(given)
    assert choice == Choice("gemini", "anthropic", "m", {"tail": "keep"})
    assert path_of(choice) == "/playground?target=gemini&from=anthropic&model=m&tail=keep"


async def test_a_form_without_scripts_gets_the_page_with_its_text_and_the_outcome():
    async with page_getter() as get:
        text = LOST.replace("Run the tests.", HOSTILE)
        status, page = await get("/playground", {"text": text, "target": "openai-chat", "missing_result": "drop"})
        assert status == 200
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        field = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
        assert html.unescape(field[1]) == text
        marked = re.findall(r'<span class="tag lossy">content lost</span> <a class="mono" href="([^"]+)"', page)
        assert marked == ["/explain/call_unanswered"]
        assert "Request for openai-chat" in words(page)
        assert "<option selected>drop</option>" in page


async def test_each_fix_is_shown_at_its_block_between_input_and_output():
    outcome = outcome_of(EXAMPLES["displaced-result"].text, Choice())
    (moved,) = [row for row in outcome.rows if row.marks]
    assert ([mark.code for mark in moved.marks], moved.left.path, moved.right) == (
        ["result_moved"],
        "messages.4.content.0",
        None,
    )
    assert [row.right.path for row in outcome.rows if row.how == "moved" and row.right] == ["messages.2.content.0"]
    long = json.dumps([{"role": "user", "content": str(number)} for number in range(250)])
    assert (len(outcome_of(long, Choice()).rows), outcome_of(long, Choice()).more_rows) == (200, 50)


async def test_a_script_gets_the_outcome_alone():
    async with page_getter() as get:
        status, part = await get("/playground", {"text": LOST, "target": "anthropic"}, part=True)
        assert status == 200
        assert "<html" not in part
        assert "<textarea" not in part
        assert "Sent mended, with 1 fix" in words(part)
        _, part = await get("/playground", {"text": "  ", "target": "anthropic"}, part=True)
        assert "Paste a history" in words(part)


async def test_a_file_is_read_in_place_of_the_text():
    async with page_getter() as get:
        status, page = await get("/playground", multipart(text="[]", file=LOST.encode(), target="anthropic"))
        assert status == 200
        assert "Sent mended, with 1 fix" in words(page)


async def test_an_overlong_text_is_rejected_before_it_is_read():
    async with page_getter() as get:
        long = json.dumps([{"role": "user", "content": "é" * (LARGEST // 2)}], ensure_ascii=False)
        assert len(long) < LARGEST
        _, part = await get("/playground", multipart(file=long.encode()), part=True)
        assert "the playground takes 2 MiB at most" in words(part)


async def test_an_example_and_a_choice_can_be_in_an_address():
    async with page_getter() as get:
        status, page = await get("/playground?example=rejected")
        assert status == 200
        assert "Rejected: nothing would be sent" in words(page)
        assert "<option selected>reject</option>" in page
        _, page = await get("/playground?example=rejected&tail=continue&target=gemini")
        assert "Request for gemini" in words(page)
        status, page = await get("/playground?example=nothing&target=<script>")
        assert status == 200
        assert "Paste a history" in words(page)
        assert "<script>" not in page.replace("<script src", "")


@needs_browser
async def test_typed_chosen_and_dropped_input_is_repaired_immediately_and_never_executed():
    hostile = json.dumps({"messages": [{"role": "user", "content": text} for text in (*HOSTILE_TEXTS, ELSEWHERE)]})
    async with serving_nothing() as url, browsing() as browser, browser.tab() as page:
        await page.go(f"{url}playground")
        await page.type("#text", LOST)
        await page.until(f"({OUTCOME}).includes('Sent mended, with 1 fix')")
        await page.ask(chosen("target", "gemini"))
        await page.until(f"({OUTCOME}).includes('Goes out') && ({LINK}).includes('target=gemini')")
        await page.ask(dropped(hostile))
        for text in HOSTILE_TEXTS:
            await page.until(f"({OUTCOME}).includes({json.dumps(text)})")
        assert await page.ask("document.querySelector('#text').value") == hostile
        did = page.did()
        assert (did.dialogs, did.messages, [url for url in did.requests if ":9/" in url]) == ([], [], [])
        assert "Run the tests." not in await page.ask("location.href")


OUTCOME = "document.querySelector('#outcome').innerText"
LINK = "document.querySelector('#outcome a[href^=\"/playground?\"]').href"


def chosen(name, value):
    field = f"document.querySelector('[name={name}]')"
    return f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))"


def dropped(text):
    return f"""(() => {{
        const files = new DataTransfer();
        files.items.add(new File([{json.dumps(text)}], "history.json"));
        const drop = new DragEvent("drop", {{dataTransfer: files, bubbles: true, cancelable: true}});
        document.querySelector("#text").dispatchEvent(drop);
    }})()"""


def multipart(file, **fields):
    from aiohttp import FormData

    form = FormData(fields)
    form.add_field("file", io.BytesIO(file), filename="history.json", content_type="application/json")
    return form


# The meaning of fixes and rules.


CODES = [code for codes in summaries().values() for code in codes]


async def test_every_fix_and_every_rule_has_a_page_with_the_text_of_explain():
    async with page_getter() as get:
        for code in CODES:
            status, page = await get(f"/explain/{code}")
            said = as_text(explain(code))
            assert status == 200, code
            missing = [
                fact.text for fact in (*said.facts, *said.example) if fact.text.removesuffix(":") not in words(page)
            ]
            assert missing == [], code
            unknown = set(re.findall(r'href="/explain/([^"?]+)"', page)) - set(CODES)
            assert unknown == set(), code


async def test_all_codes_are_in_one_list_that_words_filter():
    async with page_getter() as get:
        _, page = await get("/explain")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == CODES
        _, page = await get("/explain?q=OUT+of+scope+result_mov")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == []
        _, page = await get("/explain?q=RESULT_mov+Moved")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == ["result_moved"]
        _, page = await get("/explain?q=<script>nothing</script>")
        assert "<script>nothing" not in page
        assert "No fix and no rule has <script>nothing</script>" in words(page)


async def test_a_code_is_matched_leniently_and_an_unknown_one_names_its_neighbours():
    async with page_getter() as get:
        status, page = await get("/explain/ant-7")
        assert (status, "<code>ANT-07</code>" in page) == (200, True)
        status, page = await get("/explain/result_mooved")
        assert status == 404
        assert "did you mean result_moved" in words(page)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("breaks ANT-07 and size", 'breaks <a href="/explain/ANT-07">ANT-07</a> and size'),
        ("result_moved, then", '<a href="/explain/result_moved">result_moved</a>, then'),
        ("no_such_code <b>", "no_such_code &lt;b&gt;"),
    ],
)
def test_codes_in_a_text_are_links(text, expected):
    assert linked(text) == expected
