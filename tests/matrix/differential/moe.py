"""Fused MoE: every experts class that a rule names, through the kernel's own buffers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.matrix.differential.engines import UNREAD, Engine, State
from tests.matrix.differential.released import Release, instance, specs_of
from tests.matrix.differential.scene import BF16, Scene, has, taken
from wstrace.known_sites.known import known_sites

MOE = "vllm/model_executor/layers/fused_moe"
KERNEL = f"{MOE}/modular_kernel.py"
PCP = "vllm/v1/worker/gpu/pcp_manager.py"
ALLOCATE = "FusedMoEKernelModularImpl._allocate_buffers"
ROUND_UP = "mxfp4_round_up_hidden_size_and_intermediate_size"


def expert_scenes(release: Release) -> Iterator[Scene]:
    """Every experts class that a rule names, through the kernel's own `_allocate_buffers`."""
    marlin = _file_of(release, "MarlinExperts")
    if marlin is not None and has(release, f"{MOE}/oracle/mxfp4.py", ROUND_UP):
        yield Scene(
            "MoE MarlinExperts, MXFP4 weights",
            KERNEL,
            ALLOCATE,
            partial(_allocate, marlin, "MarlinExperts", padded=True),
            partial(_kept_widths, release),
            "MarlinExperts",
            dispatch=partial(prepare_finalize, "MarlinExperts"),
        )
    named = {name for site in known_sites() if site.family == "moe" for name in site.experts}
    for name in sorted(named):
        file = _file_of(release, name)
        if file is None or not has(release, file, f"{name}.workspace_shapes"):
            continue  # absent, or a monolithic kernel, which asks for nothing
        told = _dispatched if _is_batched(release, name) else lambda _: {}
        for bits in (16, 8, 4) if "Humming" in name else (16,):
            play = partial(_allocate, file, name, bits=bits)
            shown = f"MoE {name}" + ("" if "Humming" not in name else f", {bits} bits")
            ways = partial(prepare_finalize, name)
            yield Scene(shown, KERNEL, ALLOCATE, play, told, name, dispatch=ways)
            if "Humming" in name:
                play = partial(_allocate, file, name, bits=bits, whole=False)
                own = "HummingExpertsBase.make_workspaces"
                alone = f"{shown}, its own call"
                yield Scene(alone, file, own, play, told, caller=name, dispatch=ways)


def has_prefill_context(release: Release) -> bool:
    """PCP with a planner of its own (the V2 runner, from 0.26)."""
    return has(release, PCP, "PCPManager._iter_rank_chunks")


_SINGLE = {"MarlinExperts", "BatchedMarlinExperts", "Rdna3WNA16Experts"}
"""Experts whose moe_problem_size gives the width of one projection, not of gate and up."""
_PARTS = {
    f"TritonOr{other}": {"fallback_experts": "TritonExperts", "experts": inner}
    for other, inner in (
        ("DeepGemmExperts", "DeepGemmExperts"),
        ("CutlassExperts", "CutlassExpertsFp8"),
    )
}
"""Experts that choose between two others (their constructors)."""
_PACKED = {
    "FlashInferCuteDSLExperts",
    "TrtLlmNvFp4ExpertsModular",
    "MuseSparkTrtLlmNvFp4ExpertsModular",
}
"""Experts whose rows arrive as FP4, two elements a byte: K is half the width (from 0.20.0)."""
_ARRIVE = {
    "CutlassBatchedExpertsFp8",
    "FlashInferCuteDSLBatchedExperts",
    "FlashInferCuteDSLExperts",
}
"""Experts that count the rows of the batch that arrives: a budget from each dispatcher."""


_ARRIVES = {
    "none": ("MoEPrepareAndFinalizeNoDPEPModular", "MoEPrepareAndFinalizeNoEP"),
    "gather": ("MoEPrepareAndFinalizeNaiveDPEPModular", "MoEPrepareAndFinalizeNaiveEP"),
    "routed": ("DeepEPHTPrepareAndFinalize",),
    "pairwise": (
        "FlashInferNVLinkTwoSidedPrepareAndFinalize",
        "FlashInferA2APrepareAndFinalize",
        "FlashInferAllToAllMoEPrepareAndFinalize",
    ),
    "whole_steps": ("MoriPrepareAndFinalize",),
    "pairs": ("DeepEPV2PrepareAndFinalize",),
    "pairs_once": ("MoonEPPrepareAndFinalize",),
    "own_experts": ("PassThroughPrepareAndFinalize",),
}
"""The class that hands rows to the experts, by its names since 0.33.0 back to 0.13.0."""


def prepare_finalize(name: str, release: Release, engine: Engine) -> str:
    """The class of `prepare_finalize` for these experts; "" where the release has none."""
    batched = _is_batched(release, name)
    wanted = ("DeepEPLLPrepareAndFinalize",) if batched else _ARRIVES[engine.dispatch]
    return next((cls for cls in wanted if _file_of(release, cls) is not None), "")


def _is_batched(release: Release, name: str) -> bool:
    """A fixed batch for each expert. FlashInfer's CuteDSL experts of 0.18.1 are, and gave their
    name to others in 0.20.0."""
    renamed = _file_of(release, "FlashInferCuteDSLBatchedExperts") is not None
    return "Batched" in name or (name == "FlashInferCuteDSLExperts" and not renamed)


def _file_of(release: Release, name: str) -> str | None:
    return _classes(release.root).get(name)


@cache
def _classes(root: Path) -> dict[str, str]:
    """File by class of vLLM's fused-MoE folder, and of models with experts of their own."""
    files = [*sorted((root / MOE).rglob("*.py")), *(root / "vllm/models").rglob("*moe*.py")]
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


def local_experts(engine: Engine) -> int:
    """Experts of the rank that has most, redundant copies included."""
    every = engine["num_experts"] + engine["num_redundant_experts"]
    return -(-every // engine["expert_parallel_size"])


def expert_rows(release: Release, engine: Engine, state: State) -> int:
    """Token rows that reach this rank's experts. All ranks of a group run the same step here.

    gather: every DP and PCP rank's tokens, each split over its TP ranks and so rounded up
    (fused_moe/runner, sequence parallel). routed (DeepEP high throughput): the same at most,
    where every token picks an expert of this rank. pairwise (MoRI, FlashInfer two-sided): each
    rank of the expert group sends a buffer of its whole step. The others are `UNREAD`.
    """
    ranks = engine["data_parallel_size"] * engine["prefill_context_parallel_size"]
    tokens = local_rows(release, engine, state)
    tp = engine["sequence_parallel_size"]
    split = -(-tokens // tp) * tp
    if engine.dispatch in ("pairwise", "own_experts"):
        return engine["expert_parallel_size"] * tokens
    if engine.dispatch == "whole_steps":
        return engine["expert_parallel_size"] * engine["max_num_batched_tokens"]
    if engine.dispatch in UNREAD:
        return engine["expert_parallel_size"] * tokens * engine["top_k"]
    return ranks * split if engine.dispatch != "none" else tokens


class Bits(Enum):
    """Humming's names of number formats, as far as its shape code asks: `num_bits`."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float8e3m4 = "float8e3m4"
    float8e4m3 = "float8e4m3"
    float8e5m2 = "float8e5m2"
    int8 = "int8"
    int4 = "int4"
    float4e0m3 = "float4e0m3"
    float4e2m1 = "float4e2m1"

    @property
    def num_bits(self) -> int:
        """Bits of one element."""
        return {"float16": 16, "bfloat16": 16, "float32": 32, "int4": 4}.get(self.value, 8)


GEMMS = Enum("GEMMS", ("INDEXED", "GROUPED_CONTIGUOUS", "GROUPED_MASKED"))
"""Humming's GemmType."""
_ACTIVATIONS = {16: Bits.bfloat16, 8: Bits.float8e4m3, 4: Bits.int4}


def _humming(hidden: int, width: int, bits: int) -> dict[str, Any]:
    """What Humming's experts keep of their layer: `layer` up to 0.27, configs from 0.28 on."""
    kinds = {"a_dtype": _ACTIVATIONS[bits], "c_dtype": Bits.bfloat16}
    unpadded = {"pad_shape_n": 0, "pad_shape_k": 0}
    first = SimpleNamespace(shape_n=2 * width, shape_k=hidden, **unpadded, **kinds)
    second = SimpleNamespace(shape_n=hidden, shape_k=width, **unpadded, **kinds)
    layer = SimpleNamespace(
        intermediate_size=width, intermediate_size_per_partition=width, hidden_size=hidden,
        humming_metas={"w13": first, "w2": second}, param_dtype=BF16, params_dtype=BF16,
    )  # fmt: skip
    return {"layer": layer, "humming_configs": {"w13": first, "w2": second}}


def _allocate(
    file: str,
    name: str,
    release: Release,
    engine: Engine,
    state: State,
    padded: bool = False,
    bits: int = 16,
    whole: bool = True,
) -> Any:
    """The kernel's buffers. `padded`: the weights of a quantisation that rounds them up;
    `bits` of an activation, where the class asks; `whole` False: the experts' own call."""
    batched = _is_batched(release, name)
    if batched and engine.dispatch == "none":
        return None
    release.provide(
        {
            "current_platform": SimpleNamespace(
                is_cpu=lambda: False,
                is_rocm=lambda: False,
                is_xpu=lambda: False,
                fp8_dtype=lambda: torch.float8_e4m3fn,
                is_device_capability_family=lambda family: engine.sm_family == family,
                is_device_capability=lambda _: False,
            ),
            "get_mk_alignment_for_contiguous_layout": lambda: [128, 128],
            "is_deep_gemm_e8m0_used": lambda: False,
            "dtypes": Bits,
            "GemmType": GEMMS,
            "HummingGemmType": GEMMS,
        }
    )
    activation = release.get(f"{MOE}/activation.py", "MoEActivation").SILU
    parallel = SimpleNamespace(
        use_mori_kernels=False, use_deepep_ll_kernels=False, use_all2all_kernels=False
    )
    config = SimpleNamespace(
        in_dtype=BF16,
        hidden_dim=engine["hidden_size"],
        is_lora_enabled=engine.lora,
        moe_parallel_config=parallel,
        hidden_dim_unpadded=engine["hidden_size"],
        use_mori_kernels=False,
        num_local_experts=local_experts(engine),
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
        is_sm100=engine.sm_family == 100,
        per_token_activation=False,
        _expects_unquantized_inputs=name not in _PACKED,
        expects_unquantized_inputs=name not in _PACKED,
        hidden_dim_unpadded=engine["hidden_size"],
        use_deep_ep_ll_nvfp4_dispatch=False,
        finalize_weight_and_reduce_impl=lambda: None,
        num_experts=local_experts(engine),
        **_humming(engine["hidden_size"], engine["moe_intermediate_size"], bits),
    )
    kernel = instance(
        release.get(KERNEL, "FusedMoEKernelModularImpl"),
        fused_experts=experts,
        prepare_finalize=SimpleNamespace(allocate_fused_expert_output=lambda *_: None),
    )
    rows = expert_rows(release, engine, state)
    if batched and name in _ARRIVE:
        rows = dispatched["moe_max_num_tokens"] * dispatched["num_dispatchers"]
    if not whole:
        silu = release.get(f"{MOE}/activation.py", "MoEActivation").SILU
        return specs_of(lambda: experts.make_workspaces(rows, engine["top_k"], silu))
    for attribute, inner in _PARTS.get(name, {}).items():
        made = instance(release.get(_file_of(release, inner) or "", inner), **vars(experts))
        experts.__dict__[attribute] = made
    total = engine["num_experts"] + engine["num_redundant_experts"]
    hidden, width = engine["hidden_size"], engine["moe_intermediate_size"]
    if padded:
        hidden, width = _kept_widths(release, engine).values()
    given = {
        "out_dtype": BF16,
        "device": "meta",
        "M_chunk": rows,
        "M_full": rows,
        "N": width if name in _SINGLE else 2 * width,
        "K": hidden // 2 if name in _PACKED and not batched else hidden,
        "top_k": engine["top_k"],
        "global_num_experts": total,
        "local_num_experts": local_experts(engine),
        "expert_tokens_meta": None,
        "activation": activation,
    }
    run = kernel._allocate_buffers
    return specs_of(lambda: run(**taken(run, given)))
