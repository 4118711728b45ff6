"""vLLM's own names for scheduler quantities: the only place where a driver gets its role.

An attribute binds by its name and by the class that holds it: vLLM's metadata classes, its
SchedulerOutput, ForwardContext and BatchDescriptor. A tensor's first dimension binds where
the tensor enters one of vLLM's own layer entry points. Equal values bind nothing, and
names of locals, parameters or other people's classes do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wstrace.slicer.values import COMPUTED, DECODES, LENGTHS, STARTS

if TYPE_CHECKING:
    from collections.abc import Hashable

# vLLM 0.13.0 to 0.33.0: v1/core/sched/output.py and forward_context.py, beside the metadata
# classes.
HOLDERS: Final = {"SchedulerOutput", "ForwardContext", "BatchDescriptor"}
# vLLM 0.13.0 to 0.33.0; later: max_kv_seq_len (not in 0.28.0, in 0.29.0),
# max_prefill_seq_len (not in 0.29.0, in 0.30.0). max_decode_seq_len stands in no release
# looked at.
SCALARS: Final = {
    # CommonAttentionMetadata.num_actual_tokens holds the padded count whenever a full graph
    # pads the batch, so the larger role is the true one.
    "num_actual_tokens": "num_padded_tokens",
    "num_input_tokens": "num_padded_tokens",
    "num_tokens": "num_padded_tokens",
    "total_num_scheduled_tokens": "num_scheduled_tokens",
    "num_reqs": "num_reqs",
    "num_decodes": "num_decodes",
    "num_decode_tokens": "num_decode_tokens",
    "num_prefills": "num_prefills",
    "num_prefill_tokens": "num_prefill_tokens",
    "max_query_len": "query_len",
    "query_len": "query_len",
    "max_seq_len": "seq_len",
    "max_prefill_seq_len": "seq_len",
    "max_decode_seq_len": "seq_len",
    "max_kv_seq_len": "seq_len",
}
# vLLM 0.13.0 to 0.33.0; seq_lens_cpu_upper_bound: not in 0.18.1, in 0.20.2.
SERIES: Final = {
    "seq_lens": LENGTHS,
    "seq_lens_cpu": LENGTHS,
    "seq_lens_cpu_upper_bound": LENGTHS,
    "query_start_loc": STARTS,
    "query_start_loc_cpu": STARTS,
    "num_computed_tokens_cpu": COMPUTED,
    "decode_lens": DECODES,
}
COUNTS: Final = {DECODES: "num_decode_tokens"}
"""What a series has one element for, where that is not each request: vLLM flattens decodes
with several tokens into one entry a token, or keeps one a request."""
# vLLM 0.13.0 to 0.33.0; decode_row_lens: not in 0.31.0, in 0.32.0.
TENSORS: Final = {
    "block_table": ("num_reqs", "max_blocks_per_req"),
    "block_table_tensor": ("num_reqs", "max_blocks_per_req"),
    "slot_mapping": ("num_padded_tokens",),
    "decode_row_lens": ("num_decode_rows",),
}
# vLLM 0.13.0 to 0.33.0, but unified_mla_attention (a function up to 0.18.1), _moe_forward*
# (functions of these names not in 0.16.0, in 0.18.1) and ROCm's indexer (not in 0.13.0, in
# 0.16.0).
ENTRIES: Final = {
    "unified_attention": ("query",),
    "unified_attention_with_output": ("query",),
    "unified_mla_attention": ("q", "kv_c_normed", "k_pe"),
    "unified_mla_attention_with_output": ("q", "kv_c_normed", "k_pe"),
    "moe_forward": ("hidden_states", "router_logits"),
    "moe_forward_shared": ("hidden_states", "router_logits"),
    "_moe_forward": ("hidden_states", "router_logits"),
    "_moe_forward_shared": ("hidden_states", "router_logits"),
    "sparse_attn_indexer": ("hidden_states",),
    "rocm_aiter_sparse_attn_indexer": ("hidden_states",),
    "Attention.forward": ("query",),
    "MLAAttention.forward": ("q",),
}
"""vLLM's custom ops and attention layers, and their activations: all tokens of the step,
padded. `key` and `value` are left out: in cross attention they are the encoder's."""
# vLLM 0.13.0 to 0.33.0; AttentionImplBase: not in 0.13.0, in 0.16.0; SparseMLAAttentionImpl:
# 0.16.0 to 0.24.0.
IMPLS: Final = {
    *("AttentionImpl", "AttentionImplBase", "MLAAttentionImpl", "SparseMLAAttentionImpl"),
}
# vLLM 0.13.0 to 0.33.0; forward_mqa and forward_mha: not in 0.13.0, in 0.16.0.
IMPL_ENTRIES: Final = {"forward": ("query", "q"), "forward_mqa": ("q",), "forward_mha": ("q",)}
"""Methods of vLLM's attention interface and what they name the query, whoever wrote them."""
# vLLM 0.13.0 to 0.33.0: vllm/config names its classes so; their fields hold for the whole run.
CONFIG_SUFFIX: Final = "Config"

# vLLM 0.13.0 to 0.33.0: utils/math_utils.py; their meaning is known, so their code is not
# followed.
MATH_UTILS: Final = {"cdiv", "round_up", "round_down", "next_power_of_2"}
# vLLM 0.13.0 to 0.33.0: distributed/parallel_state.py.
GROUPS: Final = {
    "get_tp_group": ("tensor_parallel_size", "_TP"),
    "get_dcp_group": ("decode_context_parallel_size", "_DCP"),
    "get_pcp_group": ("prefill_context_parallel_size", "_PCP"),
    "get_pp_group": ("pipeline_parallel_size", "_PP"),
}
"""vLLM's process groups: the function, the config's name of the size, the global it returns."""


def is_vllm(module: str) -> bool:
    """Whether a module name is vLLM's."""
    return module == "vllm" or module.startswith("vllm.")


def is_holder(module: str, name: str) -> bool:
    """Whether a class, by its module and name, is one whose attributes have roles."""
    return is_vllm(module) and (name.endswith("Metadata") or name in HOLDERS)


def holder(cls: type, attribute: str) -> bool:
    """Whether `cls` holds `attribute` as one of vLLM's metadata classes, or inherits it."""
    for base in cls.__mro__:
        if not is_holder(base.__module__, base.__name__):
            continue
        own = vars(base)
        if base is cls or attribute in own.get("__annotations__", ()):
            return True
    return False


def scope_role(role: str, class_name: str) -> str:
    """Requests counted by decode or prefill metadata are only the decodes or prefills."""
    if role == "num_reqs" and "Decode" in class_name:
        return "num_decodes"
    if role == "num_reqs" and "Prefill" in class_name:
        return "num_prefills"
    return role


def series_count(kind: str, owner: Hashable) -> tuple[Hashable, str]:
    """The key and role of the number of elements of a series of the metadata `owner`."""
    if kind in COUNTS:
        return (kind, "count", owner), COUNTS[kind]
    return ("reqs", owner), "num_reqs"


def entry(module: str, qualname: str, parameter: str) -> bool:
    """Whether `parameter` of this function holds all of a step's tokens, padded."""
    if not is_vllm(module):
        return False
    return parameter in ENTRIES.get(qualname, ())


def is_config(cls: type) -> bool:
    """A config object of vLLM: its fields do not change while the engine serves."""
    return any(
        is_vllm(base.__module__) and base.__name__.endswith(CONFIG_SUFFIX)
        for base in cls.__mro__
    )
