"""Which of vLLM's functions are run, with what in place of the engine's objects.

A scene calls one real function for one step of one engine and ends at its request. What it
sets up are inputs (shapes of tensors, numbers of the layer); no size is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from tests.matrix.differential.deepseek_v4 import prefill_scenes
from tests.matrix.differential.engines import Engine, State
from tests.matrix.differential.mla import mla_scenes
from tests.matrix.differential.moe import expert_scenes
from tests.matrix.differential.released import Release, Unknown, instance, specs_of
from tests.matrix.differential.scene import BF16, Scene, decodes_of, has, meta, taken

BACKENDS = "vllm/v1/attention/backends"


def scenes(release: Release) -> Iterator[Scene]:
    """The scenes that this release has the functions of."""
    for scene in (*_ATTENTION, *mla_scenes(), *prefill_scenes(), *expert_scenes(release)):
        if not has(release, scene.file, scene.function):
            continue
        function = release.get(scene.file, scene.function)
        if "get_simultaneous" in function.__code__.co_names:  # else it has a buffer of its own
            yield scene


def _method(release: Release, file: str, function: str, **attributes: Any) -> Any:
    """The bound method of an object that never ran a constructor."""
    owner, _, method = function.rpartition(".")
    return getattr(instance(release.get(file, owner), **attributes), method)


def _decode_rows(state: State, engine: Engine) -> int | None:
    """Rows of a batch of decodes alone, None for another; a graph may have padded it."""
    return state.attended if len(decodes_of(state, engine)) == len(state.requests) else None


def _continuation(
    file: str, function: str, release: Release, engine: Engine, state: State
) -> Any:
    """A prefill that goes on: the longest cached prefix of the step."""
    cached = max((r.computed for r in state.requests if r.scheduled > 1), default=0)
    if not cached:
        return None
    heads, size = engine["num_kv_heads"], engine["head_size"]
    query = meta(1, engine["num_attention_heads"], size, dtype=torch.float16)
    run = _method(
        release,
        file,
        function,
        _mse_bytes=1,
        _val_data_bytes=1,
        _soa_store=False,
        head_size=size,
    )
    given = {
        "layer": None,
        "query": query,
        "key_chunk": meta(1, heads, size),
        "val_chunk": meta(1, heads, size),
        "kv_cache": meta(1, engine["block_size"], heads, 1),
        "block_table": None,
        "cached_len": cached,
        "seq_len": cached + 1,
        "PiT": None,
        "centroids": None,
        "Pi": None,
        "attn_metadata": None,
    }
    return specs_of(lambda: run(**taken(run, given)))


def _decode(file: str, function: str, release: Release, engine: Engine, state: State) -> Any:
    """TurboQuant and UltraQuant: a step of decodes, one row a request. A step that verifies
    drafts is a prefill to them (supports_spec_as_decode=False, is_prefill)."""
    rows = _decode_rows(state, engine)
    if rows is None or any(request.scheduled > 1 for request in state.requests):
        return None
    heads, size = engine["num_attention_heads"], engine["head_size"]
    run = _method(
        release,
        file,
        function,
        head_size=size,
        num_heads=heads,
        max_num_kv_splits=engine["tq_max_kv_splits"],
    )
    given = {
        "query": meta(rows, heads, size),
        "kv_cache": None,
        "attn_metadata": None,
        "Pi": None,
        "centroids": None,
        "PiT": None,
        "layer": None,
    }
    return specs_of(lambda: run(**taken(run, given)))


def _triton_mla(release: Release, engine: Engine, state: State) -> Any:
    """Draft tokens are rows of the decode from the release on whose builder takes the blocks of
    a drafter (0.27.1); before, a step that verifies drafts is a prefill."""
    rows = _decode_rows(state, engine)
    builder = release.get(f"{BACKENDS}/mla/triton_mla.py", "TritonMLAMetadataBuilder")
    blocks = getattr(builder, "supports_non_causal_multi_token_decode", False)
    if rows is None or (not blocks and any(r.scheduled > 1 for r in state.requests)):
        return None
    heads = engine["num_attention_heads"] * engine["decode_context_parallel_size"]
    rank, rope = engine["kv_lora_rank"], engine["qk_rope_head_dim"]
    release.provide({"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False)})
    file, function = f"{BACKENDS}/mla/triton_mla.py", "TritonMLAImpl.forward_mqa"
    run = _method(
        release, file, function, kv_lora_rank=rank, _sm_count=engine["num_sms"], num_heads=heads
    )
    metadata = SimpleNamespace(decode=Unknown("decode"), max_seq_len=state.longest)
    return specs_of(
        lambda: run(meta(rows, heads, rank + rope), meta(1, 16, rank + rope), metadata, None)
    )


def _flash_dcp(release: Release, engine: Engine, state: State) -> Any:
    ranks = engine["decode_context_parallel_size"]
    if ranks == 1:
        return None
    heads, size = engine["num_attention_heads"], engine["head_size"]
    gathered = meta(state.attended, heads * ranks, size)
    release.provide(
        {
            "get_dcp_group": lambda: SimpleNamespace(all_gather=lambda *_, **__: gathered),
            "should_split_fa2_dcp_context_attention": lambda *_: False,
        }
    )
    run = _method(
        release,
        f"{BACKENDS}/flash_attn.py",
        "FlashAttentionImpl._forward_with_dcp",
        sliding_window=None,
        vllm_flash_attn_version=3,
        num_heads=heads,
        head_size=size,
        dcp_world_size=ranks,
        _dcp_dtype=BF16,
        _dcp_max_num_tokens=engine["max_num_batched_tokens"],
    )
    given: dict[str, Any] = {name: Unknown(name) for name in run.__code__.co_varnames[1:]}
    given |= {
        "query": meta(state.attended, heads, size),
        "attn_metadata": SimpleNamespace(
            query_start_loc=meta(2),
            max_query_len=1,
            block_table=None,
            num_decode_reqs=0,
            num_prefill_reqs=0,
            num_decode_tokens=0,
            num_prefill_tokens=0,
            dcp_context_kv_lens=1,
            max_dcp_context_kv_len=1,
        ),
    }
    return specs_of(lambda: run(**taken(run, given)))


def _config(engine: Engine) -> SimpleNamespace:
    """The parts of a VllmConfig that sizes are read from."""
    factor = engine["sparse_mla_prefill_workspace_factor"]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=engine["max_model_len"]),
        attention_config=SimpleNamespace(sparse_mla_prefill_workspace_factor=factor),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=engine["max_num_batched_tokens"]
        ),
        parallel_config=SimpleNamespace(
            prefill_context_parallel_size=engine["prefill_context_parallel_size"],
            decode_context_parallel_size=engine["decode_context_parallel_size"],
            tensor_parallel_size=engine["tensor_parallel_size"],
        ),
    )


def _flashmla_sparse(cache: str, release: Release, engine: Engine, state: State) -> Any:
    """The constructor's own request, the same that each step makes of `workspace_specs`;
    `cache` is the KV cache's dtype."""
    cls = release.get(f"{BACKENDS}/mla/flashmla_sparse.py", "FlashMLASparseImpl")
    release.provide(
        {
            "get_current_vllm_config": lambda: _config(engine),
            "current_platform": SimpleNamespace(
                is_device_capability_family=lambda family: engine.sm_family == family,
                is_device_capability=lambda _: False,
            ),
        }
    )
    rank, heads = engine["kv_lora_rank"], engine["num_attention_heads"]
    made = instance(
        cls,
        kv_lora_rank=rank,
        num_heads=heads,
        qk_rope_head_dim=engine["qk_rope_head_dim"],
        need_to_return_lse_for_decode=False,
        _compute_fp8_decode_padded_heads=lambda n: n,
        dcp_world_size=engine["decode_context_parallel_size"],
        pcp_world_size=engine["prefill_context_parallel_size"],
    )
    for base in cls.__mro__[1:-1]:
        base.__init__ = lambda *_, **__: None
    size = rank + engine["qk_rope_head_dim"]
    given = dict.fromkeys(cls.__init__.__code__.co_varnames[1:])
    given |= {
        "num_heads": heads,
        "head_size": size,
        "scale": 1.0,
        "num_kv_heads": 1,
        "kv_cache_dtype": cache,
        "indexer": SimpleNamespace(topk_indices_buffer=None),
    }
    widths = {"kv_lora_rank": rank, "qk_rope_head_dim": engine["qk_rope_head_dim"]}
    return specs_of(lambda: cls.__init__(made, **taken(cls.__init__, given), **widths))


def _indexer(release: Release, engine: Engine, state: State) -> Any:
    """The sparse indexer's prefill gather; `total_seq_lens` comes from vLLM's own function."""
    file = "vllm/model_executor/layers/sparse_attn_indexer.py"
    kind = release.get(f"{BACKENDS}/mla/indexer.py", "DeepseekV32IndexerMetadata")
    if all(r.computed and r.scheduled <= 4 for r in state.requests):
        return None
    dcp, pcp = engine["decode_context_parallel_size"], engine["prefill_context_parallel_size"]
    config = _config(engine)
    rows = release.get(f"{BACKENDS}/mla/indexer.py", "get_max_prefill_buffer_size")(config)
    both = dcp > 1 and pcp > 1
    chunk = SimpleNamespace(
        pcp_deinterleave_idx=meta(rows) if both else None,
        local_total_seq_lens=-(-rows // dcp),
        max_local_total_seq_lens=rows,
    )
    narrowed = instance(
        kind,
        slot_mapping=meta(state.tokens),
        num_decodes=0,
        num_prefills=1,
        num_decode_tokens=0,
        prefill=SimpleNamespace(chunks=[chunk]),
        decode=None,
    )
    context = SimpleNamespace(attn_metadata={"k": narrowed}, cudagraph_runtime_mode=None)
    release.provide(
        {
            "get_forward_context": lambda: context,
            "current_platform": SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn),
            "_resolve_layer_name": lambda name: name,
            "get_pcp_group": lambda: SimpleNamespace(world_size=pcp),
            "CUDAGraphMode": SimpleNamespace(FULL="full"),
        }
    )
    run = release.get(file, "sparse_attn_indexer")
    given = dict.fromkeys(run.__code__.co_varnames[: run.__code__.co_argcount])
    given |= {
        "hidden_states": meta(state.tokens, 8),
        "k_cache_prefix": "k",
        "q_scale": None,
        "head_dim": engine["index_head_dim"],
        "max_model_len": engine["max_model_len"],
        "total_seq_lens": rows,
        "skip_k_cache_insert": True,
        "use_pcp": pcp > 1,
        "dcp_world_size": dcp,
        "use_fp4_cache": False,
        "skip_topk_buffer_clear": True,
        "candidate_block_size": 0,
        "topk_indices_buffer": meta(state.tokens, 2),
        "dense_mha_metadata_layer_name": "",
    }
    return specs_of(lambda: run(**taken(run, given)))


def _paged_logits(release: Release, engine: Engine, state: State) -> Any:
    """Decodes padded to the longest of them."""
    decodes = decodes_of(state, engine)
    if not decodes:
        return None
    width = max(r.scheduled for r in decodes)
    file = "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py"
    release.provide(
        {"current_platform": SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn)}
    )
    run = release.get(file, "rocm_fp8_paged_mqa_logits_triton")
    q = meta(len(decodes), width, engine["index_n_heads"], engine["index_head_dim"])
    cache = meta(1, 64, 1, engine["index_head_dim"] + 4, dtype=torch.uint8)
    lengths, table = meta(len(decodes)), meta(len(decodes), 1)
    return specs_of(lambda: run(q, cache, None, lengths, table, engine["max_model_len"]))


def _octave(release: Release, engine: Engine, state: State) -> Any:
    run = _method(
        release,
        f"{BACKENDS}/rocm_octave_attn.py",
        "RocmOctaveAttentionImpl._mid_o_buffer",
        num_heads=engine["num_attention_heads"],
        max_num_kv_splits=engine["tq_max_kv_splits"],
        _max_capture_size=engine["max_cudagraph_capture_size"],
        _split_cap=None,
        _mid_o=None,
    )
    return specs_of(lambda: run(state.tokens, "meta"))


def _sliding(release: Release, engine: Engine, state: State) -> Any:
    width = {r.scheduled for r in state.requests}
    if _decode_rows(state, engine) is None or len(width) != 1:
        return None
    size, (query_len,) = engine["kv_lora_rank"] + engine["qk_rope_head_dim"], width
    file, function = (
        "vllm/models/dots3_note/nvidia/attention.py",
        "Dots3NoteTritonMLAImpl._forward_swa_mqa",
    )
    run = _method(
        release, file, function, head_size=size, sliding_window=engine["sliding_window"]
    )
    rows = len(state.requests)
    decode = SimpleNamespace(
        query_len=query_len, block_table=meta(rows, 1), seq_lens=meta(rows)
    )
    q = meta(rows * query_len, engine["num_attention_heads"], size)
    return specs_of(lambda: run(q, None, decode, None))


def _dcp_verify(release: Release, engine: Engine, state: State) -> Any:
    rows = _decode_rows(state, engine)
    if rows is None or engine["decode_context_parallel_size"] == 1:
        return None
    heads = engine["num_attention_heads"] * engine["decode_context_parallel_size"]
    release.provide({"envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False)})
    run = _method(
        release,
        f"{BACKENDS}/mla/rocm_aiter_mla.py",
        "AiterMLAImpl._forward_triton_dcp_verify",
        kv_lora_rank=engine["kv_lora_rank"],
        _sm_count=engine["num_sms"],
    )
    whole = engine["max_model_len"] if engine.words["cudagraph_mode"] != "NONE" else None
    share = -(-(whole or state.longest) // engine["decode_context_parallel_size"])
    verify = SimpleNamespace(max_kv_seq_len=share)
    q = meta(rows, heads, engine["kv_lora_rank"])
    return specs_of(lambda: run(q, verify, None, None, BF16))


_ATTENTION = (
    *(
        Scene(
            name, f"{BACKENDS}/{file}", function, partial(play, f"{BACKENDS}/{file}", function)
        )
        for name, file, function, play in (
            (
                "turboquant continuation",
                "turboquant_attn.py",
                "TurboQuantAttentionImpl._continuation_prefill",
                _continuation,
            ),
            (
                "turboquant decode",
                "turboquant_attn.py",
                "TurboQuantAttentionImpl._decode_attention",
                _decode,
            ),
            (
                "ultraquant continuation",
                "ultraquant_attn.py",
                "UltraQuantAttentionImpl._ultraquant_continuation_prefill",
                _continuation,
            ),
            (
                "ultraquant decode",
                "ultraquant_attn.py",
                "UltraQuantAttentionImpl._decode_attention",
                _decode,
            ),
        )
    ),
    Scene(
        "triton MLA decode",
        f"{BACKENDS}/mla/triton_mla.py",
        "TritonMLAImpl.forward_mqa",
        _triton_mla,
    ),
    Scene(
        "flash attention DCP",
        f"{BACKENDS}/flash_attn.py",
        "FlashAttentionImpl._forward_with_dcp",
        _flash_dcp,
    ),
    Scene(
        "sparse indexer gather",
        "vllm/model_executor/layers/sparse_attn_indexer.py",
        "sparse_attn_indexer",
        _indexer,
    ),
    Scene(
        "ROCm paged logits",
        "vllm/v1/attention/ops/rocm_aiter_mla_sparse.py",
        "rocm_fp8_paged_mqa_logits_triton",
        _paged_logits,
    ),
    *(
        Scene(
            f"FlashMLA sparse, {shown}",
            f"{BACKENDS}/mla/flashmla_sparse.py",
            "FlashMLASparseImpl.__init__",
            partial(_flashmla_sparse, cache),
        )
        for shown, cache in (("FP8", "fp8_ds_mla"), ("BF16", "auto"))
    ),
    Scene(
        "octave",
        f"{BACKENDS}/rocm_octave_attn.py",
        "RocmOctaveAttentionImpl._mid_o_buffer",
        _octave,
    ),
    Scene(
        "dots3 sliding window",
        "vllm/models/dots3_note/nvidia/attention.py",
        "Dots3NoteTritonMLAImpl._forward_swa_mqa",
        _sliding,
    ),
    Scene(
        "AITER DCP verify",
        f"{BACKENDS}/mla/rocm_aiter_mla.py",
        "AiterMLAImpl._forward_triton_dcp_verify",
        _dcp_verify,
    ),
)
