"""A config against live limits: what is re-evaluated, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.reserve.examples import CONTINUATION, LIMITS, SCRATCH, config
from wstrace.errors import WstraceError
from wstrace.reserve.config import SlotReserve, evaluate, mismatch, model_digest
from wstrace.trace.records import Limit, Slot


def _live(**changes: Limit) -> dict[str, Limit]:
    return {**LIMITS, **changes}


def _continuation(max_model_len: int, block: int = 16) -> int:
    """The site's need in Python's own arithmetic: 2 KV heads, 128 wide, 2 bytes."""
    rows = -(-(max_model_len - 1) // block) * block
    return 2 * (-(-(2 * rows * 128 * 2) // 256) * 256)


def _sizes(live: dict[str, Limit], /, **changes: object) -> dict[Slot, int]:
    return {slot.slot: slot.bytes for slot in evaluate(config(**changes), live)}


def test_the_recorded_limits_give_the_recorded_bytes() -> None:
    assert _sizes(_live()) == {Slot(0, 0): 4194304, Slot(0, 1): 4194304}
    assert _continuation(4096) == 4194304


def test_a_longer_model_len_grows_by_the_formula() -> None:
    sizes = _sizes(_live(max_model_len=10000))
    assert sizes == dict.fromkeys(sizes, _continuation(10000))


def test_a_larger_block_size_rounds_up_further() -> None:
    assert _sizes(_live(block_size=4095 * 2))[Slot(0, 0)] == _continuation(4096, 8190)


def test_a_shorter_model_len_shrinks_but_observed_bytes_stay() -> None:
    sizes = _sizes(_live(max_model_len=1024))
    assert sizes == {Slot(0, 0): _continuation(1024), Slot(0, 1): 3000000}


def test_never_below_the_recorded_bytes_where_nothing_shrank() -> None:
    by_hand = [SlotReserve(bytes=9 << 20)]
    assert _sizes(_live(max_model_len=4097), slots=by_hand)[Slot(0, 0)] == 9 << 20
    raised = msgspec.structs.replace(CONTINUATION, bytes=9 << 20)
    assert _sizes(_live(), slots=[], sites=[raised]) == {}
    assert evaluate(config(slots=[], sites=[raised]), _live(), [Slot()])[0].bytes == 9 << 20


def test_what_vllm_knows_only_after_profiling_is_taken_as_recorded() -> None:
    """A reserve is applied before the metadata builders are made. 128 tokens a decode: the
    backend's, which a start with other requests keeps."""
    site = msgspec.structs.replace(
        SCRATCH,
        grade="proved",
        formula="num_decode_tokens * 256",
        constants={},
        drivers={"num_decode_tokens": "max_num_seqs * max(1, reorder_batch_threshold)"},
        bytes=8 * 128 * 256,
        cover="bound",
    )
    recorded: dict[str, Limit] = {**LIMITS, "max_num_seqs": 8, "reorder_batch_threshold": 128}
    made = config(sites=[site], slots=[], limits=recorded)
    live: dict[str, Limit] = {**LIMITS, "max_num_seqs": 16}
    assert evaluate(made, live, [Slot()])[0].bytes == 16 * 128 * 256
    read = evaluate(made, {**live, "reorder_batch_threshold": 512}, [Slot()])
    assert read[0].bytes == 16 * 512 * 256


@pytest.mark.parametrize(("padded", "refused"), [(64, False), (128, True)])
def test_graphs_that_pad_above_the_requests_are_a_new_quantity(
    padded: int, refused: bool
) -> None:
    """Made under PIECEWISE and started under FULL, where 64 requests are padded to 128."""
    made = config(limits={**LIMITS, "mixed_graph_tokens": 0})
    live = _live(max_num_seqs=64, mixed_graph_tokens=padded)
    why = mismatch(made, live, made.model.digest)
    assert (why is not None and "full graphs of mixed steps" in why) == refused


def test_a_smaller_kv_cache_is_no_reason_to_reserve_less() -> None:
    recorded: dict[str, Limit] = {
        **LIMITS, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": True,
    }  # fmt: skip
    live = {**recorded, "kv_cache_memory_bytes": 1 << 29, "enforce_eager": False}
    by_hand = [SlotReserve(bytes=9 << 20)]
    assert _sizes(live, slots=by_hand, limits=recorded)[Slot(0, 0)] == 9 << 20


def test_a_slot_that_the_config_does_not_know_gets_every_site() -> None:
    found = evaluate(config(), _live(max_model_len=64), [Slot(1, 0)])
    assert {s.slot: s.bytes for s in found}[Slot(1, 0)] == 3000000


def test_cover_observed_is_not_evaluated_again() -> None:
    site = msgspec.structs.replace(CONTINUATION, cover="observed", bytes=131072)
    sizes = _sizes(_live(max_model_len=99999), sites=[site], slots=[SlotReserve(bytes=131072)])
    assert sizes == {Slot(0, 0): 131072}


def test_the_maximum_need_not_be_at_the_end_of_the_range() -> None:
    site = msgspec.structs.replace(
        SCRATCH, grade="fitted", cover="bound", bytes=0, slots=[],
        formula="rows * (100 // rows)", drivers={"rows": "max_num_seqs"}, lowest={"rows": 1},
    )  # fmt: skip
    expected = max(rows * (100 // rows) for rows in range(1, 9))
    assert evaluate(config(sites=[site], slots=[]), _live(), [Slot()])[0].bytes == expected


def test_joint_limits_hold() -> None:
    site = msgspec.structs.replace(
        SCRATCH, grade="fitted", cover="bound", bytes=0, slots=[],
        formula="a * b", drivers={"a": "max_num_seqs", "b": "max_num_seqs"},
        joint=["a + b - max_num_seqs"],
    )  # fmt: skip
    expected = max(a * b for a in range(9) for b in range(9) if a + b <= 8)
    assert evaluate(config(sites=[site], slots=[]), _live(), [Slot()])[0].bytes == expected


def test_a_missing_limit_is_named() -> None:
    limits = _live()
    del limits["num_kv_heads"]
    with pytest.raises(WstraceError, match="needs num_kv_heads"):
        evaluate(config(), limits)


def test_an_absurd_result_is_refused() -> None:
    with pytest.raises(WstraceError, match="would need"):
        evaluate(config(), _live(max_model_len=1 << 42))


def test_the_reason_names_the_site() -> None:
    assert "Attention._continuation: 2 * round256(" in evaluate(config(), _live())[0].why


@pytest.mark.parametrize(
    "name", ["num_kv_heads", "head_size", "dtype", "cache_dtype", "tensor_parallel_size"]
)
def test_another_layout_is_a_mismatch(name: str) -> None:
    other: Limit = "fp8" if isinstance(LIMITS[name], str) else 7
    live = _live(**{name: other})
    told = mismatch(config(), live, model_digest(live))
    assert told is not None
    assert f"{name} is {other}, the reserve config holds for {LIMITS[name]}" in told


@pytest.mark.parametrize(
    "name", ["max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"]
)
def test_another_size_is_no_mismatch(name: str) -> None:
    live = _live(**{name: 77})
    assert mismatch(config(), live, model_digest(live)) is None


def test_a_number_that_only_one_side_knows_is_a_mismatch() -> None:
    live = _live(num_experts=8, data_parallel_size=2)
    told = mismatch(config(), live, model_digest(live))
    assert told is not None
    assert "data_parallel_size, num_experts" in told


def test_drafts_that_the_recorded_run_did_not_have_are_a_mismatch() -> None:
    told = mismatch(config(), _live(num_speculative_tokens=3), model_digest(LIMITS))
    assert told is not None
    assert "speculative" in told
    assert mismatch(config(), _live(num_speculative_tokens=0), model_digest(LIMITS)) is None


def test_graphs_wider_than_a_step_need_their_number_recorded() -> None:
    live = _live(max_cudagraph_capture_size=513)
    assert "max_cudagraph_capture_size" in str(mismatch(config(), live, model_digest(LIMITS)))
    live = _live(max_cudagraph_capture_size=512)
    assert mismatch(config(), live, model_digest(LIMITS)) is None
