"""The pages of fixes and rules: each code has one that says what the catalogue says, and every link to one leads on."""

import re

import pytest
from asking import asking, words

from pipeline.explain import explain, summaries
from pipeline.explain.telling import told
from pipeline.viewer.playground import linked

CODES = [code for codes in summaries().values() for code in codes]


async def test_every_fix_and_every_rule_has_a_page_that_says_what_explain_says():
    async with asking() as get:
        for code in CODES:
            status, page = await get(f"/explain/{code}")
            said = told(explain(code))
            assert status == 200, code
            missing = [
                fact.text for fact in (*said.facts, *said.example) if fact.text.removesuffix(":") not in words(page)
            ]
            assert missing == [], code
            unknown = set(re.findall(r'href="/explain/([^"?]+)"', page)) - set(CODES)
            assert unknown == set(), code


async def test_all_codes_stand_in_one_list_and_words_choose_among_them():
    async with asking() as get:
        _, page = await get("/explain")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == CODES
        _, page = await get("/explain?q=OUT+of+scope+result_mov")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == []
        _, page = await get("/explain?q=RESULT_mov+Moved")
        assert re.findall(r'<td class="mono"><a href="/explain/([^"]+)">', page) == ["result_moved"]
        _, page = await get("/explain?q=<script>nothing</script>")
        assert "<script>nothing" not in page
        assert "No fix and no rule has <script>nothing</script>" in words(page)


async def test_a_code_is_found_however_it_is_spelled_and_an_unknown_one_names_its_neighbours():
    async with asking() as get:
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
