"""One mode's measurement, in the engine's process: `-m tools.gpu.overhead FOLDER`.

The same engine does everything; only the recorder's hooks come off and go back, between
requests for one token and between blocks of decode steps (`alternating`). FOLDER holds
task.json; the results go to result.json there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from vllm import LLM, SamplingParams

import wstrace
from tools.bench.step_cost import step_cost
from tools.gpu.alternating import PIECES, Pair, alternate, timed
from wstrace.files import write_output
from wstrace.recorder.install import current
from wstrace.recorder.state.process import Live

REQUESTS: Final = (b'"t":"request"', b'"t":"growth"', b'"t":"failure"')
SETTLE_STEPS: Final = 20
WARM_STEPS: Final = 3
BLOCK_STEPS: Final = 10
STEPS_OF_PAIR: Final = PIECES * (WARM_STEPS + BLOCK_STEPS)
KEPT_EACH: Final = 10  # pairs, so that a deadline does not cost those before it


class Bench:
    """Fresh prompts on one engine."""

    def __init__(self, llm: Any, live: Live, load: dict[str, Any]) -> None:
        self.llm, self.live, self.load = llm, live, load
        self.engine = llm.llm_engine
        self.made = 0

    def prompts(self, count: int) -> list[dict[str, Any]]:
        """`count` prompts of token ids, none sent before."""
        made = []
        for _ in range(count):
            self.made += 1
            length = self.load["prompt_tokens"]
            made.append(
                {"prompt_token_ids": [(self.made * 17 + 31 * i) % 255 for i in range(length)]}
            )
        return made

    def generate(self, count: int, tokens: int) -> None:
        """Serve `count` prompts with exactly `tokens` output tokens each."""
        self.add(count, tokens)
        self.drain()

    def add(self, count: int, tokens: int) -> None:
        """Give the engine `count` prompts; nothing runs before its next step."""
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for number, prompt in enumerate(self.prompts(count)):
            self.engine.add_request(f"bench-{self.made}-{number}", prompt, sampling)

    def drain(self) -> None:
        """Step until nothing is left."""
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def first_tokens(self) -> Iterator[Pair]:
        """Pairs of the time of one request for one token, seconds."""

        def piece() -> float:
            return timed(lambda: self.generate(1, 1), warm=1, count=1)

        return alternate(piece, self.live, self.calls)

    def blocks(self) -> Iterator[Pair]:
        """Pairs of BLOCK_STEPS decode steps of a full batch, seconds; batch after batch."""

        def piece() -> float:
            return timed(self.engine.step, warm=WARM_STEPS, count=BLOCK_STEPS)

        pairs = alternate(piece, self.live, self.calls)
        tokens = self.load["block_tokens"]
        while True:
            self.add(self.load["max_num_seqs"], tokens)
            for _ in range(SETTLE_STEPS):
                self.engine.step()
            yield from islice(pairs, (tokens - 2 * SETTLE_STEPS) // STEPS_OF_PAIR)
            self.drain()

    def calls(self) -> int:
        """Requests that the recorder has counted so far."""
        live = self.live
        folded = sum(tally.calls for tally in live.counters.tallies.values())
        return folded + sum(entry.calls for entry in live.counters.entries())

    def records(self) -> int:
        """Request, growth and failure records in the trace file so far."""
        path = self.live.output.writer.path
        lines = Path(path).read_bytes().splitlines() if path else []
        return sum(any(tag in line for tag in REQUESTS) for line in lines)

    def replay(self) -> dict[str, Any]:
        """Decode steps of a full batch: graph replays, manager calls and records meanwhile.

        Also the seconds of each step, and the microseconds that the step's hooks add, from
        a SchedulerOutput of this batch.
        """
        steps = self.load["replay_steps"]
        self.add(self.load["max_num_seqs"], steps + 2 * SETTLE_STEPS)
        for _ in range(SETTLE_STEPS):
            self.engine.step()
        calls, records = self.calls(), self.records()
        with counted_replays() as replays:
            took = [timed(self.engine.step, warm=0, count=1) for _ in range(steps)]
        found: dict[str, Any] = {
            "steps": steps,
            "step_s": took,
            "replays": replays[0],
            "calls": self.calls() - calls,
            "records": self.records() - records,
        }
        with kept_outputs(self.live) as outputs:
            self.drain()
        full = [o for o in outputs if len(o.num_scheduled_tokens) == self.load["max_num_seqs"]]
        return found | {"hooks_us": step_cost(full[-8:])}


@contextmanager
def kept_outputs(live: Live) -> Iterator[list[Any]]:
    """The SchedulerOutputs of the steps inside the block."""
    begin, kept = live.steps.begin, []

    def keeping(output: Any, in_warmup: bool) -> None:
        kept.append(output)
        begin(output, in_warmup)

    live.steps.begin = keeping  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        del live.steps.begin


@contextmanager
def counted_replays() -> Iterator[list[int]]:
    """Counts `torch.cuda.CUDAGraph.replay` inside the block."""
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    original, count = getattr(graph, "replay", None), [0]
    if original is None:
        yield count
        return

    def replay(self: Any) -> Any:
        count[0] += 1
        return original(self)

    own = "replay" in vars(graph)
    graph.replay = replay
    try:
        yield count
    finally:
        if own:
            graph.replay = original
        else:
            del graph.replay


def main(folder: Path) -> None:
    """Start the engine under the recorder, measure, write result.json."""
    task = json.loads((folder / "task.json").read_text())
    with wstrace.record(folder / "trace"):
        llm = LLM(**task["engine"])
        live = current()
        assert live is not None
        load = task["load"] | {"max_num_seqs": task["engine"]["max_num_seqs"]}
        bench = Bench(llm, live, load)
        for _ in range(load["warm_batches"]):
            bench.generate(load["max_num_seqs"], 40)
            bench.generate(1, 1)
        result: dict[str, Any] = {"batch": load["max_num_seqs"], "steps": BLOCK_STEPS}
        result["replay"] = bench.replay()
        for name, pairs in (("first", bench.first_tokens()), ("blocks", bench.blocks())):
            result[name] = found = []
            for pair in within(load["seconds"][name], load["pairs"], pairs):
                found.append(pair)
                if len(found) % KEPT_EACH == 0:
                    write_output(json.dumps(result), folder / "result.json")
            write_output(json.dumps(result), folder / "result.json")


def within(seconds: float, least: int, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """`pairs` for so long, and at least `least` of them."""
    end = time.monotonic() + seconds
    for number, pair in enumerate(pairs, 1):
        yield pair
        if number >= least and time.monotonic() > end:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
