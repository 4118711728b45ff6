"""Each number of wstrace/vllm stands where its row says, in each release."""

from __future__ import annotations

import pytest

from tests.matrix.conftest import chosen_versions
from tests.matrix.vllm_config import moved, newest_place
from tests.matrix.wheels import UnavailableError, sources
from wstrace.versions import CHECKED_WITH
from wstrace.vllm.limits import NUMBERS

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("version", chosen_versions())
def test_each_row_names_where_this_release_has_the_number(version: str) -> None:
    try:
        folder = sources(version)
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)
    told = [moved(row, folder, version) for row in NUMBERS.values() if row.config or row.env]
    assert len(told) > 25
    lines = [line for line in told if line]
    assert not lines, "\n".join(lines)


def test_the_newest_release_has_the_first_path_of_each_row() -> None:
    """A renamed number keeps its older path, which vLLM may go on having as an alias."""
    try:
        folder = sources(CHECKED_WITH)
    except UnavailableError as error:
        pytest.fail(f"vLLM {CHECKED_WITH} cannot be had: {error}", pytrace=False)
    told = [newest_place(row, folder, CHECKED_WITH) for row in NUMBERS.values()]
    lines = [line for line in told if line]
    assert not lines, "\n".join(lines)
