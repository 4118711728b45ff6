"""Inference against hidden formulas: never below the truth, and exact where it answers.

Where requests saw only a part of the limits, it may answer nothing, but nothing too small.
"""

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


def _observe(
    rng: random.Random, hidden: Hidden, count: int, percent: int = 100
) -> list[Observation]:
    """Requests anywhere in the lowest `percent` of the limits, the limits left out."""
    highest = {n: max(1, (h - 1) * percent // 100) for n, h in HIGH.items()}
    rows = [{n: rng.randint(1, h) for n, h in highest.items()} for _ in range(count)]
    return [Observation((row,), hidden(row)) for row in rows]


def _hidden_sum(rng: random.Random) -> Hidden:
    """A sum of the template class, where any quantity may be rounded: no maximum."""
    x, y, z = rng.sample(sorted(HIGH), 3)
    a, c = rng.choice((1, 2, 16, 48, 1024)), rng.choice((0, 0, 1, 256, 5120))
    b, d = rng.choice((3, 16, 48, 64, 512)), rng.choice((1, 3, 256, 512))
    step = rng.choice((1, 2, 4, 8, 16, 16, 32, 64, 256, 1024, 4096))
    kinds: list[Hidden] = [
        lambda v: a * _up(v[x], step) + c,
        lambda v: a * d * -(-v[x] // step) + c,
        lambda v: a * v[x] * _up(v[y], step) + c,
        lambda v: a * d * v[x] * -(-v[y] // step) + c,
        lambda v: a * v[x] + d * _up(v[y], step) + c,
        lambda v: a * v[x] * _up(v[y], step) + b * v[x] + c,
        lambda v: a * v[x] * _up(v[y], step) + b * _up(v[y], step) + c,
        lambda v: a * v[x] + b * v[y] + d * v[z] + c,
        lambda v: 2 * _up(b * _up(v[x], step), 256),
        lambda v: _up(b * v[x] * _up(v[y], step), 256),
        lambda v: 256 * _up(v[x], step) * v[y],
    ]
    return rng.choice(kinds)


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_hidden_formulas_are_found(count: int) -> None:
    rng = random.Random(20261127)
    answers = {"exact": 0, "above": 0, "none": 0}
    for _ in range(count):
        hidden = _hidden(rng)
        found = infer(_observe(rng, hidden, rng.randint(5, 50)), SPACE)
        truth = hidden(HIGH)  # every hidden formula rises: the truth is at the far corner
        if isinstance(found, NoFit):
            answers["none"] += 1
            continue
        assert found.maximum >= truth
        answers["exact" if found.maximum == truth else "above"] += 1
    assert answers["exact"] >= 0.95 * (answers["exact"] + answers["above"])
    assert answers["exact"] >= 0.8 * count, answers


@pytest.mark.parametrize("percent", [3, 10, 30, 100])
def test_a_part_of_the_limits_never_gives_too_small_a_bound(percent: int) -> None:
    rng = random.Random(percent)
    fitted = 0
    for _ in range(50):
        hidden = _hidden_sum(rng)
        found = infer(_observe(rng, hidden, rng.randint(5, 50), percent), SPACE)
        if isinstance(found, Fit):
            fitted += 1
            assert found.maximum >= hidden(HIGH), found
    assert fitted or percent < 30


def test_a_factor_within_one_rounding_step_is_not_a_coefficient() -> None:
    rng = random.Random(7)
    rows = [{n: rng.randint(1, h) for n, h in HIGH.items()} for _ in range(50)]
    data = [{**row, "num_reqs": 1 + row["num_reqs"] % 12} for row in rows]
    found = _found(lambda x: 256 * _up(x["num_reqs"], 16) * x["num_scheduled_tokens"], data)
    assert isinstance(found, NoFit)
    assert "num_reqs stayed within 1..12" in found.why
    assert "(record a step with more than 32)" in found.why
    wider = [*data, {**data[0], "num_reqs": 33}, {**data[1], "num_reqs": 17}]
    exact = _found(lambda x: 256 * _up(x["num_reqs"], 16) * x["num_scheduled_tokens"], wider)
    assert isinstance(exact, Fit)
    assert exact.maximum == 256 * 64 * 4096


def test_a_quantity_that_was_always_0_may_add_to_the_size() -> None:
    rng = random.Random(7)
    rows = [{**{n: rng.randint(1, h) for n, h in HIGH.items()}, "num_decodes": 0}]
    rows += [
        {**{n: rng.randint(1, h) for n, h in HIGH.items()}, "num_decodes": 0} for _ in HIGH
    ]
    rows += [{**rows[0], "num_scheduled_tokens": 4000, "num_reqs": 33}]
    space = Space(ranges={**SPACE.ranges, "num_decodes": (0, 64)}, numbers={})
    data = [Observation((row,), 512 * row["num_scheduled_tokens"]) for row in rows]
    found = infer(data, space)
    assert isinstance(found, NoFit)
    assert "num_decodes was always 0" in found.why


def test_a_limit_inside_the_step_that_was_seen_hides_nothing() -> None:
    space = Space(ranges={**SPACE.ranges, "num_reqs": (40, 48)}, numbers={})
    rng = random.Random(7)
    rows = [{n: rng.randint(1, h) for n, h in HIGH.items()} for _ in range(50)]
    rows = [{**row, "num_reqs": 40 + row["num_reqs"] % 8} for row in rows]
    data = [Observation((r,), 3 * r["num_scheduled_tokens"]) for r in rows]
    found = infer(data, space)
    assert isinstance(found, Fit)
    assert found.maximum == 3 * 4096


def _rows(values: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    return [dict(zip(sorted(HIGH), row, strict=True)) for row in values]


VARIED = _rows([(100, 3, 70), (9000, 9, 300), (31, 33, 2900), (20000, 60, 11), (777, 5, 4000)])


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
