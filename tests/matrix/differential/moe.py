"""Fused MoE: every experts class that a rule names, through the kernel's own buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.matrix.differential.engines import Engine, State
from tests.matrix.differential.released import Release, instance, specs_of
from tests.matrix.differential.scene import BF16, Scene, has, taken
from wstrace.known_sites.known import require

MOE = "vllm/model_executor/layers/fused_moe"
KERNEL = f"{MOE}/modular_kernel.py"
PCP = "vllm/v1/worker/gpu/pcp_manager.py"
ROUND_UP = "mxfp4_round_up_hidden_size_and_intermediate_size"


def expert_scenes(release: Release) -> Iterator[Scene]:
    """Every experts class that a rule names, through the kernel's own `_allocate_buffers`."""
    marlin = _file_of(release, "MarlinExperts")
    if marlin is not None and has(release, f"{MOE}/oracle/mxfp4.py", ROUND_UP):
        yield Scene(
            "MoE MarlinExperts, MXFP4 weights",
            KERNEL,
            "FusedMoEKernelModularImpl._allocate_buffers",
            partial(_allocate, marlin, "MarlinExperts", padded=True),
            partial(_kept_widths, release),
            "MarlinExperts",
        )
    for rule in (
        "moe.triton",
        "moe.deep_gemm",
        "moe.batched_deep_gemm",
        "moe.cutlass_fp4",
        "moe.output_only",
    ):
        for name in require(rule).experts:
            file = _file_of(release, name)
            if file is not None and "CPU" not in name:
                yield Scene(
                    f"MoE {name}",
                    KERNEL,
                    "FusedMoEKernelModularImpl._allocate_buffers",
                    partial(_allocate, file, name),
                    _dispatched if "Batched" in name else lambda _: {},
                    name,
                )


def has_prefill_context(release: Release) -> bool:
    """PCP with a planner of its own (the V2 runner, from 0.26)."""
    return has(release, PCP, "PCPManager._iter_rank_chunks")


def _file_of(release: Release, name: str) -> str | None:
    return _classes(release.root).get(name)


@cache
def _classes(root: Path) -> dict[str, str]:
    """File by class of vLLM's fused-MoE folder."""
    files = sorted((root / MOE).rglob("*.py"))
    return {
        name: path.relative_to(root).as_posix()
        for path in files
        for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.MULTILINE)
    }


def _dispatched(engine: Engine) -> dict[str, int]:
    """DeepEP low latency: a rank dispatches up to its budget (FusedMoEConfig)."""
    ranks = engine["data_parallel_size"] * engine["tensor_parallel_size"]
    return {"moe_max_num_tokens": engine["max_num_batched_tokens"], "num_dispatchers": ranks}


def _kept_widths(release: Release, engine: Engine) -> dict[str, int]:
    """FusedMoEConfig's widths once MXFP4 weights are padded for Marlin."""
    module = f"{MOE}/oracle/mxfp4.py"
    marlin = release.get(module, "Mxfp4MoeBackend").MARLIN
    widths = engine["hidden_size"], engine["moe_intermediate_size"]
    hidden, width = release.get(module, ROUND_UP)(marlin, *widths)
    return {"moe_hidden_dim": hidden, "moe_intermediate_dim": width}


def local_rows(release: Release, engine: Engine, state: State) -> int:
    """Rows of the busiest rank. Under PCP vLLM's own planner shares prefills out and repeats
    decodes where DCP needs them on every rank."""
    ranks = engine["prefill_context_parallel_size"]
    if ranks == 1:
        return state.padded
    dcp = engine["decode_context_parallel_size"]
    planner = instance(
        release.get(PCP, "PCPManager"),
        pcp_world_size=ranks,
        dcp_world_size=dcp,
        shard_decode_requests=dcp == 1,
    )
    scheduled = np.array([r.scheduled for r in state.requests])
    prefilling = np.array([not r.computed or r.scheduled > 1 + r.draft for r in state.requests])
    return max(
        sum(
            int(length) for *_, length in planner._iter_rank_chunks(rank, scheduled, prefilling)
        )
        for rank in range(ranks)
    )


def expert_rows(release: Release, engine: Engine, state: State) -> int:
    """Token rows that reach this rank's experts. All ranks of a group run the same step here.

    gather: every DP and PCP rank's tokens, each split over its TP ranks and so rounded up
    (fused_moe/runner, sequence parallel). routed (DeepEP high throughput): the same at most,
    where every token picks an expert of this rank. pairwise (MoRI, FlashInfer two-sided): each
    rank of the expert group sends a buffer of its whole step.
    """
    ranks = engine["data_parallel_size"] * engine["prefill_context_parallel_size"]
    tokens = local_rows(release, engine, state)
    tp = engine["sequence_parallel_size"]
    split = -(-tokens // tp) * tp
    if engine.dispatch == "pairwise":
        return engine["expert_parallel_size"] * tokens
    return ranks * split if engine.dispatch != "none" else tokens


def _allocate(
    file: str, name: str, release: Release, engine: Engine, state: State, padded: bool = False
) -> Any:
    """The kernel's buffers; `padded`: the weights of a quantisation that rounds them up."""
    if "Batched" in name and engine.dispatch == "none":
        return None
    release.provide(
        {
            "current_platform": SimpleNamespace(
                is_cpu=lambda: False,
                is_rocm=lambda: False,
                is_xpu=lambda: False,
                fp8_dtype=lambda: torch.float8_e4m3fn,
                is_device_capability_family=lambda _: False,
                is_device_capability=lambda _: False,
            ),
            "get_mk_alignment_for_contiguous_layout": lambda: [128, 128],
            "is_deep_gemm_e8m0_used": lambda: False,
        }
    )
    activation = release.get(f"{MOE}/activation.py", "MoEActivation").SILU
    parallel = SimpleNamespace(
        use_mori_kernels=False, use_deepep_ll_kernels=False, use_all2all_kernels=False
    )
    config = SimpleNamespace(
        in_dtype=BF16,
        hidden_dim=engine["hidden_size"],
        is_lora_enabled=False,
        moe_parallel_config=parallel,
        hidden_dim_unpadded=engine["hidden_size"],
        use_mori_kernels=False,
    )
    quantised = SimpleNamespace(
        block_shape=[128, 128],
        quant_dtype=None,
        use_mxfp4_w4a16=False,
        is_nvfp4_scale_swizzled=True,
        weight_quant_dtype=None,
    )
    dispatched = _dispatched(engine)
    experts = instance(
        release.get(file, name),
        quant_config=quantised,
        moe_config=config,
        out_dtype=BF16,
        max_num_tokens=dispatched["moe_max_num_tokens"],
        hidden_dim=engine["hidden_size"],
        num_dispatchers=dispatched["num_dispatchers"],
        use_deepseek_fp8_block_scale=False,
        is_sm100=False,
        per_token_activation=False,
        _expects_unquantized_inputs=True,
        hidden_dim_unpadded=engine["hidden_size"],
    )
    kernel = instance(
        release.get(KERNEL, "FusedMoEKernelModularImpl"),
        fused_experts=experts,
        prepare_finalize=SimpleNamespace(allocate_fused_expert_output=lambda *_: None),
    )
    rows = expert_rows(release, engine, state)
    total = engine["num_experts"]
    hidden, width = engine["hidden_size"], engine["moe_intermediate_size"]
    if padded:
        hidden, width = _kept_widths(release, engine).values()
    given = {
        "out_dtype": BF16,
        "device": "meta",
        "M_chunk": rows,
        "M_full": rows,
        "N": width if name == "MarlinExperts" else 2 * width,
        "K": hidden,
        "top_k": engine["top_k"],
        "global_num_experts": total,
        "local_num_experts": -(-total // engine["expert_parallel_size"]),
        "expert_tokens_meta": None,
        "activation": activation,
    }
    run = kernel._allocate_buffers
    return specs_of(lambda: run(**taken(run, given)))
