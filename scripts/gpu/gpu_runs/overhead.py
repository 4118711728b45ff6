"""One mode's measurement, in the engine's process: `-m gpu_runs.overhead FOLDER`.

The same engine runs every batch; only the recorder's hooks come off and go back between
batches, in alternating order (on off, off on, ...). FOLDER holds task.json; the results go
to result.json there.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams

import wstrace
from wstrace.recorder.install import current
from wstrace.recorder.live import Live
from wstrace.recorder.toggle import detached
from wstrace.testbed.step_cost import step_cost

REQUESTS = (b'"t":"request"', b'"t":"growth"', b'"t":"failure"')


class Bench:
    """Batches of fresh prompts on one engine."""

    def __init__(self, llm: Any, live: Live, load: dict[str, Any]) -> None:
        self.llm, self.live, self.load = llm, live, load
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

    def generate(self, count: int, tokens: int) -> float:
        """Seconds for `count` prompts with exactly `tokens` output tokens each."""
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        prompts = self.prompts(count)
        gc.collect()
        started = time.perf_counter()
        done = self.llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert sum(len(r.outputs[0].token_ids) for r in done) == count * tokens
        return seconds

    def batch(self) -> dict[str, float]:
        """Tokens a second of one full batch, and the median time to a first token."""
        first = [self.generate(1, 1) for _ in range(self.load["first_token_prompts"])]
        seconds = self.generate(self.load["prompts"], self.load["output_tokens"])
        tokens = self.load["prompts"] * self.load["output_tokens"]
        return {"tokens_per_s": tokens / seconds, "ttft_s": statistics.median(first)}

    def side(self, recorded: bool) -> dict[str, float]:
        """One batch with the hooks on or off, and the manager calls that were counted."""
        before = self.calls()
        with nullcontext() if recorded else detached(self.live):
            found = self.batch()
        return found | {"calls": self.calls() - before}

    def calls(self) -> int:
        """Requests that the recorder has counted so far."""
        live = self.live
        folded = sum(tally.calls for tally in live.tallies.values())
        return folded + sum(entry.calls for entry in live.hot.values())

    def records(self) -> int:
        """Request, growth and failure records in the trace file so far."""
        path = self.live.writer.path
        lines = Path(path).read_bytes().splitlines() if path else []
        return sum(any(tag in line for tag in REQUESTS) for line in lines)

    def pair(self, index: int) -> dict[str, dict[str, float]]:
        """Both sides, the order alternating."""
        order = (True, False) if index % 2 == 0 else (False, True)
        return {("on" if side else "off"): self.side(side) for side in order}

    def replay(self) -> dict[str, Any]:
        """Decode steps of a full batch: graph replays, manager calls and records meanwhile.

        Also the seconds of each step, and the microseconds that the step's hooks add, from
        a SchedulerOutput of this batch.
        """
        engine = self.llm.llm_engine
        steps, seqs = self.load["replay_steps"], self.load["max_num_seqs"]
        sampling = SamplingParams(temperature=0.0, max_tokens=steps + 30, ignore_eos=True)
        for number, prompt in enumerate(self.prompts(seqs)):
            engine.add_request(f"replay-{number}", prompt, sampling)
        for _ in range(8):
            engine.step()
        calls, records = self.calls(), self.records()
        took, began = [], time.perf_counter()
        with counted_replays() as replays:
            for _ in range(steps):
                engine.step()
                took.append(-began + (began := time.perf_counter()))
        with kept_outputs(self.live) as outputs:
            for _ in range(8):
                engine.step()
        found: dict[str, Any] = {
            "step_s": took,
            "hooks_us": step_cost([outputs[-1]] * 500),
            "steps": steps,
            "replays": replays[0],
            "calls": self.calls() - calls,
            "records": self.records() - records,
        }
        while engine.has_unfinished_requests():
            engine.step()
        return found


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
        for _ in range(2):
            bench.batch()
        result: dict[str, Any] = {"replay": bench.replay(), "pairs": []}
        started = time.monotonic()
        while len(result["pairs"]) < load["pairs"] or (
            time.monotonic() - started < load["seconds"]
            and len(result["pairs"]) < load["most_pairs"]
        ):
            result["pairs"].append(bench.pair(len(result["pairs"])))
            partial = folder / "result.json.part"
            partial.write_text(json.dumps(result, indent=1) + "\n")
            partial.replace(folder / "result.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
