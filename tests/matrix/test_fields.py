"""Each field that the recorder reads of vLLM's objects stands where its row says."""

from __future__ import annotations

import pytest

from tests.matrix.conftest import chosen_versions
from tests.matrix.runs import parsed
from tests.matrix.wheels import UnavailableError, python_files
from tests.unit.recorder.fields_of_vllm import FIELDS

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("version", chosen_versions())
def test_each_field_stands_where_its_row_says(version: str) -> None:
    try:
        root = python_files(version) / "vllm"
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)
    held = [f for f in FIELDS if parsed(f.since) <= parsed(version) <= parsed(f.until)]
    assert {field.reader for field in held} == {field.reader for field in FIELDS}
    gone = [f"{f.place}: {name}" for f in held for name in f.missing(root)]
    assert gone == [], "renamed or moved: a further row here, a further name in vllm_state"
    early = [f for f in FIELDS if parsed(version) < parsed(f.since) and not f.missing(root)]
    assert early == [], "an earlier release has it: `since` is wrong"
