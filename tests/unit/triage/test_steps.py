"""The scheduler dump: tokens of the step, by request, whatever the wrapping."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, bound_of, log_lines, log_of, read, wrapped
from wstrace.triage.diagnose.numbers import Given

DUMP = (
    "Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs="
    "[NewRequestData(req_id=chatcmpl-aa11bb22-0,prompt_token_ids_len=900,"
    "sampling_params=SamplingParams(n=1, stop_token_ids=[248044]),block_ids=([0, 1],),"
    "num_computed_tokens=0,lora_request=None)], scheduled_cached_reqs=CachedRequestData("
    "req_ids=['cmpl-cc33', 'cmpl-dd44'],resumed_req_ids=set(),new_block_ids=[([7, 8],), None],"
    "num_computed_tokens=[{computed}, 77],num_output_tokens=[0, 5]), num_scheduled_tokens="
    "{{cmpl-cc33: 3912, cmpl-dd44: 4, chatcmpl-aa11bb22-0: 900}}, "
    "total_num_scheduled_tokens=4816, "
    "scheduled_spec_decode_tokens={{cmpl-dd44: [-1, -1, -1]}}, num_common_prefix_blocks=[0])"
)


@pytest.mark.parametrize("width", [100_000, 120, 80, 57])
def test_requests_of_the_step(width: int) -> None:
    lines = log_lines([DUMP.format(computed=5088)], "EngineCore pid=3")
    lines += log_lines(Failure().traceback(), "EngineCore pid=3")
    (finding,) = read("\n".join(wrapped(lines, width))).findings
    assert finding.step is not None
    assert finding.step.total_tokens == 4816
    requests = {(r.scheduled, r.computed) for r in finding.step.requests}
    assert requests == {(3912, 5088), (4, 77), (900, 0)}
    assert finding.phase == "serving"


def test_bytes_and_bound_from_the_message_and_the_dump_alone() -> None:
    """A run on an H100: 5088 cached tokens asked for 10,420,224 bytes.

    5088 itself may be the block: 7 of them hold 32767 tokens, 7 * 5088 * 512 * 2 * 2 bytes.
    """
    failure = Failure(required=9.94, current=2.05)
    lines = log_lines(
        [
            "Available KV cache memory: 38.58 GiB",
            "non-default args: {'max_model_len': 32768}",
            DUMP.format(computed=5088),
            *failure.traceback(),
        ],
        "EngineCore pid=3",
    )
    (finding,) = read("\n".join(lines)).findings
    assert finding.serving_bytes == 10_420_224
    assert log_of(finding).required_exact
    assert (bound_of(finding).bytes, bound_of(finding).grade) == (72_941_568, "fitted")


def test_the_block_size_is_not_assumed_without_the_start_up() -> None:
    lines = [DUMP.format(computed=4096), *Failure().traceback()]
    (finding,) = read("\n".join(lines), Given({"max_model_len": 32768})).findings
    assert bound_of(finding).bytes is None
    assert bound_of(finding).needs == ("block_size",)
