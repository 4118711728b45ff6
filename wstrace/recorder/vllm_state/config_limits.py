"""The config's limits, as the names that bounds and reserve formulas use.

Read from `worker.vllm_config` after init_device; values that vLLM resolves later
(max_model_len auto-fit, graph sizes, block size) are read again before they are needed.
A value that this vLLM does not have is absent, never 0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from wstrace.recorder.vllm_state.experts import expert_limits
from wstrace.trace.records import Limit, Ranks
from wstrace.vllm import model_config
from wstrace.vllm.limits import NUMBERS, rows
from wstrace.vllm.number import DP, PCP, TP
from wstrace.vllm.quantities import MIXED_GRAPHS, mixed_graphs


def _walk(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = root.get(name) if isinstance(root, dict) else getattr(root, name, None)
        if root is None:
            return None
    return root


def _first(root: Any, paths: Iterable[str]) -> Any:
    return next((value for path in paths if (value := _walk(root, path)) is not None), None)


def named(vllm_config: Any, name: str) -> Any:
    """The number `name` of the config, from the first of its row's places that there is."""
    return _first(vllm_config, NUMBERS[name].config)


def plain(value: Any) -> Limit:
    """An integer, flag, list of integers or short name; None for anything else."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
        return list(value)
    name = getattr(value, "name", None) or (value if isinstance(value, str) else str(value))
    return name.removeprefix("torch.")[:80] if isinstance(name, str) else None


def read_limits(vllm_config: Any) -> dict[str, Limit]:
    """All limits that this config has. Head counts are per tensor-parallel rank."""
    placed = {row.name: _first(vllm_config, row.config) for row in rows()}
    limits = {name: plain(value) for name, value in placed.items() if value is not None}
    limits.update(_text_limits(vllm_config))
    limits.update(_expert_limits(limits))
    limits.update(_split_limits(vllm_config))
    limits.update(_head_limits(vllm_config))
    limits.update(_environment_limits())
    limits.update(_device_limits(vllm_config))
    limits.update(zip(MIXED_GRAPHS, mixed_graphs(limits), strict=True))
    model = str(_walk(vllm_config, "model_config.model") or "")
    limits["model"] = os.path.basename(model.rstrip("/"))
    return limits


def limits_now(worker: Any) -> dict[str, Limit]:
    """The config's limits, and those of the runner and its layers as far as they are made."""
    limits = read_limits(worker.vllm_config)
    for more in (runner_limits, expert_limits):
        with suppress(Exception):  # builders or layers of a vLLM that is not known
            limits |= more(worker)
    return limits


def runner_limits(worker: Any) -> dict[str, Limit]:
    """What only the runner and its metadata builders know, once they are made.

    The largest `reorder_batch_threshold` of the builders (tokens of a request that still
    decodes), the smallest block that one of them was made for (0.13.0 to 0.33.0: the spec with
    the kernel's block size), and the longest sequence of an encoder (0 without one).
    """
    found: dict[str, Limit] = {}
    encoder = _walk(worker, "model_runner.max_encoder_len")
    if isinstance(encoder, int):
        found["max_encoder_len"] = encoder
    groups = _walk(worker, "model_runner.attn_groups") or ()
    builders = [b for several in groups for group in several for b in group.metadata_builders]
    widths = _integers(getattr(b, "reorder_batch_threshold", None) for b in builders)
    blocks = _integers(_walk(b, "kv_cache_spec.block_size") for b in builders)
    found |= {"reorder_batch_threshold": max(widths)} if widths else {}
    return found | ({"kernel_block_size": min(blocks)} if blocks else {})


def _integers(values: Iterable[object]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def _text_limits(vllm_config: Any) -> dict[str, Limit]:
    text = _walk(vllm_config, "model_config.hf_text_config")

    def get(key: str) -> int | None:
        value = _walk(text, key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    found = model_config.plain_numbers(get) | {
        "moe_intermediate_size": model_config.expert_width(get),
        "compress_ratio": model_config.compress_ratio(partial(_walk, text)),
    }
    recorded = (NUMBERS[name] for name in found if NUMBERS[name].recorded)
    return {row.name: found[row.name] for row in recorded if found[row.name] is not None}


def _expert_limits(limits: Mapping[str, Limit]) -> dict[str, Limit]:
    """What a rank holds of the experts: whole ones, or a part of each."""
    if limits.get("num_experts") is None:
        return {}
    ranks = model_config.expert_parallel_size(limits)
    found: dict[str, Limit] = {"expert_parallel_size": ranks}
    width = limits.get("moe_intermediate_size")
    if isinstance(width, int) and ranks == 1:
        found["moe_intermediate_size"] = width // model_config.expert_ranks(limits)
    return found


def _split_limits(vllm_config: Any) -> dict[str, Limit]:
    """How many TP ranks split a step's tokens before the experts, as vLLM decides it."""
    splits = _walk(vllm_config, "parallel_config.use_sequence_parallel_moe")
    if not isinstance(splits, bool):
        return {}
    return {"sequence_parallel_size": named(vllm_config, TP) if splits else 1}


def _head_limits(vllm_config: Any) -> dict[str, Limit]:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    calls: dict[str, Callable[[], Any]] = {
        "num_attention_heads": lambda: model.get_num_attention_heads(parallel),
        "num_kv_heads": lambda: model.get_num_kv_heads(parallel),
        "head_size": lambda: model.get_head_size(),
    }
    found: dict[str, Limit] = {}
    for name, call in calls.items():
        try:
            found[name] = int(call())
        except Exception:  # a model without such heads has no such limit
            continue
    return found


def _device_limits(vllm_config: Any) -> dict[str, Limit]:
    """Bytes of the model's dtype, and multiprocessors where a CUDA device is in use."""
    found: dict[str, Limit] = {}
    size = getattr(named(vllm_config, "dtype"), "itemsize", None)
    if isinstance(size, int):
        found["dtype_size"] = size
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        found["num_sms"] = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return found


def _environment_limits() -> dict[str, Limit]:
    try:
        import vllm.envs as envs
    except ImportError:
        return {}
    found: dict[str, Limit] = {}
    for row in rows():
        value = getattr(envs, row.env, None) if row.env else None
        if isinstance(value, int):
            found[row.name] = value
    return found


def read_ranks(worker: Any) -> tuple[Ranks, Ranks]:
    """(this worker's ranks, the group sizes), after init_device."""
    config = worker.vllm_config
    parallel = config.parallel_config
    import vllm.distributed.parallel_state as groups

    def rank(getter: str) -> int | None:
        try:
            return int(getattr(groups, getter)().rank_in_group)
        except (AttributeError, AssertionError):
            return None

    expert = bool(named(config, "enable_expert_parallel"))
    dcp = named(config, "decode_context_parallel_size") or 1
    pcp = named(config, PCP) or 1
    ranks = Ranks(
        dp=getattr(parallel, "data_parallel_index", None)
        or getattr(parallel, "data_parallel_rank", 0),
        tp=rank("get_tp_group"),
        pp=rank("get_pp_group"),
        ep=rank("get_ep_group") if expert else None,
        dcp=rank("get_dcp_group") if dcp > 1 else None,
        rank=getattr(worker, "rank", None),
        node=getattr(parallel, "node_rank", None),
        pcp=rank("get_pcp_group") if pcp > 1 else None,
    )
    world = Ranks(
        dp=named(config, DP),
        tp=named(config, TP),
        pp=named(config, "pipeline_parallel_size"),
        ep=None,
        dcp=dcp,
        rank=getattr(parallel, "world_size", None),
        node=getattr(parallel, "nnodes", None),
        pcp=pcp if pcp > 1 else None,
    )
    return ranks, world
