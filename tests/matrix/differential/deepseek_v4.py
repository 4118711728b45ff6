"""DeepSeek-V4 and V4.1: the gathered KV of a prefill, in every class that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from tests.matrix.differential.engines import Engine, State
from tests.matrix.differential.released import (
    Release,
    Spec,
    Unknown,
    instance,
    request_bytes,
    specs_of,
)
from tests.matrix.differential.scene import Scene, decodes_of, has, meta, taken
from wstrace.trace.records import ScheduledRequest

V4, V41 = "vllm/models/deepseek_v4", "vllm/models/deepseek_v41"
METADATA = "vllm/v1/attention/backends/mla/sparse_swa.py"
BUILDER = f"{V4}/sparse_mla.py"
RATIOS = (4, 128)
"""Tokens of a compressed entry in V4's layers (compress_ratios); V4.1 has 1 and 2."""
_WHOLE = tuple[int, int, int, int]


def prefill_scenes() -> Iterator[Scene]:
    """Each class that gathers, over the releases from 0.20."""
    for file, cls in (
        ("vllm/model_executor/layers/deepseek_v4_attention.py", "DeepseekV4MLAAttention"),
        (f"{V4}/nvidia/flashmla.py", "DeepseekV4FlashMLASparseImpl"),
        (f"{V4}/nvidia/flashmla.py", "DeepseekV4FlashMLAAttention"),
        (f"{V4}/amd/rocm.py", "DeepseekV4ROCMAiterMLASparseImpl"),
        (f"{V4}/amd/rocm.py", "DeepseekV4ROCMAiterMLAAttention"),
        (f"{V4}/xpu/xpu_sparse.py", "DeepseekV4XPUAttention"),
    ):
        yield _scene(f"DeepSeek-V4 {cls}", file, f"{cls}._forward_prefill", RATIOS)
    for file, cls, method in (
        (f"{V41}/nvidia/flashmla.py", "DeepseekV4FlashMLAAttention", "_forward_prefill"),
        (
            f"{V41}/nvidia/flash_mla_mega_attn.py",
            "DeepseekV4MegaAttnAttention",
            "_forward_prefill_mega",
        ),
        (f"{V41}/amd/rocm.py", "DeepseekV41ROCMAiterMLAAttention", "_forward_prefill"),
    ):
        yield _scene(f"DeepSeek-V4.1 {cls}", file, f"{cls}.{method}", (1, 2))


def _scene(name: str, file: str, function: str, ratios: Sequence[int]) -> Scene:
    play = partial(_prefill, file, function, ratios)
    return Scene(name, file, function, play, lambda _: {"compress_ratio": ratios[0]})


def _prefill(
    file: str,
    function: str,
    ratios: Sequence[int],
    release: Release,
    engine: Engine,
    state: State,
) -> Any:
    """A step's prefills in one layer (compression 0: a window only). Layers of all kinds run in
    each step: of a step near the budget the one that asks for most, else any."""
    decodes = decodes_of(state, engine)
    prefills = [request for request in state.requests if request not in decodes]
    if not prefills:
        return None
    kinds = (0, *ratios)
    if state.tokens * 4 < engine["max_num_batched_tokens"] * 3:
        kinds = (kinds[state.tokens % len(kinds)],)
    step = (release, engine, state, prefills, decodes)
    return max((_layer(file, function, kind, *step) for kind in kinds), key=request_bytes)


def _layer(
    file: str,
    function: str,
    ratio: int,
    release: Release,
    engine: Engine,
    state: State,
    prefills: Sequence[ScheduledRequest],
    decodes: Sequence[ScheduledRequest],
) -> tuple[Spec, ...]:
    cls, _, method = function.rpartition(".")
    release.provide({"_ON_GFX950": True})
    topk = engine["index_topk"]
    layer = {
        "compress_ratio": ratio,
        "max_model_len": engine["max_model_len"],
        "max_num_batched_tokens": engine["max_num_batched_tokens"],
        "window_size": engine["sliding_window"],
        "max_image_tokens": 0,
        "head_dim": engine["head_size"],
        "n_local_heads": engine["num_attention_heads"],
        "topk_indices_buffer": meta(engine["max_num_batched_tokens"], topk),
        "_use_aiter_sparse_mla": False,
    }
    wide = _topk_of_128(release, engine, state) if ratio == 128 else topk
    sparse = SimpleNamespace(
        c128a_prefill_topk_indices=meta(sum(r.scheduled for r in prefills), wide),
        block_table=Unknown("block_table"),
    )
    run = getattr(instance(release.get(file, cls), **layer), method)
    given: dict[str, Any] = {name: Unknown(name) for name in run.__code__.co_varnames[1:]}
    given |= {
        "layer": SimpleNamespace(**layer),
        "q": meta(state.tokens, engine["num_attention_heads"], engine["head_size"]),
        "attn_metadata": sparse if ratio else None,
        "flashmla_metadata": sparse if ratio else None,
        "swa_metadata": _metadata(release, engine, prefills, decodes),
        "mxfp8_out": (Unknown("values"), Unknown("scales")),
    }
    return specs_of(lambda: run(**taken(run, given)))


def _metadata(
    release: Release,
    engine: Engine,
    prefills: Sequence[ScheduledRequest],
    decodes: Sequence[ScheduledRequest],
) -> Any:
    scheduled = torch.tensor([r.scheduled for r in prefills])
    lengths = torch.tensor([r.computed + r.scheduled for r in prefills])
    rows = [r.scheduled for r in (*decodes, *prefills)]
    starts = torch.tensor([0, *rows]).cumsum(0)
    fields = {
        "num_decodes": len(decodes),
        "num_prefills": len(prefills),
        "num_decode_tokens": sum(r.scheduled for r in decodes),
        "num_prefill_tokens": int(scheduled.sum()),
        "prefill_seq_lens": lengths,
        "prefill_gather_lens": lengths,
        "prefill_seq_lens_cpu": lengths,
        "prefill_query_lens_cpu": scheduled,
        "prefill_window_size": engine["sliding_window"],
        "prefill_max_model_len": engine["max_model_len"],
        "prefill_max_num_batched_tokens": engine["max_num_batched_tokens"],
        "prefill_left_visible": None,
        "query_start_loc": starts,
        "query_start_loc_cpu": starts,
    }
    made = instance(release.get(METADATA, "DeepseekSparseSWAMetadata"), **fields)
    planner: Callable[..., list[_WHOLE]] | None = getattr(
        type(made), "get_prefill_chunk_plan", None
    )
    if planner is not None:  # the loop over the chunks ends at its first request
        made.__dict__["get_prefill_chunk_plan"] = lambda **given: [
            max(planner(made, **given), key=lambda chunk: (chunk[1] - chunk[0]) * chunk[3])
        ]
    return made


def _topk_of_128(release: Release, engine: Engine, state: State) -> int:
    """The width of a 128-fold layer's indices, as its metadata builder cuts them (from 0.28
    they are in the request)."""
    if not has(release, BUILDER, "DeepseekV4SparseMLAMetadataBuilder"):
        return engine["index_topk"]
    cls = release.get(BUILDER, "DeepseekV4SparseMLAMetadataBuilder")
    for base in cls.__mro__[1:-1]:
        base.__init__ = lambda *_, **__: None
    spec = SimpleNamespace(block_size=256, tokens_per_state=128, compress_ratio=128)
    builder = instance(cls, kv_cache_spec=spec, reorder_batch_threshold=1)
    asked: list[int] = []

    def build(*_: Any, max_compressed_tokens: int, **__: Any) -> tuple[Any, ...]:
        asked.append(max_compressed_tokens)
        return Unknown("decode"), Unknown("lens"), Unknown("prefill")

    release.provided |= {
        "split_decodes_and_prefills": lambda *_, **__: (0, 1, 0, 1),
        "build_c128a_topk_metadata": build,
    }
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=engine["max_model_len"],
            hf_config=SimpleNamespace(index_topk=engine["index_topk"]),
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=engine["max_num_batched_tokens"]
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        speculative_config=None,
    )
    builder.__dict__["vllm_config"] = config  # its base's constructor does
    cls.__init__(builder, spec, [], config, "meta")
    common = SimpleNamespace(
        max_seq_len=state.longest, positions=meta(1), block_table_tensor=meta(1, 1),
        slot_mapping=meta(1),
    )  # fmt: skip
    builder._build_c128a_metadata(common, meta(1))
    return asked[0]
