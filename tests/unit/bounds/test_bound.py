"""Bounds of whole sites: which way is taken, to the byte, and what demotes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.bounds import field_data
from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.trace.records import (
    Leaf,
    Limit,
    Provenance,
    Request,
    ScheduledRequest,
    Slot,
    Spec,
    Step,
)

CONTINUATION = "TurboQuantAttentionImpl._continuation_prefill"
DECODE = "TurboQuantAttentionImpl._decode_attention"
LIMITS: dict[str, Limit] = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 1024,
    "max_num_seqs": 32,
    "block_size": 16,
    "num_kv_heads": 2,
    "head_size": 64,
    "tensor_parallel_size": 1,
}


def _field(run: str, function: str, **changes: Limit) -> Bound:
    limits = {**field_data.LIMITS, **changes}
    given = {name: value for name, value in limits.items() if value is not None}
    return bound_site(
        field_data.requests(run, function),
        given,
        file=field_data.FILE,
        function=function,
        vllm_version="0.21.0",
    )


def test_the_extract_is_the_run_that_was_reported() -> None:
    grown = field_data.growths("grow")
    assert grown[1] == (10420224, 2146816)
    assert (
        max(a.bytes for a in field_data.requests("grow", CONTINUATION))
        == grown[-1][0]
        == 60358656
    )


@pytest.mark.parametrize("run", ["grow", "reserve-64MiB"])
def test_turboquant_continuation_on_the_h100(run: str) -> None:
    bound = _field(run, CONTINUATION)
    assert (bound.bytes, bound.grade) == (67108864, "proved")
    assert bound.known_site == "turboquant.continuation_prefill"
    assert bound.lever is not None
    assert bound.lever["flag"] == "--max-model-len"
    assert bound.observed == 60358656


def test_turboquant_decode_on_the_h100() -> None:
    bound = _field("grow", DECODE)
    assert (bound.bytes, bound.grade) == (2146816, "proved")


def test_a_rule_without_its_numbers_names_them() -> None:
    bound = _field("grow", CONTINUATION, num_kv_heads=None)
    assert bound.needs == ("num_kv_heads",)
    assert bound.grade != "proved"
    assert bound.known_site == "turboquant.continuation_prefill"


def test_a_rule_with_wrong_numbers_is_not_taken() -> None:
    bound = _field("grow", CONTINUATION, num_kv_heads=8)
    assert bound.grade != "proved"
    assert "does not give" in bound.why
    assert bound.bytes is not None
    assert bound.bytes >= 60358656


def test_a_rule_must_fit_the_step_and_not_only_some_length() -> None:
    requests = field_data.requests("grow", CONTINUATION)
    step = requests[-1].step
    assert step is not None
    alone = [ScheduledRequest(scheduled=528, computed=100)]
    other = msgspec.structs.replace(step, requests=alone)
    requests[-1] = msgspec.structs.replace(requests[-1], step=other)
    bound = bound_site(requests, field_data.LIMITS, file=field_data.FILE, function=CONTINUATION)
    assert bound.grade == "observed"


def _request(cached: int, scheduled: int = 64, **changes: object) -> Request:
    """A continuation of the testbed's kind: 2 heads, 64 wide, 2 bytes, blocks of 16."""
    rows = -(-cached // 16) * 16
    size = 2 * (-(-2 * rows * 64 * 2 // 256) * 256)
    fields: dict[str, object] = {
        "site": 1,
        "slot": Slot(),
        "bytes": size,
        "arena": 0,
        "phase": "serving",
        "step": Step(
            index=3, total_tokens=scheduled, num_reqs=1,
            requests=[ScheduledRequest(scheduled=scheduled, computed=cached)],
        ),
        "provenance": _provenance(cached),
        **changes,
    }  # fmt: skip
    return Request(**fields)  # type: ignore[arg-type]


def _provenance(cached: int, **changes: object) -> Provenance:
    fields: dict[str, object] = {
        "formula": "2 * round256(Hk * round_up(cached_len, block) * D * 2)",
        "leaves": [
            Leaf(name="Hk", kind="constant", value=2, source="self.num_kv_heads"),
            Leaf(name="block", kind="constant", value=16, source="self.block_size"),
            Leaf(name="D", kind="constant", value=64),
            Leaf(name="cached_len", kind="driver", value=cached, role="num_computed_tokens"),
        ],
        **changes,
    }
    return Provenance(**fields)  # type: ignore[arg-type]


def _bound(requests: list[Request], **changes: Limit) -> Bound:
    return bound_site(
        requests, {**LIMITS, **changes}, file="own/layer.py", function="Layer.forward"
    )


def test_the_source_proves_to_the_byte_beyond_what_was_seen() -> None:
    bound = _bound([_request(100), _request(300)])
    assert bound.grade == "proved"
    assert bound.bytes == 2 * 2 * 4096 * 64 * 2
    assert bound.at == {"num_computed_tokens": 4095} or bound.at["num_computed_tokens"] > 4080
    assert bound.formula is not None
    assert "max_model_len - 1" in bound.formula
    assert "num_kv_heads" in bound.formula
    assert "block_size" in bound.formula
    assert bound.constants == {"D": 64}
    assert bound.drivers == {"num_computed_tokens": "max_model_len - 1"}


def test_one_request_is_enough_for_the_source() -> None:
    assert _bound([_request(100)]).grade == "proved"


def _odd(**changes: Any) -> list[Request]:
    return [_request(100), _request(200, **changes)]


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        (_odd(bytes=1024), "gives"),
        (_odd(provenance=None), "no source was read for"),
        (_odd(provenance=_provenance(200, formula=None, stopped="layer.py:9: exec")), "exec"),
        (_odd(provenance=_provenance(201)), "scheduled 200"),
        (
            _odd(
                provenance=_provenance(
                    200, leaves=[*_provenance(200).leaves[:3], Leaf(name="cached_len", kind="unbound", value=200, why="a global")]  # noqa: E501
                )
            ),
            "a global",
        ),
        (
            [_request(100), _request(200, bytes=4 * 208 * 32 * 2, provenance=_provenance(200, leaves=[*_provenance(200).leaves[:2], Leaf(name="D", kind="constant", value=32), _provenance(200).leaves[3]]))],  # noqa: E501
            "D was 64 and 32",
        ),
        ([_request(5000, scheduled=1)], "above its limit"),
    ],
)  # fmt: skip
def test_what_demotes_the_source(requests: list[Request], why: str) -> None:
    bound = _bound(requests)
    assert bound.grade == "observed"
    assert why in bound.why
    assert bound.bytes == max(request.bytes for request in requests)


def test_branches_count_with_the_larger_one() -> None:
    other = Request(
        site=1, slot=Slot(), bytes=2560, arena=0, phase="warmup",
        provenance=Provenance(
            formula="round256(n * 256)",
            leaves=[Leaf(name="n", kind="driver", value=10, role="num_scheduled_tokens")],
        ),
    )  # fmt: skip
    bound = _bound([_request(100), other], max_num_batched_tokens=100000)
    assert (bound.bytes, bound.grade) == (25600000, "proved")
    assert _bound([_request(100), other]).bytes == 2 * 2 * 4096 * 64 * 2


def test_a_formula_that_is_not_monotone_is_searched_inside_its_range() -> None:
    def splits(rows: int) -> int:
        return rows * (2428 // rows) * 256

    request = Request(
        site=1, slot=Slot(), bytes=splits(7), arena=0, phase="capture",
        provenance=Provenance(
            formula="round256(rows * (2428 // rows) * 256)",
            leaves=[Leaf(name="rows", kind="driver", value=7, role="num_reqs")],
        ),
    )  # fmt: skip
    bound = _bound([request], max_num_seqs=1000)
    assert bound.grade == "proved"
    assert bound.bytes == max(splits(rows) for rows in range(1, 1001)) > splits(1000)


def test_two_drivers_are_bound_together() -> None:
    request = Request(
        site=1, slot=Slot(), bytes=256 * 10 * 10, arena=0, phase="serving",
        provenance=Provenance(
            formula="256 * d * p",
            leaves=[
                Leaf(name="d", kind="driver", value=10, role="num_decodes"),
                Leaf(name="p", kind="driver", value=10, role="num_prefills"),
            ],
        ),
    )  # fmt: skip
    bound = _bound([request])
    assert bound.bytes == 256 * 16 * 16, "both can be 32, but not at once"


def test_a_joint_limit_that_a_request_broke_is_dropped() -> None:
    leaves = [
        Leaf(name="d", kind="driver", value=20, role="num_decodes"),
        Leaf(name="p", kind="driver", value=20, role="num_prefills"),
    ]
    request = Request(
        site=1, slot=Slot(), bytes=256 * 400, arena=0, phase="capture",
        provenance=Provenance(formula="256 * d * p", leaves=leaves),
    )  # fmt: skip
    assert _bound([request]).bytes == 256 * 32 * 32


def test_equal_buffers_are_counted_in_the_formula() -> None:
    formula = "round256(Hk * round_up(cached_len, block) * D * 2)"
    twice = _provenance(100, formula=f"{formula} + {formula}")
    bound = _bound([_request(100, provenance=twice)])
    assert bound.formula is not None
    assert bound.formula.startswith("2 * round256(")
    assert bound.bytes == 2 * 2 * 4096 * 64 * 2


def test_a_constant_with_a_limits_name_but_another_value_does_not_hide_the_limit() -> None:
    leaves = [
        *_provenance(100).leaves[:1],
        Leaf(name="block_size", kind="constant", value=32),
        *_provenance(100).leaves[2:],
    ]
    formula = "2 * round256(Hk * round_up(cached_len, block_size) * D * 2)"
    size = 2 * 2 * 128 * 64 * 2
    request = _request(
        100, bytes=size, provenance=_provenance(100, formula=formula, leaves=leaves)
    )
    bound = _bound([request])
    assert bound.constants == {"D": 64, "block_size_here": 32}
    assert bound.bytes == 2 * 2 * 4096 * 64 * 2


def test_a_driver_whose_limit_is_unknown_is_named() -> None:
    limits = {name: value for name, value in LIMITS.items() if name != "max_model_len"}
    bound = bound_site([_request(100)], limits, file="a.py", function="f")
    assert bound.grade == "observed"
    assert bound.needs == ("max_model_len",)


def test_no_request_no_number() -> None:
    bound = _bound([])
    assert (bound.bytes, bound.grade) == (None, "observed")


def _batch(computed: list[int], scheduled: int) -> Step:
    requests = [ScheduledRequest(scheduled=scheduled, computed=c) for c in computed]
    return Step(
        index=1,
        total_tokens=scheduled * len(computed),
        num_reqs=len(computed),
        requests=requests,
    )


def _shaped(rows: int, batch: int) -> Request:
    """No source: float32 [rows, 48], where the step has `rows` tokens."""
    size = -(-rows * 48 * 4 // 256) * 256
    steps = _batch([8 * rows % 3000] * batch, rows // batch)
    if rows % batch:
        steps.requests[0] = ScheduledRequest(rows // batch + rows % batch, 8 * rows % 3000)
        steps.total_tokens = rows
    spec = Spec(shape=[rows, 48], dtype="float32", bytes=size)
    return Request(
        site=1, slot=Slot(), bytes=size, arena=0, phase="serving", step=steps, specs=[spec]
    )


WIDE = [(30, 2), (35, 4), (77, 7), (120, 3), (9, 1), (1000, 1), (640, 20), (20, 20), (3, 3)]
"""Tokens and requests of steps that leave no quantity within one rounding step."""


def test_shapes_are_fitted_where_no_source_can_be_read() -> None:
    requests = [_shaped(rows, batch) for rows, batch in WIDE]
    bound = _bound(requests)
    assert bound.grade == "fitted"
    assert bound.bytes == 1024 * 48 * 4
    assert _bound(requests[:3]).bytes == 1024 * 48 * 4
    assert _bound(requests[:2]).grade == "observed"


@pytest.mark.parametrize("without", [(1000, 1), (20, 20)])
def test_shapes_are_fitted_axis_by_axis_from_a_few_steps(without: tuple[int, int]) -> None:
    """48 columns are 48, where no quantity stood at 48 or was rounded to it."""
    bound = _bound([_shaped(rows, batch) for rows, batch in WIDE if (rows, batch) != without])
    assert (bound.grade, bound.bytes) == ("fitted", 1024 * 48 * 4)


def test_tokens_that_were_always_equal_in_all_requests_are_not_told_apart() -> None:
    """Then tokens are requests times tokens of one, of which the limits allow many more."""
    bound = _bound([_shaped(rows, batch) for rows, batch in WIDE if not rows % batch])
    assert bound.grade == "observed"
    assert "num_reqs * query_len, which needs far more" in bound.why


def test_a_fit_must_explain_warm_up_too() -> None:
    requests = [_shaped(rows, batch) for rows, batch in WIDE]
    capture = {"phase": "capture", "step": None}
    inside = msgspec.structs.replace(_shaped(512, 4), **capture)
    assert _bound([*requests, inside]).grade == "fitted"
    odd = msgspec.structs.replace(inside, bytes=500)
    assert "does not give 500 bytes in capture" in _bound([*requests, odd]).why
    above = msgspec.structs.replace(_shaped(2000, 4), **capture)
    assert _bound([*requests, above]).grade == "observed"


def test_a_fit_is_refused_where_the_batch_never_varied() -> None:
    requests = [_request(cached, provenance=None) for cached in (100, 200, 300, 400, 500, 640)]
    bound = _bound(requests)
    assert bound.grade == "observed"
    assert "num_reqs" in bound.why
    assert "varied too little" in bound.why


def test_bytes_are_fitted_without_shapes() -> None:
    requests = [
        _request(cached, provenance=None, step=_batch([cached] * batch, 7 + batch))
        for cached, batch in [(100, 1), (200, 2), (311, 3), (400, 1), (515, 5), (640, 9)]
    ]
    requests += [
        _request(1100, provenance=None, step=_batch([1100], 1000)),
        *(_request(3000, provenance=None, step=_batch([3000] * n, 1)) for n in (2, 17)),
    ]
    bound = _bound(requests)
    assert bound.grade == "fitted"
    assert bound.bytes == 2 * 2 * 4096 * 64 * 2
    assert bound.formula is not None
    assert "round_up(max_model_len - 1, 16)" in bound.formula


def test_a_rule_holds_for_each_of_the_calls_that_its_function_makes() -> None:
    """FlashAttention with DCP asks for all DCP heads, then for this rank's alone."""
    limits: dict[str, Limit] = {
        "max_num_batched_tokens": 4096,
        "max_model_len": 8192,
        "max_num_seqs": 8,
        "num_attention_heads": 16,
        "decode_context_parallel_size": 2,
        "head_size": 128,
        "dtype_size": 2,
        "max_cudagraph_capture_size": 512,
    }
    sizes = [100 * 16 * 2 * 128 * 2, 100 * 16 * 128 * 2]
    step = Step(index=1, total_tokens=100, num_reqs=1, requests=[ScheduledRequest(100, 200)])
    requests = [
        Request(site=1, slot=Slot(), bytes=size, arena=0, phase="serving", step=step)
        for size in sizes
    ]
    bound = bound_site(
        requests,
        limits,
        file="vllm/v1/attention/backends/flash_attn.py",
        function="FlashAttentionImpl._forward_with_dcp",
        vllm_version="0.21.0",
    )
    assert bound.known_site == "dcp.flash_attention"
    assert (bound.grade, bound.bytes) == ("proved", 4096 * 16 * 2 * 128 * 2)


def test_a_request_that_took_the_smaller_arm_keeps_the_grade() -> None:
    """A condition chose between shapes: each request equals an arm, the bound the larger."""
    requests = [_armed(100, 100), _armed(200, 200 * 4)]
    bound = _bound(requests)
    assert bound.grade == "proved"
    assert bound.bytes == _bound([_armed(200, 200 * 4)]).bytes


def test_a_request_that_equals_no_arm_demotes_the_site() -> None:
    assert _bound([_armed(100, 100 * 3)]).grade != "proved"


def _armed(cached: int, rows: int) -> Request:
    """A request of `rows` rows of 256 bytes, whose source has a small and a large arm."""
    leaf = Leaf(
        name="num_computed_tokens", kind="driver", value=cached, role="num_computed_tokens"
    )
    small, large = "num_computed_tokens * 256", "4 * num_computed_tokens * 256"
    return _request(
        cached,
        bytes=rows * 256,
        provenance=Provenance(
            formula=f"max({small}, {large})", arms=[small, large], leaves=[leaf]
        ),
    )
