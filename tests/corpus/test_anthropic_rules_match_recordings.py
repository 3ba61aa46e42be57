"""The rules against recorded traffic: what the provider took breaks no hard rule, what it refused breaks one."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from pipeline.rules import validate

CORPUS = Path(os.environ.get("REKNIT_CORPUS", Path(__file__).parents[2].parent / "shared" / "corpus"))
RECORDINGS = CORPUS / "anthropic.jsonl.gz"

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not RECORDINGS.exists(), reason=f"no recorded traffic at {CORPUS} (set REKNIT_CORPUS)"),
]

# Taken with status 200, and broken all the same.
NOT_REALLY_TAKEN = {
    "anthropic_completion_tools_call_with_tool_result_stream_helper.yaml": (
        "the result's id differs from its call's in a cassette that was edited by hand"
    ),
}
# Refused for what the body does not show.
NOT_FORESEEABLE = {
    "test_text_document_url_input_no_force_download.yaml": "the file behind a URL is of another format",
    "test_multimodal_tool_return_matrix[direct-uploaded_file-image-anthropic].yaml": (
        "uploaded files need a beta header: ANT-31c, a warning"
    ),
    "test_multimodal_tool_return_matrix[tool_return_content-uploaded_file-document-anthropic].yaml": (
        "uploaded files need a beta header: ANT-31c, a warning"
    ),
}
# Refusals of other classes that a body shows as well.
FORESEEABLE_PARAMETERS = re.compile(
    r"temperature: |tools\.\d+\.custom\.input_schema\.type: |`max_tokens` must be greater"
)


def recordings():
    with gzip.open(RECORDINGS, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if isinstance(row["request"], dict)]


def judge(row):
    return validate(json.dumps(row["request"]))


def cassette(row) -> str:
    return re.sub(r"(@[0-9a-f]+)?#\d+$", "", row["source"]).rpartition("/")[2]


def is_refused_in_its_words(row) -> bool:
    return row["error_message"] in {found.message for found in judge(row) if found.severity == "hard"}


def test_what_was_taken_breaks_no_hard_rule():
    taken = [row for row in recordings() if row["status"] == 200]
    alarms = {
        (row["source"], violation.rule)
        for row in taken
        for violation in judge(row)
        if violation.severity != "soft" and cassette(row) not in NOT_REALLY_TAKEN
    }
    assert taken
    assert alarms == set()


def test_what_was_refused_for_its_structure_is_refused_in_the_same_words():
    refused = [row for row in recordings() if row.get("error_class") == "MESSAGE-STRUCTURE"]
    silent = {
        (row["source"], row["error_message"])
        for row in refused
        if not is_refused_in_its_words(row) and cassette(row) not in NOT_FORESEEABLE
    }
    assert refused
    assert silent == set()


def test_what_parameters_and_schemas_show_is_reported_in_the_same_words():
    silent = {
        (row["source"], row["error_message"])
        for row in recordings()
        if row["status"] == 400
        and FORESEEABLE_PARAMETERS.match(row["error_message"])
        and row["error_message"] not in {found.message for found in judge(row)}
    }
    assert silent == set()


def test_the_exceptions_are_still_needed():
    """An exception that no longer excuses anything would hide the next failure."""
    for row in recordings():
        if row["status"] == 200 and cassette(row) in NOT_REALLY_TAKEN:
            assert any(found.severity == "hard" for found in judge(row)), row["source"]
        if row.get("error_class") == "MESSAGE-STRUCTURE" and cassette(row) in NOT_FORESEEABLE:
            assert not is_refused_in_its_words(row), row["source"]
