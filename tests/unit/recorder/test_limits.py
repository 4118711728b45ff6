"""Limits that vLLM knows only late: those of the runner's metadata builders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.vllm_state.config_limits import read_limits, runner_limits


def worker(*thresholds: int | None) -> Any:
    """One KV cache group for each threshold, with one builder, as vLLM's AttentionGroup."""
    groups = [
        [SimpleNamespace(metadata_builders=[SimpleNamespace(reorder_batch_threshold=t)])]
        for t in thresholds
    ]
    return SimpleNamespace(model_runner=SimpleNamespace(attn_groups=groups))


@pytest.mark.parametrize(
    ("thresholds", "found"),
    [
        ((1, 512), {"reorder_batch_threshold": 512}),
        ((None, 3), {"reorder_batch_threshold": 3}),
        ((None,), {}),
        ((), {}),
    ],
)
def test_the_widest_decode_of_any_builder_counts(
    thresholds: tuple[int | None, ...], found: dict[str, int]
) -> None:
    assert runner_limits(worker(*thresholds)) == found


def test_the_smallest_block_of_any_builder_counts() -> None:
    """An MLA layer of 64-token blocks beside an indexer whose kernel takes single tokens."""
    builders = [
        SimpleNamespace(
            reorder_batch_threshold=1, kv_cache_spec=SimpleNamespace(block_size=size)
        )
        for size in (64, 1, 128)
    ]
    groups = [[SimpleNamespace(metadata_builders=[builder])] for builder in builders]
    found = runner_limits(SimpleNamespace(model_runner=SimpleNamespace(attn_groups=groups)))
    assert found == {"reorder_batch_threshold": 1, "kernel_block_size": 1}


def test_a_runner_without_groups_has_no_threshold() -> None:
    assert runner_limits(SimpleNamespace()) == {}


def test_what_widens_a_decode_and_adds_experts_is_read() -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(),
        parallel_config=SimpleNamespace(eplb_config=SimpleNamespace(num_redundant_experts=32)),
        speculative_config=SimpleNamespace(num_speculative_tokens=4, parallel_drafting=True),
    )
    limits = read_limits(config)
    names = ("num_redundant_experts", "num_speculative_tokens", "parallel_drafting")
    assert [limits[name] for name in names] == [32, 4, True]


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"compress_ratios": [0, 4, 128]}, 4),  # DeepSeek-V4 on an H200, vLLM 0.22.1
        ({"compress_ratios": (128, 1, 0), "architectures": ["DeepseekV4ForCausalLM"]}, 128),
        ({"compress_ratios": [0, 1, 4], "architectures": ["DeepseekV41ForCausalLM"]}, 1),
        ({"compress_ratios": [0, 1]}, None),
        ({}, None),
    ],
)
def test_the_ratio_of_compressed_layers_is_read_from_their_list(
    config: dict[str, Any], ratio: int | None
) -> None:
    text = SimpleNamespace(**config)
    read = read_limits(
        SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=text), parallel_config=SimpleNamespace()
        )
    )
    assert read.get("compress_ratio") == ratio
