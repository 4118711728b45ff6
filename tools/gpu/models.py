"""The dummy-weight models of the scenarios, made without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from wstrace.testbed.model import build_model

COMMON: Final[dict[str, Any]] = {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
MOE: Final[dict[str, Any]] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 32,
    "num_experts_per_tok": 8,
}
MLA: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "head_dim": 64,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 704,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "norm_topk_prob": False,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
}
SPARSE_MLA: Final[dict[str, Any]] = MLA | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "n_group": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "scoring_func": "sigmoid",
    "topk_group": 2,
    "topk_method": "noaux_tc",
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "qwen3": COMMON,
    "qwen3-moe": COMMON | MOE,
    "qwen3-one-kv-head": COMMON | {"num_key_value_heads": 1},
    "mla": COMMON | MLA,
    "sparse-mla": COMMON | SPARSE_MLA,
    "tiny": {},
}


def make(folder: Path, name: str) -> Path:
    """Write model `name` of `MODELS` into `folder/name`; serve it with dummy weights."""
    return build_model(folder / name, **MODELS[name])
