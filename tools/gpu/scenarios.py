"""The scenarios. Each writes its files and returns; `claims.py` reads them afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tools.gpu import prompts
from tools.gpu.deepseek_v4 import deepseek_v4, deepseek_v4_rest
from tools.gpu.experts import FLASH_2, expert_parallel, fused_moe, quantised
from tools.gpu.guarded import guard_prefix, guard_turbo
from tools.gpu.overhead_run import overhead
from tools.gpu.runner import Runner, asks, until_death
from tools.gpu.servers import GpuServer
from tools.gpu.turbo import GRAPHS, H100, UNCHUNKED, Turbo, prefix_of, turbo_arguments


def crash_and_cure(run: Runner, turbo: Turbo = H100) -> None:
    """a: the crash; escapes found by growing; reserves from two runs; the cure; the price.

    `crash` comes last, because its death frees memory and because the caches are warm then:
    its KV cache is what the reserved servers' are compared with.
    """
    run.setting(scenario="a", turbo=vars(turbo), **run.host.facts())
    grow = _turbo(run, turbo, "grow", "--on-growth", "grow")
    six = _turbo(run, turbo, "grow-6000", "--on-growth", "grow")
    crash = _turbo(run, turbo, "crash")
    run.together(
        asks(grow, [turbo.short, turbo.deadly, turbo.longest_of_grow]),
        asks(six, [turbo.short, turbo.longest_of_six]),
        (crash, lambda: until_death(crash, [turbo.short, turbo.deadly])),
    )
    run.stop()
    _reserved(run, turbo, grow, six)
    run.judge_all()


def cure_again(run: Runner, turbo: Turbo = H100) -> None:
    """a-cure: the second half of `a`, from the traces that a command cut short left behind."""
    (run.folder / "problems.json").unlink(missing_ok=True)
    _reserved(run, turbo, *(_turbo(run, turbo, name) for name in ("grow", "grow-6000")))
    _turbo(run, turbo, "crash")
    run.judge_all()


def _turbo(run: Runner, turbo: Turbo, name: str, *recorder: str) -> GpuServer:
    return run.server(name, turbo.model, turbo.arguments, *recorder)


def _reserved(run: Runner, turbo: Turbo, *sources: GpuServer) -> None:
    """A reserved server for each trace, sized one after the other on a quiet GPU."""
    servers = [
        server
        for source in sources
        for server in run.reserved(source, turbo.arguments, turbo.model)
    ]
    sent = [turbo.deadly, turbo.middle, turbo.longest]
    run.together(*(asks(server, sent) for server in servers), quiet=True)
    run.stop()


def builder_reservation(run: Runner) -> None:
    """b: vLLM 0.26: what its own reservation covers; prefix caching; the reserve."""
    run.setting(scenario="b", prefixes=prompts.PREFIXES, token_bytes=2048, **run.host.facts())
    sharing = [prefix_of(n) for n in prompts.PREFIXES]
    prefix = run.server("prefix", "qwen3", UNCHUNKED)
    chunked = run.server("chunked", "qwen3", turbo_arguments(32768, 4096))
    run.together(asks(prefix, sharing), asks(chunked, prompts.BUILDER))
    run.stop()
    cured = run.reserved(prefix, UNCHUNKED, "qwen3")
    run.together(*(asks(server, sharing) for server in cured))
    run.stop()
    run.judge_all("--allow-unlocked")


def tensor_parallel(run: Runner) -> None:
    """d: two ranks; growing, then reserved."""
    run.setting(scenario="d", turbo=vars(H100), tensor_parallel=2, **run.host.facts())
    two = (*H100.arguments, "--tensor-parallel-size", "2")
    grow = run.server("grow", "qwen3", two, "--on-growth", "grow")
    run.together(asks(grow, prompts.PARALLEL))
    run.stop()
    cured = run.reserved(grow, two, "qwen3")
    run.together(*(asks(server, prompts.PARALLEL_CURED) for server in cured))
    run.stop()
    run.judge_all()


def latent_attention(run: Runner) -> None:
    """e: MLA with Triton kernels, and sparse MLA; one that does not start says why."""
    run.setting(scenario="e", **run.host.facts())
    common = (
        *("--max-model-len", "16384", "--max-num-batched-tokens", "4096"),
        *("--max-num-seqs", "8", *GRAPHS),
    )
    mla = run.server("mla", "mla", (*common, *FLASH_2, "--attention-backend", "TRITON_MLA"))
    sparse = run.server("sparse-mla", "sparse-mla", common)
    run.together(asks(mla, prompts.LATENT), asks(sparse, prompts.LATENT))
    run.stop()
    run.judge_all("--allow-unlocked")


def decode_context_parallel(run: Runner) -> None:
    """f: FlashAttention with decode context parallelism, growing and as it is."""
    run.setting(scenario="f", prompts=prompts.DCP, heads=16, head_size=128, chunk=4096)
    run.setting(**run.host.facts())
    arguments = (
        *("--tensor-parallel-size", "2", "--decode-context-parallel-size", "2"),
        *("--max-model-len", "16384", "--max-num-batched-tokens", "4096"),
        *("--max-num-seqs", "8", *GRAPHS, *FLASH_2),
    )
    grow = run.server("grow", "qwen3-one-kv-head", arguments, "--on-growth", "grow")
    crash = run.server("crash", "qwen3-one-kv-head", arguments)
    run.together(
        asks(grow, prompts.DCP), (crash, lambda: until_death(crash, list(prompts.DCP[:2])))
    )
    run.stop()
    run.judge_all()


CONTINUES: Final = {"a-cure": "a", "g-rest": "g"}
SCENARIOS: Final[dict[str, Callable[[Runner], None]]] = {
    "a": crash_and_cure,
    "a-cure": cure_again,
    "b": builder_reservation,
    "c": fused_moe,
    "d": tensor_parallel,
    "e": latent_attention,
    "f": decode_context_parallel,
    "g": deepseek_v4,
    "g-rest": deepseek_v4_rest,
    "h": guard_turbo,
    "h-prefix": guard_prefix,
    "i": quantised,
    "j": expert_parallel,
    "overhead": overhead,
}
