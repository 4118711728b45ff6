"""The claims of scenario `overhead`: ratios with and without the recorder, and replays."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu.evidence import Evidence, MissingError
from tools.gpu.table import Claim, Outcome, claim, equal

TARGET: Final = 0.99
NOISE: Final = 0.01
RESAMPLES: Final = 4000
IN_FLIGHT: Final = 2  # steps that asynchronous scheduling may have begun and not ended
SIDES: Final = ("on", "off")
TIMED: Final = ("blocks", "first")
Row = tuple[str, Callable[[], Outcome]]


def overhead_claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """Rows for each mode that was started."""
    modes = [p.name for p in sorted(folder.iterdir()) if (p / "task.json").exists()]
    return [row for mode in modes for row in _mode(Evidence(folder / mode), setting)]


def _mode(ev: Evidence, setting: dict[str, Any]) -> list[Claim]:
    mode = ev.folder.name
    rows = _ratios(ev) + _hooks(ev, setting["load"]["pairs"]) + _step(ev)
    rows += _replay(ev) if mode == "graphs" else _recorded(ev)
    return [claim(f"overhead {mode}", text, check) for text, check in rows]


def _pairs(ev: Evidence, name: str) -> list[dict[str, list[float]]]:
    found: list[dict[str, list[float]]] = ev.json("result.json").get(name)
    if not found:
        raise MissingError(f"{name}: the time ended before a pair was taken")
    return found


def _ratios(ev: Evidence) -> list[Row]:
    """Of tokens per second in decode steps, and of the inverse of the time to first token."""

    def ratios(name: str, kind: str) -> list[float]:
        return [off / on for on, off in (pair[kind] for pair in _pairs(ev, name))]

    def speed(name: str, shown: Callable[[float], str]) -> Outcome:
        found = ratios(name, "pair")
        sides = ", ".join(f"{s} {shown(_median(ev, name, i))}" for i, s in enumerate(SIDES))
        told = [_told(found), f"medians: {sides}"]
        return f"at least {TARGET}", told, statistics.median(found) >= TARGET

    def control(name: str) -> Outcome:
        found = ratios(name, "control")
        near = abs(statistics.median(found) - 1) <= NOISE
        return f"1 within {NOISE}", _told(found), near

    def tokens(seconds: float) -> str:
        result = ev.json("result.json")
        return f"{result['batch'] * result['steps'] / seconds:,.0f} tokens/s"

    def first(seconds: float) -> str:
        return f"{seconds * 1e3:.2f} ms"

    rows: list[Row] = []
    for name, text, told in (
        ("blocks", "tokens/s of decode steps", tokens),
        ("first", "1/TTFT", first),
    ):
        rows += [
            (f"{text}, recorded over not recorded", partial(speed, name, told)),
            (f"{text}, hooks off on both sides", partial(control, name)),
        ]
    return rows


def _median(ev: Evidence, name: str, side: int) -> float:
    return statistics.median(pair["pair"][side] for pair in _pairs(ev, name))


def _hooks(ev: Evidence, least: int) -> list[Row]:
    def alternated() -> Outcome:
        counts = [len(_pairs(ev, name)) for name in TIMED]
        return f"at least {least} each", counts, min(counts) >= least

    return [("alternating pairs of decode steps, of first tokens", alternated)]


def _calls(ev: Evidence, side: int) -> int:
    return int(sum(pair["calls"][side] for name in TIMED for pair in _pairs(ev, name)))


def _step(ev: Evidence) -> list[Row]:
    """The hooks of a step alone, found cold: what the ratios above cannot resolve."""

    def share() -> Outcome:
        decode = ev.json("result.json")["replay"]
        hooks, step = statistics.median(decode["hooks_us"]), statistics.median(decode["step_s"])
        part = hooks / 1e6 / step
        told = f"{hooks:.1f} us of {step * 1e3:.2f} ms ({part:.2%})"
        return f"at most {1 - TARGET:.0%}", told, part <= 1 - TARGET

    return [("hooks of a decode step, of its time", share)]


def _recorded(ev: Evidence) -> list[Row]:
    """Eager only: with graphs, a model whose sites are all captured asks in no step."""

    def both() -> Outcome:
        on, off = _calls(ev, 0), _calls(ev, 1)
        return "more than 0, and 0", [on, off], on > 0 and off == 0

    return [("manager calls counted while the hooks were on, and off", both)]


def _replay(ev: Evidence) -> list[Row]:
    def found(name: str) -> int:
        return int(ev.json("result.json")["replay"][name])

    def replays() -> Outcome:
        least, seen = found("steps") - IN_FLIGHT, found("replays")
        return f"at least {least}", seen, seen >= least

    return [
        ("graph replays in the decode steps of a full batch", replays),
        ("manager calls in these steps", lambda: equal(0, found("calls"))),
        ("request, growth and failure records there", lambda: equal(0, found("records"))),
    ]


def _told(ratios: Sequence[float]) -> str:
    low, high = interval(ratios)
    median = statistics.median(ratios)
    return f"{median:.4f} (95 % of resampled medians: {low:.4f} to {high:.4f}, n={len(ratios)})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of the medians of resampled `values`; the same for the same values."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
