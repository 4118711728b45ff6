"""Inference against hidden formulas: never below the truth, and exact where it answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from wstrace.bounds.inference import NoFit, Observation, Space, infer

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
