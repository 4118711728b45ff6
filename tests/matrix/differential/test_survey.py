"""The survey's gate: how many of a release's call sites are proved, the rules held by a run."""

from __future__ import annotations

import pytest

from tests.matrix.wheels import UnavailableError, python_files
from tools.bounds_survey import FORMULAS, PROVED, measured

pytestmark = pytest.mark.matrix
LOWER = {"0.20.2": {"formula": 0.83}}
"""Releases that have less than what --check asks, and what they have (docs/formulas.md)."""


@pytest.mark.parametrize(
    "version",
    [
        "0.22.1",
        *(
            pytest.param(version, marks=pytest.mark.slow)
            for version in ("0.20.2", "0.28.0", "0.30.0", "0.33.0")
        ),
    ],
)
def test_most_sites_are_proved(version: str) -> None:
    try:
        sources = python_files(version)
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)
    shares, _ = measured(version, sources / "vllm")
    asked = {"formula": FORMULAS, "proved": PROVED} | LOWER.get(version, {})
    assert shares.formula >= asked["formula"]
    assert shares.proved >= asked["proved"]
    assert all(reason for _, reason in shares.open_sites)
