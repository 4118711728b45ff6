"""The range of every role, and what several roles cannot be at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from wstrace.bounds.evidence import rows_of
from wstrace.bounds.limits import joint_limits, role_limits
from wstrace.expr import expression
from wstrace.trace.records import Limit, ScheduledRequest, Step
from wstrace.vllm.roles import ROLES

LIMITS: dict[str, Limit] = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 1000,
    "max_num_seqs": 32,
    "block_size": 16,
}


def _maximum(role: str, **changes: Limit) -> int | None:
    return role_limits({**LIMITS, **changes})[role].maximum


FULL: dict[str, Limit] = {
    "cudagraph_mode": "FULL",
    "cudagraph_capture_sizes": [1, 8, 48, 96],
    "max_cudagraph_capture_size": 96,
}


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 48),  # 32 requests in a graph of 48
        ({"cudagraph_mode": "FULL_AND_PIECEWISE"}, 32),
        ({"max_num_seqs": 48}, 48),
        ({"num_speculative_tokens": 1}, 96),  # 64 tokens
        ({"num_speculative_tokens": 1, "parallel_drafting": True}, 96),  # 96 tokens
        ({"num_speculative_tokens": 3}, 128),  # beyond the last graph nothing is padded
        ({"max_num_seqs": 47, "tensor_parallel_size": 2}, 48),
        ({"max_num_seqs": 49}, 96),
        ({"data_parallel_size": 2}, 96),  # another rank's step may be longer
        ({"cudagraph_capture_sizes": None}, 96),
        ({"kv_lora_rank": 512, "reorder_batch_threshold": 1}, 48),
        ({"kv_lora_rank": 512, "reorder_batch_threshold": 2}, 96),  # a wider decode
    ],
)
def test_a_full_graph_pads_decodes_to_its_next_size(
    changes: dict[str, Limit], most: int
) -> None:
    assert _maximum("num_decode_tokens", **(FULL | changes)) == most


def test_every_role_has_a_limit_and_a_source() -> None:
    found = role_limits(LIMITS)
    assert found.keys() == ROLES.keys()
    assert all(limit.source and limit.maximum for limit in found.values())


def test_the_docs_have_every_role_and_its_limit() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bounds.md").read_text("utf-8")
    limits = role_limits(LIMITS)
    assert all(role in page for role in ROLES)
    for role in ("num_computed_tokens", "query_len", "total_seq_len"):
        assert limits[role].expression in page


@pytest.mark.parametrize(
    ("role", "changes", "maximum"),
    [
        ("num_computed_tokens", {}, 4095),
        ("seq_len", {}, 4096),
        ("query_len", {}, 1000),
        ("query_len", {"max_num_batched_tokens": 9000}, 4096),
        ("num_scheduled_tokens", {}, 1000),
        ("num_padded_tokens", {}, 1000),
        ("num_padded_tokens", {"tensor_parallel_size": 3}, 1002),
        ("num_padded_tokens", {"max_cudagraph_capture_size": 1024}, 1024),
        ("num_padded_tokens", {"max_cudagraph_capture_size": 512}, 1000),
        ("num_reqs", {}, 32),
        ("num_decode_tokens", {}, 32),
        ("num_decode_tokens", {"num_speculative_tokens": 3}, 128),
        ("num_decode_tokens", {"num_speculative_tokens": 40}, 1000),
        ("num_decode_tokens", {"reorder_batch_threshold": 16}, 512),
        ("num_decode_tokens", {"reorder_batch_threshold": 2, "num_speculative_tokens": 3}, 128),
        ("num_decode_rows", {}, 32),
        ("num_decode_rows", {"num_speculative_tokens": 3}, 128),
        ("num_decode_rows", {"num_speculative_tokens": 31}, 32 * 32),
        ("num_decode_rows", {"reorder_batch_threshold": 16}, 32),
        ("num_decode_tokens", {"kv_lora_rank": 512}, 1000),
        ("num_decode_tokens", {"kv_lora_rank": 512, "reorder_batch_threshold": 1}, 32),
        ("num_decode_tokens", {"num_speculative_tokens": 3, "parallel_drafting": True}, 224),
        ("total_seq_len", {}, 32 * 4096),
        ("max_blocks_per_req", {}, 256),
        ("max_blocks_per_req", {"block_size": 48}, 128),
        ("max_blocks_per_req", {"decode_context_parallel_size": 2}, 256),
        ("max_blocks_per_req", {"num_speculative_tokens": 300}, 556),
        ("max_blocks_per_req", {"kernel_block_size": 16}, 256),
        ("max_blocks_per_req", {"block_size": 64, "kernel_block_size": 16}, 512),
        ("max_blocks_per_req", {"block_size": 784, "kernel_block_size": 16}, 6272),
        ("max_blocks_per_req", {"max_encoder_len": 6000}, 384),
    ],
)
def test_maxima(role: str, changes: dict[str, Limit], maximum: int) -> None:
    assert _maximum(role, **changes) == maximum


def test_a_missing_number_is_named() -> None:
    limit = role_limits({"max_num_seqs": 8})["query_len"]
    assert limit.maximum is None
    assert limit.needs == ("max_model_len", "max_num_batched_tokens")


def test_joint_limits_hold_in_a_mixed_step() -> None:
    step = Step(
        index=1, total_tokens=90, num_reqs=4,
        requests=[
            ScheduledRequest(scheduled=1, computed=700),
            ScheduledRequest(scheduled=4, computed=4000, draft=3),
            ScheduledRequest(scheduled=80, computed=0, new=True),
            ScheduledRequest(scheduled=5, computed=64),
        ],
    )  # fmt: skip
    limits = {**LIMITS, "num_speculative_tokens": 3}
    largest, *single = rows_of(step)
    assert largest["num_decodes"] == 2
    assert largest["num_decode_tokens"] == 5
    assert largest["num_prefill_tokens"] == 85
    assert largest["total_seq_len"] == 4854
    for row in single:
        for text in joint_limits(row, limits):
            values = {**row, **{k: v for k, v in limits.items() if isinstance(v, int)}}
            assert expression.parse(text).evaluate(values) <= 0, text


def test_joint_limits_name_only_the_roles_asked_for() -> None:
    assert joint_limits(["num_decodes", "num_prefills"], LIMITS) == [
        "num_decodes + num_prefills - max_num_seqs"
    ]
    assert joint_limits(["num_decodes"], LIMITS) == []


def test_rows_of_unknown_steps_are_empty() -> None:
    assert rows_of(None) == ()
    assert rows_of(Step(index=1)) == ()
    assert rows_of(Step(index=1, total_tokens=4, num_reqs=2)) == (
        {"num_scheduled_tokens": 4, "num_reqs": 2},
    )


@pytest.mark.parametrize("drafts", range(8))
@pytest.mark.parametrize("budget", [8, 9, 15, 24, 100])
def test_no_padded_batch_has_more_rows_than_its_limit(drafts: int, budget: int) -> None:
    """Every batch of decodes that the token budget lets through, tried one by one."""
    seqs = 8
    rows = 0
    for longest in range(1, drafts + 2):
        for count in range(1, seqs + 1):
            if count + longest - 1 <= budget:
                rows = max(rows, count * longest)
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": seqs}
    found = _maximum("num_decode_rows", num_speculative_tokens=drafts, **limits)
    assert found is not None
    assert found >= rows
    if 2 * (drafts + 1) <= budget + 1:
        assert found == rows
