"""Inference against hidden formulas: never below the truth, and exact where it answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from wstrace.bounds.inference import Fit, NoFit, Observation, Space, infer

HIGH = {"num_computed_tokens": 32767, "num_scheduled_tokens": 4096, "num_reqs": 64}
SPACE = Space(ranges={name: (1, high) for name, high in HIGH.items()}, numbers={})
Hidden = Callable[[Mapping[str, int]], int]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _line(rng: random.Random, name: str, byte_like: bool) -> Hidden:
    a = rng.choice((1, 2, 3, 7, 64, 516, 1024, 4096)) * (256 if byte_like else 1)
    b = rng.choice((1, 1, 2, 8, 16, 32, 64, 128))
    c = rng.choice((0, 0, 1, 256, 4096, 394264576)) * 256
    return lambda x: a * _up(x[name], b) + c


def _hidden(rng: random.Random) -> Hidden:
    """A formula over one to three drivers, rising in each of them."""
    names = rng.sample(sorted(HIGH), 3)
    first = _line(rng, names[0], rng.random() < 0.5)
    second = _line(rng, names[1], rng.random() < 0.5)
    a, b = rng.choice((2, 48, 1024)), rng.choice((1, 16, 64))
    c, d = rng.choice((0, 1, 5120)), rng.choice((3, 512))
    kinds: list[Hidden] = [
        first,
        lambda x: first(x) + second(x),
        lambda x: max(first(x), second(x)),
        lambda x: max(first(x), 1 << 20),
        lambda x: a * _up(x[names[0]], b) * x[names[1]] + c,
        lambda x: 2 * _up(d * _up(x[names[0]], b), 256),
        lambda x: _up(d * x[names[0]] * x[names[1]], 256),
        lambda x: a * x[names[0]] + d * x[names[1]] + 16 * x[names[2]] + c,
    ]
    return rng.choice(kinds)


def _observe(rng: random.Random, hidden: Hidden, count: int) -> list[Observation]:
    """Requests anywhere within the limits, the limits themselves left out."""
    rows = [{n: rng.randint(1, h - 1) for n, h in HIGH.items()} for _ in range(count)]
    return [Observation((row,), hidden(row)) for row in rows]


def test_two_hundred_hidden_formulas() -> None:
    rng = random.Random(20261127)
    answers = {"exact": 0, "above": 0, "none": 0}
    for _ in range(200):
        hidden = _hidden(rng)
        found = infer(_observe(rng, hidden, rng.randint(5, 50)), SPACE)
        truth = hidden(HIGH)  # every hidden formula rises: the truth is at the far corner
        if isinstance(found, NoFit):
            answers["none"] += 1
            continue
        assert found.maximum >= truth
        answers["exact" if found.maximum == truth else "above"] += 1
    assert answers["exact"] >= 0.95 * (answers["exact"] + answers["above"])
    assert answers["exact"] >= 0.8 * 200, answers


def _rows(values: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [dict(zip(sorted(HIGH), row, strict=True)) for row in values]


VARIED = _rows([(100, 3, 70), (9000, 9, 300), (31, 33, 900), (20000, 60, 11), (777, 5, 4000)])


def _found(hidden: Hidden, rows: list[dict[str, int]] = VARIED) -> Fit | NoFit:
    return infer([Observation((row,), hidden(row)) for row in rows], SPACE)


def test_fewer_than_four_sizes_decide_nothing() -> None:
    assert isinstance(_found(lambda x: 512 * x["num_reqs"], VARIED[:3]), NoFit)
    assert isinstance(_found(lambda x: 512 * x["num_reqs"], VARIED[:4]), Fit)


def test_the_held_out_largest_must_be_hit() -> None:
    def bends(x: Mapping[str, int]) -> int:
        return 512 * x["num_reqs"] + (256 if x["num_reqs"] > 50 else 0)

    found = _found(bends)
    assert isinstance(found, NoFit)
    assert "no template" in found.why


def test_a_quantity_that_never_varied_may_hide_in_a_coefficient() -> None:
    rows = [{**row, "num_reqs": 1} for row in VARIED]
    found = _found(lambda x: 2048 * x["num_computed_tokens"] * x["num_reqs"], rows)
    assert isinstance(found, NoFit)
    assert "num_reqs" in found.why


def test_a_quantity_within_one_rounding_step_may_hide_in_the_constant() -> None:
    rows = [{**row, "num_reqs": 1 + i} for i, row in enumerate(VARIED)]

    def hidden(x: Mapping[str, int]) -> int:
        return 2048 * x["num_computed_tokens"] + 512 * _up(x["num_reqs"], 32)

    found = _found(hidden, rows)
    assert isinstance(found, NoFit)
    assert "num_reqs" in found.why


def test_of_several_drivers_that_fit_the_one_that_needs_most_counts() -> None:
    rows = [{**row, "num_scheduled_tokens": row["num_computed_tokens"]} for row in VARIED[2:]]
    rows += [{**row, "num_scheduled_tokens": row["num_computed_tokens"]} for row in VARIED[:2]]
    found = _found(lambda x: 256 * x["num_scheduled_tokens"], rows)
    assert isinstance(found, Fit)
    assert found.formula == "256 * num_computed_tokens"
    assert found.maximum == 256 * HIGH["num_computed_tokens"]
    assert "256 * num_scheduled_tokens" in found.others


def test_which_request_of_a_step_was_served_may_be_unknown() -> None:
    def size(cached: int) -> int:
        return 1024 * _up(cached, 16)

    alone = [Observation((row,), size(row["num_computed_tokens"])) for row in VARIED]
    two = ({**VARIED[0], "num_computed_tokens": 5}, {**VARIED[0], "num_computed_tokens": 900})
    found = infer([*alone, Observation(two, size(5)), Observation(two, size(900))], SPACE)
    assert isinstance(found, Fit)
    assert found.maximum == size(HIGH["num_computed_tokens"])
    wrong = infer([*alone, Observation(two, size(333))], SPACE)
    assert isinstance(wrong, NoFit)


@pytest.mark.parametrize("step", [48, 784])
def test_steps_of_the_config_are_tried(step: int) -> None:
    rows = [*VARIED, *_rows([(step * 3 + 1, 7, 5), (step * 5 - 1, 2, 9), (step * 8, 1, 44)])]
    space = Space(ranges=SPACE.ranges, numbers={"block_size": step})
    data = [Observation((row,), 300 * _up(row["num_computed_tokens"], step)) for row in rows]
    found = infer(data, space)
    assert isinstance(found, Fit)
    assert found.maximum == 300 * _up(HIGH["num_computed_tokens"], step)
