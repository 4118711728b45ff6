"""What the recorder adds to one get_simultaneous call of vLLM's real manager, and to a step.

    scripts/bench overhead [--pairs 200] [--calls 100] [--write]

Needs vLLM, no GPU: the tensors are on the CPU. Calls are timed in pairs (`tools.bench.pairs`);
in the row `off/off` both sides run without the hooks: its ratio is the noise. Steps are timed
one by one, after work that takes the processor's caches away (`tools.bench.step_cost`). --write
puts the results into docs/overhead.md and README.md. All is measured twice: the column "again"
has the second run's ratio, and the last sentence says where it is outside the first one's
middle half. The same calls under a no-op sys.setprofile, cProfile and viztracer stand below,
then those with the look-up in C (scripts/bench builds it where there is a compiler); the last
line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any

from tools import ROOT
from tools.bench.machine import machine, write
from tools.bench.pairs import Block, Row, agreed, block, filled, line, paired, table, twice
from tools.bench.step_cost import decode_step, step_cost
from tools.bench.toggle import detached
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.hooks.native import wrap_seen
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.wrapping import original_of

BEGIN = "<!-- made by scripts/bench overhead -->"
BEGIN_PEERS = "<!-- peers, made by scripts/bench overhead -->"
DEBUG = "VLLM_DEBUG_WORKSPACE=1"  # vLLM 0.32.0 reads it at each growth, lock and unlock
BEGIN_C = "<!-- in C, made by scripts/bench overhead -->"
BEGIN_STEPS = "<!-- steps, made by scripts/bench overhead -->"
C_ROUNDS = 3  # for each pair elsewhere: what is measured is small
ADDED_US, ADDED_SHARE, LESS = 0.7, 0.08, 20
STEP_US, HALF = 20, 0.5
TIMES_LESS = ("cProfile", "viztracer")
Switch = Callable[[], object]


def peers(live: Live, run: Block, pairs: int, calls: int) -> list[Row]:
    """The same calls under what people would use instead, the recorder's hooks off."""
    off = partial(detached, live)
    return [
        paired(off, name, run, pairs, calls, on=partial(beside, live, *switch))
        for name, switch in instead().items()
    ]


def instead() -> dict[str, tuple[Switch, Switch]]:
    """What switches each of them on, and off; viztracer where it is installed."""
    profile = cProfile.Profile()
    found: dict[str, tuple[Switch, Switch]] = {
        "no-op sys.setprofile": (
            lambda: sys.setprofile(_nothing),
            lambda: sys.setprofile(None),
        ),
        "cProfile": (profile.enable, profile.disable),
        DEBUG: (lambda: os.environ.__setitem__(*DEBUG.split("=")), _no_debug),
    }
    if find_spec("viztracer"):
        tracer = importlib.import_module("viztracer").VizTracer(verbose=0)
        found["viztracer"] = (tracer.start, lambda: (tracer.stop(), tracer.clear()))
    return found


def _no_debug() -> None:
    os.environ.pop(DEBUG.partition("=")[0], None)


def _nothing(*event: object) -> None:
    """A profile function that does nothing."""


@contextmanager
def beside(live: Live, start: Switch, stop: Switch) -> Iterator[None]:
    with detached(live):
        start()
        try:
            yield
        finally:
            stop()


def novel(manager: Any, sizes: range) -> list[float]:
    """Milliseconds of each first request of a size: shapes, stack, formula, one write."""
    import torch

    def ask(num_tokens: int) -> None:
        manager.get_simultaneous(((num_tokens, 64), torch.float16))

    found = []
    for size in sizes:
        start = time.thread_time_ns()
        ask(size)
        found.append((time.thread_time_ns() - start) / 1e6)
    return found


def measure(
    live: Live, module: Any, pairs: int, calls: int, sizes: range
) -> tuple[list[Row], list[float]]:
    import torch

    spec = ((64, 128), torch.float16)
    off, one = partial(detached, live), filled(module, num_ubatches=1)
    rows = [
        paired(off, f"{n} buffer{'s' * (n > 1)}", block(one, [spec] * n), pairs, calls)
        for n in (1, 2, 3)
    ]
    firsts = novel(one, sizes)
    two = filled(module, num_ubatches=2)
    rows.append(paired(off, "2 buffers, 2 slots", block(two, [spec] * 2), pairs, calls))
    run = block(two, [spec] * 2)
    return [*rows, paired(off, "2 buffers, off/off", run, pairs, calls, control=True)], firsts


def step_table(pairs: int) -> str:
    head = ["requests in the step", "added, us", "middle half", "again"]
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head))]
    sizes, outside, medians = (1, 8, 64, 256), [], []
    for requests in sizes:
        low, middle, high = quantiles(step_cost([decode_step(requests)], pairs), n=4)
        again = median(step_cost([decode_step(requests)], pairs))
        rows.append(f"| {requests} | {middle:+.0f} | {low:.0f} to {high:.0f} | {again:+.0f} |")
        medians.append(middle)
        outside += [] if low <= again <= high else [str(requests)]
    names = [str(requests) for requests in sizes]
    said = f"{pairs} pairs of single steps. {steps_met(sizes, medians)}{agreed(names, outside)}"
    return "\n".join([*rows, "", said, "", machine()])


def steps_met(sizes: Sequence[int], medians: Sequence[float]) -> str:
    """Whether the hooks of a step stay under their target, for each number of requests."""
    pairs = zip(sizes, medians, strict=True)
    said = [f"{_met(added < STEP_US)} ({requests})" for requests, added in pairs]
    return f"Target under {STEP_US} us, by requests in the step: {', '.join(said)}."


def in_c(live: Live, module: Any, pairs: int, calls: int) -> list[Row]:
    """A seen request with its look-up in Python and in C, and without, in turn."""
    second = Live(replace(live.settings, native=True))
    second.manager = live.manager
    owner = module.WorkspaceManager
    python = owner._ensure_workspace_size
    native = wrap_seen(second)(original_of(python))
    if second.counters.table is None:
        return []
    import torch

    rows = []
    for slots in (1, 2):
        name = f"{slots} buffer{'s, 2 slots' * (slots > 1)}"
        run = block(filled(module, slots), [((64, 128), torch.float16)] * slots)
        sides: dict[str, list[float]] = {"": [], "Python": [], "C": []}
        for number in range(C_ROUNDS * pairs):
            order = list(sides)
            for side in order[number % 3 :] + order[: number % 3]:
                with detached(live):
                    owner._ensure_workspace_size = {"Python": python, "C": native}.get(
                        side, original_of(python)
                    )
                    sides[side].append(run(calls))
                    owner._ensure_workspace_size = original_of(python)
        rows += [Row(f"{name}, {side}", sides[""], sides[side]) for side in ("Python", "C")]
    second.output.writer.close()
    return rows


def c_table(rows: Sequence[Row], others: Sequence[Row], options: argparse.Namespace) -> str:
    """Python and C side by side, and what is left of the targets."""
    added = {row.name: median(row.added) for row in rows}
    slots = [name.rpartition(", ")[0] for name in added if name.endswith(", C")]
    shares = [half(name, added[f"{name}, C"] / added[f"{name}, Python"]) for name in slots]
    less = [
        f"{median(row.added) / added['1 buffer, C']:.1f} times less than {row.name}, target "
        f"{LESS}: {_met(median(row.added) / added['1 buffer, C'] >= LESS)}"
        for row in others
        if row.name in TIMES_LESS
    ]
    more = f" Added in C over added in Python: {'; '.join(shares)}. In C: {'; '.join(less)}."
    return table(rows, C_ROUNDS * options.pairs, options.calls, more)


def half(name: str, share: float) -> str:
    """What C adds of what Python adds, and whether it halves it."""
    return f"{share:.2f} ({name}), target {HALF}: {_met(share <= HALF)}"


def beside_table(others: Sequence[Row], options: argparse.Namespace) -> str:
    """wstrace and its peers, and whether its targets are met."""
    ours, *peers = others
    added, ratio = median(ours.added), median(ours.ratios)
    slowest = {row.name: median(row.added) / added for row in peers if row.name in TIMES_LESS}
    said = [
        f"added {added:.2f} us, target {ADDED_US}: {_met(added <= ADDED_US)}",
        f"{(ratio - 1) * 100:.1f} %, target {ADDED_SHARE * 100:.0f} %: "
        f"{_met(ratio - 1 <= ADDED_SHARE)}",
        *(
            f"{times:.1f} times less than {name}, target {LESS}: {_met(times >= LESS)}"
            for name, times in slowest.items()
        ),
    ]
    more = f" Targets of a seen request: {'; '.join(said)}."
    return table(others, options.pairs, options.calls, more)


def _met(good: bool) -> str:
    return "met" if good else "missed"


def first_requests(firsts: Sequence[float], again: Sequence[float]) -> str:
    return (
        f" First request of a new size: median {median(firsts):.2f} ms, nine of ten under "
        f"{quantiles(firsts, n=10)[-1]:.2f} ms ({len(firsts)} sizes; again {median(again):.2f} "
        "ms)."
    )


def sentence(rows: Sequence[Row], firsts: Sequence[float], steps: str) -> str:
    """What the README says; the control row is left out. `steps` is the table of steps."""
    # matches: "| +12 |"
    added = [int(number) for number in re.findall(r"\| \+(\d+) \|", steps)]
    calls = [median(row.off) for row in rows[:-1]]
    ratios = [ratio for row in rows[:-1] for ratio in row.ratios]
    return (
        f"With the recorder a request for scratch took {(median(ratios) - 1) * 100:.0f} % more "
        f"CPU time than without, where it takes {min(calls):.0f} to {max(calls):.0f} us (CPU "
        "tensors, vLLM's own manager). A layer makes a few such requests a step; one of a new "
        f"size costs {median(firsts):.2f} ms, once. The hooks of a step add {min(added)} to "
        f"{max(added)} us."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recorder adds to one call.")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into README.md and docs/.")
    options = parser.parse_args()
    module = importlib.import_module("vllm.v1.worker.workspace")
    pairs, calls = options.pairs, options.calls
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench", native=False))
        hook_manager(live, module)
        runs = [seen_and_beside(live, module, pairs, calls, at) for at in (4, 804)]
    rows, others, natives = (twice(*both) for both in list(zip(*runs, strict=True))[:3])
    firsts = runs[0][3]
    steps = step_table(pairs)
    blocks = {
        BEGIN: table(rows, pairs, calls, first_requests(firsts, runs[1][3])),
        BEGIN_STEPS: steps,
        BEGIN_PEERS: beside_table(others, options),
        **({BEGIN_C: c_table(natives, others, options)} if natives else {}),
    }
    print("\n\n".join(blocks.values()))
    print(line([*rows, *others, *natives], pairs, calls))
    if options.write:
        for begin, text in blocks.items():
            write(ROOT / "docs" / "overhead.md", f"\n{text}\n", begin)
        write(ROOT / "README.md", f"\n{sentence(rows, firsts, steps)}\n", BEGIN)


def seen_and_beside(
    live: Live, module: Any, pairs: int, calls: int, smallest: int
) -> tuple[list[Row], list[Row], list[Row], list[float]]:
    """One run: the recorder's rows, its peers', Python's and C's, and the first requests."""
    sizes = range(smallest, smallest + 800, 4)
    rows, firsts = measure(live, module, pairs, calls, sizes)
    spec = ((64, 128), importlib.import_module("torch").float16)
    one = block(filled(module, num_ubatches=1), [spec])
    others = peers(live, one, pairs, calls)
    off = partial(detached, live)  # the recorder, in the rounds of its peers
    others.insert(0, paired(off, "wstrace", one, pairs, calls))
    return rows, others, in_c(live, module, pairs, calls), firsts


if __name__ == "__main__":
    main()
