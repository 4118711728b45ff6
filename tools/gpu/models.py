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
FP8_BLOCK: Final[dict[str, Any]] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}
# Marlin pads the experts' 720 to 768, a multiple of 128. A hidden_size that it pads too (2880
# to 3072) cannot be served by this model: its router is handed the padded activations and dies.
MXFP4: Final[dict[str, Any]] = {
    "moe_intermediate_size": 720,
    "quantization_config": {"quant_method": "mxfp4"},
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
# Three layers, one of each compress ratio; small enough that each server needs a few GiB.
DEEPSEEK_V4: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_lora_rank": 512,
    "o_groups": 8,
    "qk_rope_head_dim": 64,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 512,
    "intermediate_size": 512,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128],
    "compress_rope_theta": 160000,
    "rope_theta": 10000,
    "num_hash_layers": 0,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
    "vocab_size": 4096,
    "max_position_embeddings": 65536,
    "rope_scaling": {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "quantization_config": FP8_BLOCK | {"scale_fmt": "ue8m0"},
    "expert_dtype": "fp8",
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "qwen3": COMMON,
    "qwen3-moe": COMMON | MOE,
    "qwen3-moe-fp8-block": COMMON | MOE | {"quantization_config": FP8_BLOCK},
    "qwen3-moe-mxfp4": COMMON | MOE | MXFP4,
    "qwen3-one-kv-head": COMMON | {"num_key_value_heads": 1},
    "mla": COMMON | MLA,
    "sparse-mla": COMMON | SPARSE_MLA,
    "deepseek-v4": DEEPSEEK_V4,
    "deepseek-v4-top-6": DEEPSEEK_V4 | {"num_experts_per_tok": 6},
    "tiny": {},
}


def make(folder: Path, name: str) -> Path:
    """Write model `name` of `MODELS` into `folder/name`; serve it with dummy weights."""
    return build_model(folder / name, **MODELS[name])
