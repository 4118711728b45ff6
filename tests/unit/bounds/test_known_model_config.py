"""Hugging Face configs read into the names of formulas; numbers from the models' cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wstrace.bounds.by_rule import rule_bound
from wstrace.errors import WstraceError
from wstrace.known_sites.known import require
from wstrace.vllm.model_config import names_of, read_model_config

QWEN3_30B = {
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}
MIXTRAL = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def test_heads_and_experts_are_those_of_one_rank() -> None:
    names = names_of(QWEN3_30B, {"tensor_parallel_size": 2})
    assert names["num_attention_heads"] == 16
    assert names["num_kv_heads"] == 2
    assert names["head_size"] == 128
    assert names["moe_intermediate_size"] == 384
    assert names["hidden_size"] == 2048
    assert (names["num_experts"], names["top_k"]) == (128, 8)


def test_expert_parallelism_leaves_an_expert_whole() -> None:
    names = names_of(QWEN3_30B, {"tensor_parallel_size": 2, "expert_parallel_size": 2})
    assert names["moe_intermediate_size"] == 768


def test_data_parallel_ranks_share_an_expert_without_expert_parallelism() -> None:
    sizes = {"tensor_parallel_size": 2, "data_parallel_size": 2}
    assert names_of(QWEN3_30B, sizes)["moe_intermediate_size"] == 192


def test_kv_heads_are_repeated_when_ranks_outnumber_them() -> None:
    assert names_of(QWEN3_30B, {"tensor_parallel_size": 8})["num_kv_heads"] == 1


def test_mla_has_one_latent_head_as_wide_as_its_cache() -> None:
    names = names_of(DEEPSEEK_V3, {"tensor_parallel_size": 4})
    assert (names["num_kv_heads"], names["head_size"]) == (1, 576)
    assert (names["num_attention_heads"], names["num_experts"]) == (32, 256)


def test_an_expert_width_may_stand_under_the_layers_key() -> None:
    names = names_of(MIXTRAL, {})
    assert names["moe_intermediate_size"] == 14336
    assert names["head_size"] == 128


def test_a_dense_model_has_no_expert_width() -> None:
    dense = {k: v for k, v in MIXTRAL.items() if k != "num_local_experts"}
    assert "moe_intermediate_size" not in names_of(dense, {})


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_a_nested_config_counts(key: str) -> None:
    names = names_of({"hidden_size": 1, key: QWEN3_30B, "vision_config": {"head_dim": 7}}, {})
    assert (names["hidden_size"], names["head_size"]) == (2048, 128)


def test_nesting_may_be_two_deep() -> None:
    names = names_of({"thinker_config": {"text_config": QWEN3_30B}}, {})
    assert names["num_kv_heads"] == 4


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"compress_ratios": [1, 4, 128, 0]}, 4),
        ({"compress_ratios": [0, 1, 4], "architectures": ["DeepseekV41ForCausalLM"]}, 1),
    ],
)
def test_the_smallest_ratio_that_compresses_counts(
    config: dict[str, object], ratio: int
) -> None:
    assert names_of(config, {})["compress_ratio"] == ratio


def test_what_the_config_lacks_stays_absent() -> None:
    assert names_of({}, {}) == {}
    assert names_of({"hidden_size": None, "head_dim": True, "kv_lora_rank": "512"}, {}) == {}


def test_limits_of_serving_are_never_taken_from_the_model() -> None:
    names = names_of({**QWEN3_30B, "max_position_embeddings": 40960}, {})
    assert "max_model_len" not in names


def test_a_bound_from_a_config_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_30B))
    values = {"max_num_batched_tokens": 8192, "tensor_parallel_size": 2}
    worst = rule_bound(require("moe.triton"), values | read_model_config(path, values))
    assert worst.bytes == 2 * 8192 * 8 * 2048 * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[1]", "holds no JSON object"), (None, "cannot be read")],
)
def test_a_config_that_cannot_be_read(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(WstraceError, match=said) as error:
        read_model_config(path, {})
    assert "config.json" in error.value.hint
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("heads", "ranks", "each"),
    [(5, 1, 5), (5, 5, 1), (5, 10, 1), (8, 4, 2), (5, 4, None), (6, 4, None), (3, 4, None)],
)
def test_kv_heads_are_shared_or_repeated_evenly_or_refused(
    heads: int, ranks: int, each: int | None
) -> None:
    """As vLLM's QKVParallelLinear: one number divides the other, or the engine won't start."""
    config = {"num_attention_heads": 120, "num_key_value_heads": heads}
    sizes = {"tensor_parallel_size": ranks}
    if each is not None:
        assert names_of(config, sizes)["num_kv_heads"] == each
        return
    with pytest.raises(WstraceError, match=f"num_kv_heads {heads} ") as error:
        names_of(config, sizes)
    assert "--set num_kv_heads=N" in error.value.hint
    assert "num_kv_heads" not in names_of(config, {**sizes, "num_kv_heads": 2})


def test_a_head_count_set_by_hand_is_not_divided() -> None:
    given = {"num_attention_heads": 11, "linear_num_heads": 11, "num_kv_heads": 2}
    names = names_of(QWEN3_30B, {"tensor_parallel_size": 3, **given})
    assert "num_attention_heads" not in names
    assert names["hidden_size"] == 2048


@pytest.mark.parametrize(("path", "what"), [("/dev/zero", "a device"), ("/", "a folder")])
def test_only_a_plain_file_is_read(path: str, what: str) -> None:
    with pytest.raises(WstraceError, match=f"cannot be read: {what}, not a file"):
        read_model_config(Path(path), {})


def test_a_file_too_large_for_a_config_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_30B))
    with path.open("r+b") as file:
        file.truncate((16 << 20) + 1)  # sparse
    with pytest.raises(WstraceError, match=r"is larger than 16\.00 MiB"):
        read_model_config(path, {})


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(WstraceError, match="does not divide by 3"):
        names_of(QWEN3_30B, {"tensor_parallel_size": 3})
