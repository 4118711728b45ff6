"""The claims of scenario `overhead`: ratios with and without the recorder, and replays."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gpu_runs.evidence import Evidence, MissingError
from gpu_runs.table import Claim, Outcome, claim, equal

TARGET: Final = 0.99
RESAMPLES: Final = 4000
IN_FLIGHT: Final = 2  # steps that asynchronous scheduling may have begun and not ended
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


def _pairs(ev: Evidence) -> list[dict[str, dict[str, float]]]:
    found: list[dict[str, dict[str, float]]] = ev.json("result.json")["pairs"]
    return found


def _ratios(ev: Evidence) -> list[Row]:
    def speed() -> Outcome:
        return _ratio([p["on"]["tokens_per_s"] / p["off"]["tokens_per_s"] for p in _pairs(ev)])

    def first() -> Outcome:
        return _ratio([p["off"]["ttft_s"] / p["on"]["ttft_s"] for p in _pairs(ev)])

    def typical() -> Outcome:
        pairs = _pairs(ev)
        speeds = {s: statistics.median(p[s]["tokens_per_s"] for p in pairs) for s in SIDES}
        firsts = {s: statistics.median(p[s]["ttft_s"] * 1e3 for p in pairs) for s in SIDES}
        told = [f"{s}: {speeds[s]:,.0f} tokens/s, TTFT {firsts[s]:.2f} ms" for s in SIDES]
        return "medians", told, True

    return [
        ("tokens/s, recorded over not recorded", speed),
        ("1/TTFT, recorded over not recorded", first),
        ("both sides", typical),
    ]


def _hooks(ev: Evidence, least: int) -> list[Row]:
    def alternated() -> Outcome:
        count = len(_pairs(ev))
        return f"at least {least}", count, count >= least

    def off() -> Outcome:
        return equal([0], sorted({int(p["off"]["calls"]) for p in _pairs(ev)}))

    return [
        ("alternating pairs", alternated),
        ("manager calls counted while the hooks were off", off),
    ]


def _step(ev: Evidence) -> list[Row]:
    """The hooks of a step alone, in CPU time: what the ratios above cannot resolve."""

    def share() -> Outcome:
        decode = ev.json("result.json")["replay"]
        if "hooks_us" not in decode:
            raise MissingError("the hooks of a step were not timed in this run")
        hooks, step = statistics.median(decode["hooks_us"]), statistics.median(decode["step_s"])
        part = hooks / 1e6 / step
        told = f"{hooks:.1f} us of {step * 1e3:.2f} ms ({part:.2%})"
        return f"at most {1 - TARGET:.0%}", told, part <= 1 - TARGET

    return [("hooks of a decode step, of its time", share)]


def _recorded(ev: Evidence) -> list[Row]:
    """Eager only: with graphs, a model whose sites are all captured asks in no batch."""

    def on() -> Outcome:
        found = min(int(p["on"]["calls"]) for p in _pairs(ev))
        return "more than 0 a batch", found, found > 0

    return [("manager calls counted while they were on", on)]


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


SIDES: Final = ("on", "off")


def _ratio(ratios: Sequence[float]) -> Outcome:
    median = statistics.median(ratios)
    low, high = interval(ratios)
    told = f"{median:.4f} (95 % of resampled medians: {low:.4f} to {high:.4f}, n={len(ratios)})"
    return f"at least {TARGET}", told, median >= TARGET


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of the medians of resampled `values`; the same for the same values."""
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
