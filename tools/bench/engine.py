"""What the recorder takes from a whole engine: tokens/s and p99 inter-token time.

    scripts/bench engine [--seconds 80] [--write]

One `LLM` of vLLM's CPU engine, in one process, serves full batches of the testbed's model,
whose layer asks for scratch in every step. The hooks come off and go back between blocks of
decode steps, in an order that is drawn; as a control the same is done with the hooks off on
both sides. An inter-token time is one step's. Half of `--seconds` is one run, half the other.
--write puts the sentence into docs/overhead.md. The last line is all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from tools import ROOT
from tools.bench import twice
from tools.bench.machine import machine, write
from tools.bench.toggle import detached
from tools.gpu.claims_overhead import TARGET, interval

BEGIN, END = "<!-- made by scripts/bench engine -->", "<!-- end of bench engine -->"
BATCH, LENGTH, PROMPT = 8, 2048, 100
WARM, STEPS = 2, 8
KINDS: Final = {"pair": (True, False), "control": (False, False)}
Block = list[float]
"""Seconds of each step, and of CPU time of all of them together at the end."""


def prompt(number: int) -> dict[str, list[int]]:
    """Token ids that no other number shares a beginning with."""
    return {"prompt_token_ids": [(number * 17 + 31 * i) % 255 for i in range(PROMPT)]}


class Served:
    """An engine with a full batch, step by step."""

    def __init__(self, llm: Any, live: Any) -> None:
        self.engine, self.live, self.sent, self.left = llm.llm_engine, live, 0, 0

    def fill(self) -> None:
        """A fresh batch, prefilled; the last one is served to its end first."""
        from vllm import SamplingParams

        while self.engine.has_unfinished_requests():
            self.engine.step()
        self.left = LENGTH - PROMPT - 10
        sampling = SamplingParams(temperature=0.0, max_tokens=self.left, ignore_eos=True)
        for _ in range(BATCH):
            self.sent += 1
            self.engine.add_request(f"bench-{self.sent}", prompt(self.sent), sampling)
        for _ in range(20):
            self.engine.step()
        self.left -= 40  # the batch's first tokens come one after another

    def block(self, recorded: bool) -> Block:
        """STEPS decode steps, after WARM untimed ones."""
        if self.left < WARM + STEPS:
            self.fill()
        self.left -= WARM + STEPS
        with detached(self.live):  # taken off and put back before either side
            pass
        found = []
        with nullcontext() if recorded else detached(self.live):
            for _ in range(WARM):
                self.engine.step()
            used = time.process_time()
            for _ in range(STEPS):
                began = time.perf_counter()
                self.engine.step()
                found.append(time.perf_counter() - began)
        return [*found, time.process_time() - used]

    def pairs(self, seconds: float, rng: random.Random) -> Iterator[tuple[str, Block, Block]]:
        """(kind, steps of the first side, of the second) for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for kind, recorded in KINDS.items():
                sides: list[Block] = [[], []]
                for side in rng.sample((0, 1), 2):
                    sides[side] = self.block(recorded[side])
                yield kind, sides[0], sides[1]


def serve(folder: Path, seconds: float) -> None:
    """The engine's process: measures twice, and leaves result.json in `folder`."""
    from vllm import LLM

    import wstrace
    from wstrace.recorder.install import current
    from wstrace.testbed.model import build_model

    model = build_model(folder / "model")
    with wstrace.record(folder / "trace", on_growth="grow"):
        llm = LLM(
            str(model),
            load_format="dummy",
            max_model_len=LENGTH,
            max_num_batched_tokens=256,
            max_num_seqs=BATCH,
            compilation_config={"mode": 2, "backend": "eager"},
        )
        live = current()
        assert live is not None
        served, rng = Served(llm, live), random.Random(0)
        served.fill()
        before = sum(tally.calls for tally in live.counters.tallies.values())
        runs = [list(served.pairs(seconds / 2, rng)) for _ in range(2)]
        live.counters.flush(live.steps)
        asked = sum(t.calls for t in live.counters.tallies.values()) - before
    (folder / "result.json").write_text(json.dumps({"runs": runs, "asked": asked}))


def figures(run: list[tuple[str, Block, Block]]) -> dict[str, list[float]]:
    """The figures of one run: ratios above 1 are better with the recorder."""
    pairs = {kind: [(a, b) for k, a, b in run if k == kind] for kind in KINDS}
    speed = {k: [sum(b[:-1]) / sum(a[:-1]) for a, b in found] for k, found in pairs.items()}
    return {
        "tokens/s ratio": speed["pair"],
        "control": speed["control"],
        "tokens per CPU s ratio": [b[-1] / a[-1] for a, b in pairs["pair"]],
        "tokens/s": [BATCH * STEPS / sum(a[:-1]) for a, _ in pairs["pair"]],
        "p99 ratio": _p99(pairs["pair"]),
        "p99 control": _p99(pairs["control"]),
        "p99 ms": [t * 1e3 for t in _p99s([a for a, _ in pairs["pair"]])],
    }


def _p99s(blocks: list[Block], parts: int = 8) -> list[float]:
    """The 99th percentile of each part of the run, seconds: one of all has no spread."""
    size = max(1, len(blocks) // parts)
    starts = range(0, size * parts, size)
    cut = [[t for block in blocks[at : at + size] for t in block[:-1]] for at in starts]
    return [quantiles(steps, n=100, method="inclusive")[-1] for steps in cut if len(steps) > 1]


def _p99(pairs: list[tuple[Block, Block]]) -> list[float]:
    """Of the inverse of the 99th percentile, part by part."""
    on, off = _p99s([a for a, _ in pairs]), _p99s([b for _, b in pairs])
    return [without / having for having, without in zip(on, off, strict=True)]


def sentence(found: dict[str, list[float]]) -> str:
    ratio, control = found["tokens/s ratio"], found["control"]
    low, high = interval(ratio)
    near, far = interval(control)
    verdict = "met" if median(ratio) >= TARGET else "missed"
    return (
        f"A full batch of {BATCH} requests decodes {median(found['tokens/s']):,.0f} tokens/s "
        f"with the recorder: {median(ratio):.4f} of the speed without (95 % of resampled "
        f"medians: {low:.4f} to {high:.4f}, {len(ratio)} pairs; target {TARGET}: {verdict}). "
        f"With the hooks off on both sides: {median(control):.4f} ({near:.4f} to {far:.4f}). "
        f"Of CPU time it is {median(found['tokens per CPU s ratio']):.4f}. "
        f"The p99 of the time between two tokens is {median(found['p99 ms']):.2f} ms; without "
        f"it is {median(found['p99 ratio']):.3f} times that (hooks off on both sides "
        f"{median(found['p99 control']):.3f})."
    )


def measured(seconds: float) -> dict[str, Any]:
    """What the engine's process found."""
    from wstrace.testbed.engine import engine_env

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.bench.engine", "--seconds", str(seconds)]
        env = engine_env("decode_scratch", VLLM_ENABLE_V1_MULTIPROCESSING="0")
        done = subprocess.run(
            [*command, "--in", folder], cwd=ROOT, env=env, capture_output=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr.decode(errors="replace")[-2000:])
        found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=80.0, help="Of both runs together.")
    parser.add_argument("--write", action="store_true", help="Put it into docs/overhead.md.")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        serve(options.folder, options.seconds)
        return 0
    result = measured(options.seconds)
    first, second = map(figures, result["runs"])
    whole = twice.both(first, second)
    text = f"{sentence(whole)} {twice.told(first, second)} {machine()}"
    print(text)
    facts = twice.facts(first, second) | {"requests_recorded": result["asked"]}
    ends = {name: interval(whole[name]) for name in ("tokens/s ratio", "control")}
    print(json.dumps({"bench": "engine", "target": TARGET, **facts, "interval": ends}))
    if options.write:
        write(ROOT / "docs" / "overhead.md", f"\n{text}\n", BEGIN, END)
    return int(median(whole["tokens/s ratio"]) < TARGET or not result["asked"])


if __name__ == "__main__":
    sys.exit(main())
