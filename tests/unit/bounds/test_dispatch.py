"""No `proved` where tokens reach the experts by a way whose rows no rule was read for."""

from __future__ import annotations

import pytest

from wstrace.bounds.bound import Bound
from wstrace.bounds.ways import bound_site
from wstrace.trace.records import Request, Slot
from wstrace.triage.diagnose.numbers import Given, values
from wstrace.triage.extract.engine_settings import Value

ROW = 7168 * 2
ENGINE = {
    "max_num_batched_tokens": 8192, "top_k": 8, "num_experts": 256, "hidden_size": 7168,
    "moe_intermediate_size": 2048, "data_parallel_size": 2, "tensor_parallel_size": 8,
    "sequence_parallel_size": 8, "expert_parallel_size": 16, "dtype_size": 2,
    "num_redundant_experts": 0,
}  # fmt: skip
GATHER = "MoEPrepareAndFinalizeNaiveDPEPModular"
AG = "allgather_reducescatter"


def bound(dispatch: list[str], backend: str | None, **numbers: int) -> Bound:
    """One request of a row, from FlashInfer's experts."""
    classes = {"fused_experts": ["FlashInferExperts"]}
    classes |= {"prepare_finalize": dispatch} if dispatch else {}
    request = Request(
        site=1, slot=Slot(), bytes=ROW, arena=ROW, phase="profile", classes=classes
    )  # fmt: skip
    limits = {**ENGINE, **numbers} | ({"all2all_backend": backend} if backend else {})
    return bound_site(
        [request],
        limits,
        file="vllm/model_executor/layers/fused_moe/modular_kernel.py",
        function="FusedMoEKernelModularImpl._allocate_buffers",
        vllm_version="0.33.0",
    )


@pytest.mark.parametrize(
    ("dispatch", "backend"),
    [
        ([GATHER], AG),
        ([], AG),
        ([GATHER], None),
        (["DeepEPHTPrepareAndFinalize"], "deepep_high_throughput"),
    ],
)
def test_a_dispatch_that_was_read_is_proved(dispatch: list[str], backend: str | None) -> None:
    found = bound(dispatch, backend)
    assert (found.grade, found.bytes) == ("proved", 2 * 8192 * ROW)


@pytest.mark.parametrize(
    ("dispatch", "backend"),
    [
        (["DeepEPV2PrepareAndFinalize"], "deepep_v2"),
        (["MoonEPPrepareAndFinalize"], "moonep"),
        (["MoriPrepareAndFinalize"], "mori_high_throughput"),
        (
            ["PassThroughPrepareAndFinalize", "MoEPrepareAndFinalizeNoDPEPModular"],
            "passthrough",
        ),
        (["ANewPrepareAndFinalize"], AG),
        ([GATHER], "a_new_backend"),
        ([], "deepep_v2"),
        ([], None),
    ],
)
def test_one_that_was_not_read_is_not(dispatch: list[str], backend: str | None) -> None:
    found = bound(dispatch, backend)
    assert found.grade != "proved"
    assert "holds only without DeepEP v2" in found.why


def test_an_old_trace_is_proved_where_no_all2all_can_be() -> None:
    alone = {"expert_parallel_size": 1, "sequence_parallel_size": 1, "data_parallel_size": 1}
    assert bound([], None, **alone).grade == "proved"
    assert bound([], "passthrough", **alone).grade != "proved"


def test_two_sided_all2all_hands_over_every_ranks_whole_step() -> None:
    name = "FlashInferNVLinkTwoSidedPrepareAndFinalize"
    found = bound([name], "flashinfer_all2allv", sequence_parallel_size=1)
    assert (found.grade, found.bytes) == ("proved", 16 * 8192 * ROW)


@pytest.mark.parametrize(
    ("backend", "split", "unread"),
    [
        (AG, 8, 0),
        ("flashinfer_all2allv", None, 0),
        ("mori_high_throughput", None, 1),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("by_person", [True, False])
def test_who_names_the_all2all_of_a_log_decides_its_rows(
    backend: str | None, split: int | None, unread: int | None, by_person: bool
) -> None:
    flags: dict[str, Value] = {
        "tensor_parallel_size": 8, "data_parallel_size": 2, "enable_expert_parallel": True
    }  # fmt: skip
    named = {"all2all_backend": backend} if backend else {}
    if by_person:
        found = values(
            {**flags, "all2all_backend": "mori"} if named else flags, Given(words=named)
        )
    else:
        found = values({**flags, **named}, Given())
    assert found["expert_parallel_size"] == 16
    assert found.get("sequence_parallel_size") == split
    assert found.get("unread_dispatch") == unread
