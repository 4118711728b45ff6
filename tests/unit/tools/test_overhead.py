"""What the bench of the overhead says of its targets."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tools.bench.overhead import half, steps_met


def test_each_row_in_c_says_whether_the_cost_is_halved() -> None:
    assert half("1 buffer", 0.5) == "0.50 (1 buffer), target 0.5: met"
    assert half("2 slots", 0.504) == "0.50 (2 slots), target 0.5: missed"


def test_each_row_of_steps_says_whether_it_is_under_its_target() -> None:
    assert steps_met((1, 8, 64), (19.9, 20.0, 26.0)) == (
        "Target under 20 us, by requests in the step: met (1), missed (8), missed (64)."
    )
