"""What the recorder adds to one get_simultaneous call of vLLM's real manager, and to a step.

    scripts/bench overhead [--pairs 400] [--calls 100] [--write]

Needs vLLM, no GPU: the
tensors are on the CPU. A pair is a block of calls with the hooks and a block without, in
alternating order, so that a throttled machine slows both, and times are CPU time of the
thread, so that a busy one does not count. In the row `off/off` both sides run without the
hooks: its ratio is the noise. Steps are timed one by one, after work that takes the
processor's caches away (`wstrace.testbed.step_cost`). --write puts the results into
docs/overhead.md and README.md. The same calls under a no-op sys.setprofile, cProfile and
viztracer stand below; the last line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tools import ROOT
from tools.docs.page import between
from wstrace.recorder.hooks.manager import hook_manager
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.recorder.toggle import detached
from wstrace.testbed.step_cost import step_cost

BEGIN, END = "<!-- made by scripts/bench overhead -->", "<!-- end -->"
BEGIN_PEERS = "<!-- peers, made by scripts/bench overhead -->"
DEBUG = "VLLM_DEBUG_WORKSPACE=1"  # vLLM 0.32.0 reads it at each growth, lock and unlock
BEGIN_STEPS = "<!-- steps, made by scripts/bench overhead -->"
WARM_CALLS = 20
ADDED_US, ADDED_SHARE, LESS = 0.7, 0.08, 20
TIMES_LESS = ("cProfile", "viztracer")
Block = Callable[[int], float]
Switch = Callable[[], object]
Off = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Row:
    """Microseconds a call: without the hooks, and the difference and ratio of each pair."""

    name: str
    off: Sequence[float]
    on: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [on / off for on, off in zip(self.on, self.off, strict=True)]

    @property
    def added(self) -> list[float]:
        return [on - off for on, off in zip(self.on, self.off, strict=True)]

    def cells(self) -> list[str]:
        low, _, high = quantiles(self.ratios, n=4)
        return [
            self.name,
            f"{median(self.off):.2f}",
            f"{median(self.on):.2f}",
            f"{median(self.added):+.2f}",
            f"{median(self.ratios):.3f}",
            f"{low:.3f} to {high:.3f}",
        ]


def block(manager: Any, specs: Sequence[Any]) -> Block:
    """Microseconds a call over `calls` calls of the same request."""

    def run(calls: int) -> float:
        ask = manager.get_simultaneous
        for _ in range(WARM_CALLS):
            ask(*specs)
        start = time.thread_time_ns()
        for _ in range(calls):
            ask(*specs)
        return (time.thread_time_ns() - start) / calls / 1000

    return run


def paired(
    off: Off,
    name: str,
    run: Block,
    pairs: int,
    calls: int,
    *,
    on: Off = nullcontext,
    control: bool = False,
) -> Row:
    """`off()` takes away what is measured, `on()` brings it; `control`: off on both sides."""
    found: dict[bool, list[float]] = {False: [], True: []}
    gc.collect()
    gc.disable()
    for number in range(pairs):
        for hooked in (False, True) if number % 2 else (True, False):
            with on() if hooked and not control else off():
                found[hooked].append(run(calls))
    gc.enable()
    return Row(name, found[False], found[True])


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


def line(rows: Sequence[Row], pairs: int, calls: int, bench: str = "overhead") -> str:
    """The medians as one line of JSON, microseconds a call."""
    found = {
        row.name: {
            "without_us": round(median(row.off), 3),
            "added_us": round(median(row.added), 3),
            "ratio": round(median(row.ratios), 4),
        }
        for row in rows
    }
    facts = {"bench": bench, "pairs": pairs, "calls": calls, "machine": machine()}
    return json.dumps(facts | {"rows": found})


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


def filled(module: Any, num_ubatches: int) -> Any:
    """A manager of CPU tensors whose arena has room for every request here."""
    import torch

    manager = module.WorkspaceManager(torch.device("cpu"), num_ubatches=num_ubatches)
    manager.get_simultaneous(((1 << 20,), torch.uint8))
    return manager


def measure(live: Live, module: Any, pairs: int, calls: int) -> tuple[list[Row], list[float]]:
    import torch

    spec = ((64, 128), torch.float16)
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # a growth calls it; it raises without one
    off, one = partial(detached, live), filled(module, num_ubatches=1)
    rows = [
        paired(off, f"{n} buffer{'s' * (n > 1)}", block(one, [spec] * n), pairs, calls)
        for n in (1, 2, 3)
    ]
    firsts = novel(one, range(4, 804, 4))
    two = filled(module, num_ubatches=2)
    rows.append(paired(off, "2 buffers, 2 slots", block(two, [spec] * 2), pairs, calls))
    run = block(two, [spec] * 2)
    return [*rows, paired(off, "2 buffers, off/off", run, pairs, calls, control=True)], firsts


def decode_step(requests: int) -> Any:
    """vLLM's own SchedulerOutput of a decode step."""
    from vllm.v1.core.sched.output import SchedulerOutput

    output: Any = SchedulerOutput.make_empty()
    ids = [f"cmpl-{number:032x}-0" for number in range(requests)]
    output.num_scheduled_tokens = dict.fromkeys(ids, 1)
    output.total_num_scheduled_tokens = requests
    cached = output.scheduled_cached_reqs
    cached.req_ids, cached.num_computed_tokens = ids, [1000 + n for n in range(requests)]
    return output


def step_table(pairs: int) -> str:
    rows = ["| requests in the step | added, us | middle half |", "| --- | --- | --- |"]
    for requests in (1, 8, 64, 256):
        added = step_cost([decode_step(requests)], pairs)
        low, middle, high = quantiles(added, n=4)
        rows.append(f"| {requests} | {middle:+.0f} | {low:.0f} to {high:.0f} |")
    rows += ["", f"{pairs} pairs of single steps; {machine()}"]
    return "\n".join(rows)


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


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]}, {len(named)} cores" if named else platform.machine()


def first_requests(firsts: Sequence[float]) -> str:
    return (
        f" First request of a new size: median {median(firsts):.2f} ms, nine of ten under "
        f"{quantiles(firsts, n=10)[-1]:.2f} ms ({len(firsts)} sizes)."
    )


def table(rows: Sequence[Row], pairs: int, calls: int, more: str = "") -> str:
    head = ["request", "without, us", "with, us", "added, us", "ratio", "middle half"]
    lines = [head, ["---"] * len(head), *(row.cells() for row in rows)]
    return "\n".join(
        [
            *("| " + " | ".join(cells) + " |" for cells in lines),
            "",
            f"{pairs} pairs of {calls} calls; CPU time, medians.{more}",
            "",
            machine(),
        ]
    )


def machine() -> str:
    return (
        f"vLLM {version('vllm')}, PyTorch {version('torch')}, "
        f"Python {platform.python_version()}, {cpu_name()}, load average "
        f"{os.getloadavg()[0]:.1f}."
    )


def sentence(rows: Sequence[Row], firsts: Sequence[float], steps: str) -> str:
    """What the README says; the control row is left out. `steps` is the table of steps."""
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


def write(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put `text` between the page's two marks."""
    page.write_text(between(page.read_text(), begin, end, text))


def main() -> None:
    parser = argparse.ArgumentParser(description="What the recorder adds to one call.")
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Put it into README.md and docs/.")
    options = parser.parse_args()
    module = importlib.import_module("vllm.v1.worker.workspace")
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Settings(directory=folder, run="bench"))
        hook_manager(live, module)
        rows, firsts = measure(live, module, options.pairs, options.calls)
        one = block(
            filled(module, num_ubatches=1),
            [((64, 128), importlib.import_module("torch").float16)],
        )
        others = peers(live, one, options.pairs, options.calls)
        off = partial(detached, live)  # the recorder, in the rounds of its peers
        others.insert(0, paired(off, "wstrace", one, options.pairs, options.calls))
    text = table(rows, options.pairs, options.calls, first_requests(firsts))
    steps = step_table(options.pairs)
    print(f"{text}\n\n{steps}\n\n{beside_table(others, options)}")
    print(line([*rows, *others], options.pairs, options.calls))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n")
        write(ROOT / "docs" / "overhead.md", f"\n{steps}\n", BEGIN_STEPS)
        write(
            ROOT / "docs" / "overhead.md", f"\n{beside_table(others, options)}\n", BEGIN_PEERS
        )
        write(ROOT / "README.md", f"\n{sentence(rows, firsts, steps)}\n")


if __name__ == "__main__":
    main()
