"""The claims of unpacked results as tests: one each, skipped where the run did not reach it.

    pytest tools/gpu/test_results.py --results a --results overhead

The traces are read with this tree's wstrace; `scripts/gpu keep` also judges them again.
"""

from __future__ import annotations

import pytest

from tools.gpu.claims import table_of
from tools.gpu.table import Claim


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each claim of each result."""
    folders = metafunc.config.getoption("--results", default=[])
    claims = [claim for folder in folders for claim in table_of(folder)[0]]
    names = [f"{claim.scenario}: {claim.claim}" for claim in claims]
    metafunc.parametrize("claim", claims, ids=names)


def test_claim(claim: Claim) -> None:
    if claim.ok is None:
        pytest.skip(claim.found)
    assert claim.ok, f"expected {claim.expected}, found {claim.found}"
