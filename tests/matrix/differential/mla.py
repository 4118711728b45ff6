"""MLA: AITER's FP8 prefill, the DCP all-to-all, TokenSpeed's decode, ROCm's paged logits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from tests.matrix.differential.engines import Engine, State
from tests.matrix.differential.released import Release, Unknown, instance, specs_of
from tests.matrix.differential.scene import Scene, decodes_of, meta, taken

BACKENDS = "vllm/v1/attention/backends/mla"
AITER = f"{BACKENDS}/rocm_aiter_mla.py"
TOKENSPEED = f"{BACKENDS}/tokenspeed_mla.py"
ALL_TO_ALL = "vllm/v1/attention/ops/dcp_alltoall.py"
PAGED = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
_DECODED = {"FlashMLA": 128, "FlashAttention MLA": 512}
"""reorder_batch_threshold of the backends that decode under DCP (0.21 to 0.23)."""
_FILES = {"FlashMLA": "flashmla.py", "FlashAttention MLA": "flashattn_mla.py"}
FP8 = torch.float8_e4m3fn


def mla_scenes() -> Iterator[Scene]:
    """What a step of an MLA model asks for outside the backends' decode kernels."""
    yield Scene(
        "AITER FP8 prefill", AITER, "AiterMLAImpl._mla_fp8_prefill_attn", _aiter_prefill,
        lambda engine: {"max_partial_tiles": _most_tiles(engine)},
    )  # fmt: skip
    send = "_dcp_a2a_send_recv_buffers"
    for backend, most in _DECODED.items():
        yield Scene(
            f"DCP all-to-all, {backend} decode", ALL_TO_ALL, send,
            partial(_all_to_all_mla, most),
            partial(_told, "reorder_batch_threshold", most),
            backend=f"{BACKENDS}/{_FILES[backend]}",
        )  # fmt: skip
    yield Scene("DCP all-to-all, FlashAttention", ALL_TO_ALL, send, _all_to_all_flash, _no_mla)
    for split in (1, 4):
        yield Scene(
            f"TokenSpeed decode, KV splits from {split}", TOKENSPEED, "_get_workspace",
            partial(_tokenspeed, split), partial(_told, "min_split_kv", split),
        )  # fmt: skip
    for arch in ("gfx942", "RDNA"):
        yield Scene(
            f"ROCm AITER paged logits, {arch}", PAGED, "rocm_fp8_paged_mqa_logits",
            partial(_paged_logits, arch == "gfx942"),
        )  # fmt: skip


def _told(name: str, value: int, _: Engine) -> dict[str, int]:
    return {name: value}


def _no_mla(_: Engine) -> dict[str, int]:
    return {"kv_lora_rank": 0}


def _most_tiles(engine: Engine) -> int:
    """As the builder of 0.33 counts them; AITER says the number in earlier releases."""
    tiles = -(-engine["max_num_batched_tokens"] // 256) + engine["max_num_seqs"] - 1
    return tiles + engine["num_sms"]


def _aiter_prefill(release: Release, engine: Engine, state: State) -> Any:
    """A tile of 256 queries each, and as many more as there are compute units to share the
    last ones: AITER's scheduler is C++ and splits what it likes up to there."""
    decodes = decodes_of(state, engine)
    prefills = [r.scheduled for r in state.requests if r not in decodes]
    if not prefills:
        return None
    heads, width = engine["num_attention_heads"], engine["v_head_dim"]
    tiles = sum(-(-n // 256) for n in prefills) + engine["num_sms"]
    release.provide({"current_platform": SimpleNamespace(fp8_dtype=lambda: FP8)})
    made = instance(
        release.get(AITER, "AiterMLAImpl"),
        num_heads=heads, v_head_dim=width, _fp8_prefill_one_scale=None,
    )  # fmt: skip
    rows = meta(sum(prefills), heads, width)
    metadata = SimpleNamespace(fp8_prefill_num_partial_tiles=tiles)
    out = meta(sum(prefills), heads * width)
    return specs_of(lambda: made._mla_fp8_prefill_attn(rows, rows, rows, metadata, out))


def _reduce(release: Release, engine: Engine, rows: int, size: int) -> Any:
    ranks = engine["decode_context_parallel_size"]
    release.provide({})
    run = release.get(ALL_TO_ALL, "dcp_a2a_lse_reduce")
    heads = engine["num_attention_heads"] * ranks
    group = SimpleNamespace(world_size=ranks)
    return specs_of(lambda: run(meta(rows, heads, size), meta(rows, heads), group))


def _all_to_all_mla(most: int, release: Release, engine: Engine, state: State) -> Any:
    """Requests of up to `most` new tokens are decoded; a graph may have padded a step of them
    alone."""
    decodes = [r.scheduled for r in state.requests if r.scheduled <= most]
    if engine["decode_context_parallel_size"] == 1 or not decodes:
        return None
    pure = len(decodes) == len(state.requests)
    rows = state.attended if pure else sum(decodes)
    return _reduce(release, engine, rows, engine["kv_lora_rank"])


def _all_to_all_flash(release: Release, engine: Engine, state: State) -> Any:
    """Every token of the step."""
    if engine["decode_context_parallel_size"] == 1:
        return None
    return _reduce(release, engine, state.attended, engine["head_size"])


def _tokenspeed(split: int, release: Release, engine: Engine, state: State) -> Any:
    """Constants that the constructor takes from the config."""
    config = SimpleNamespace(
        attention_config=SimpleNamespace(tokenspeed_mla_min_split_kv=split),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=engine.numbers.get("num_speculative_tokens", 0)
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            max_num_seqs=engine["max_num_seqs"],
        ),
        compilation_config=SimpleNamespace(
            max_cudagraph_capture_size=engine["max_cudagraph_capture_size"]
        ),
        parallel_config=None,
    )
    cls = release.get(TOKENSPEED, "TokenspeedMLAImpl")
    for base in cls.__mro__[1:-1]:
        base.__init__ = lambda *_, **__: None
    release.provide(
        {
            "get_current_vllm_config": lambda: config,
            "is_quantized_kv_cache": lambda _: True,
            "warmup_compile_prefill": lambda **_: None,
            "get_num_sm": lambda _: engine["num_sms"],
        }
    )
    heads = engine["num_attention_heads"]
    given = dict.fromkeys(cls.__init__.__code__.co_varnames[1:])
    release.provided["AttentionType"] = SimpleNamespace(DECODER="decoder")
    given |= {"q_lora_rank": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    given |= {"num_heads": heads, "attn_type": "decoder", "kv_cache_dtype": "fp8"}
    made = instance(
        cls, kv_lora_rank=engine["kv_lora_rank"], num_heads=heads, kv_cache_dtype="fp8",
        qk_nope_head_dim=128, qk_rope_head_dim=64,
    )  # fmt: skip
    cls.__init__(made, **taken(cls.__init__, given))
    gathered = heads * engine["decode_context_parallel_size"]
    run = release.get(TOKENSPEED, "_get_workspace")
    kept = (made._min_split_kv, made._max_decode_tokens)
    return specs_of(lambda: run("meta", gathered, engine["kv_lora_rank"], *kept))


def _paged_logits(cdna: bool, release: Release, engine: Engine, state: State) -> Any:
    """Decodes padded to the longest of them; `cdna`: gfx942, else AITER's two stages."""
    decodes = decodes_of(state, engine)
    if not decodes:
        return None
    width = max(r.scheduled for r in decodes)
    enabled = SimpleNamespace(is_enabled=lambda: True, is_rdna_aiter_enabled=lambda: True)
    release.provide(
        {
            "_ON_GFX942": cdna,
            "_ON_GFX950": False,
            "rocm_aiter_ops": enabled,
            "paged_mqa_logits_module": lambda: SimpleNamespace(
                deepgemm_fp8_paged_mqa_logits=Unknown("kernel"),
                deepgemm_fp8_paged_mqa_logits_stage1=Unknown("kernel"),
                __name__="aiter",
            ),
        }
    )
    run = release.get(PAGED, "rocm_fp8_paged_mqa_logits")
    given: dict[str, Any] = {
        "q_fp8": meta(len(decodes), width, engine["index_n_heads"], engine["index_head_dim"]),
        "kv_cache_fp8": meta(1, 64, 1, engine["index_head_dim"] + 4, dtype=torch.uint8),
        "weights": None,
        "context_lens": meta(len(decodes)),
        "block_tables": meta(len(decodes), 1),
        "schedule_metadata": None,
        "max_model_len": engine["max_model_len"],
        "compress_ratio": 1,
    }
    return specs_of(lambda: run(**taken(run, given)))
