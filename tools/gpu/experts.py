"""Scenarios c, i and j: fused experts as they are, quantised, with drafts, on two ranks.

Every server is recorded and nothing is done to it; the claims are what wstrace says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu import prompts
from tools.gpu.evidence import Evidence
from tools.gpu.outcomes import answers, near_bound
from tools.gpu.prompts import AtOnce, Prompts
from tools.gpu.runner import Runner, asks
from tools.gpu.table import Claim, Outcome, claim, equal
from tools.gpu.turbo import GRAPHS

FLASH_2: Final = ("--attention-config.flash_attn_version=2",)
ARGUMENTS: Final = (
    *("--max-model-len", "16384", "--max-num-batched-tokens", "4096"),
    *("--max-num-seqs", "8", *GRAPHS, *FLASH_2),
)
# A prompt that repeats itself, so that n-grams are found; greedy, so that some are accepted.
NGRAM: Final = (
    "--speculative-config",
    '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":2,"prompt_lookup_max":4}',
)
QUANTISED: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "fp8-block": ("qwen3-moe-fp8-block", ()),
    "mxfp4-marlin": ("qwen3-moe-mxfp4", ("--moe-backend", "marlin")),
    "ngram": ("qwen3-moe", NGRAM),
}
# Both ranks have something to do only where several prompts run at the same time.
TWO_RANKS: Final[Prompts] = (16, AtOnce((500, 4000)), AtOnce((12000, 12000, 12000, 12000)))
EXPERT_PARALLEL: Final = ("--data-parallel-size", "2", "--enable-expert-parallel")
PHASES: Final = ["load", "profile", "kv-init", "warmup", "capture", "serving"]


def fused_moe(run: Runner) -> None:
    """c: a fused-MoE model with graphs, recorded as it is."""
    run.setting(scenario="c", **run.host.facts())
    moe = run.server("moe", "qwen3-moe", ARGUMENTS)
    _recorded(run, [moe.name], prompts.MOE)


def quantised(run: Runner) -> None:
    """i: fp8 block experts, MXFP4 by Marlin with padded sizes, drafts by n-grams."""
    run.setting(scenario="i", servers=list(QUANTISED), **run.host.facts())
    for name, (model, more) in QUANTISED.items():
        run.server(name, model, (*ARGUMENTS, *more))
    _recorded(run, list(QUANTISED), prompts.MOE)


def expert_parallel(run: Runner) -> None:
    """j: two data-parallel ranks that share the experts by all-gather and reduce-scatter."""
    run.setting(scenario="j", servers=["dp2-ep"], ranks=2, **run.host.facts())
    run.server("dp2-ep", "qwen3-moe", (*ARGUMENTS, *EXPERT_PARALLEL))
    _recorded(run, ["dp2-ep"], TWO_RANKS)


def _recorded(run: Runner, names: Sequence[str], sent: Prompts) -> None:
    run.together(*(asks(server, sent) for server in run.servers if server.name in names))
    run.stop()
    run.judge_all()


def claims(folder: Path, setting: dict[str, Any]) -> list[Claim]:
    """All rows of scenario c, i or j."""
    scenario = setting["scenario"]
    sent = TWO_RANKS if scenario == "j" else prompts.MOE
    return [
        row
        for name in setting.get("servers", ["moe"])
        for row in _claims_of(scenario, Evidence(folder / name), lengths(sent), setting)
    ]


def lengths(sent: Prompts) -> list[int]:
    """How long each prompt is, in the order sent: tokens."""
    flat: list[int] = []
    for prompt in sent:
        one = [prompt] if isinstance(prompt, int) else []
        flat += prompt.lengths if isinstance(prompt, AtOnce) else one
    return flat


def _claims_of(
    scenario: str, ev: Evidence, sent: Sequence[int], setting: dict[str, Any]
) -> list[Claim]:
    rows: list[tuple[str, Callable[[], Outcome]]] = [
        ("every prompt answered", partial(answers, ev, sent)),
        ("the arena was seen", partial(_arena, ev)),
        ("phases in vLLM's order", partial(_phases, ev)),
        ("gate clean", lambda: equal(0, ev.gate_exit)),
        ("no finding, of whatever severity", lambda: equal([], ev.judged())),
        ("requests in serving, against their bounds", partial(near_bound, ev, sent)),
    ]
    if scenario != "c":
        rows.append(("every bound of serving is proved", partial(_proved, ev)))
    if "ranks" in setting:
        rows.insert(0, ("each rank recorded", lambda: equal(setting["ranks"], len(ev.workers))))
    named = "" if scenario == "c" else f"{ev.folder.name}: "
    return [claim(scenario, f"{named}{text}", check) for text, check in rows]


def _arena(ev: Evidence) -> Outcome:
    sizes = [ev.workers[0].arena(slot) for slot in ev.workers[0].slots()]
    return "at least one arena", sizes, any(sizes)


def _phases(ev: Evidence) -> Outcome:
    seen = list(dict.fromkeys(p.phase for p in ev.workers[0].phases))
    return PHASES, seen, [phase for phase in seen if phase in PHASES] == PHASES


def _proved(ev: Evidence) -> Outcome:
    sites = [r for r in ev.gate["runs"][0]["exercised"]["by_site"] if r["in_serving"]]
    grades = [f"{r['site'].rpartition('/')[2]}: {r['grade']}" for r in sites]
    return "proved", grades, bool(sites) and all(r["grade"] == "proved" for r in sites)
