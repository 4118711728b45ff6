"""The recorder's longest continuation: a decode step at a long context continues nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.vllm_state.scheduler_output import longest_continuation


def _output(
    new: dict[str, tuple[int, int]],
    cached: dict[str, tuple[int, int]],
    drafts: dict[str, list[int]] | None = None,
) -> Any:
    """A SchedulerOutput: per request (tokens scheduled, tokens computed before)."""
    scheduled = {k: v[0] for k, v in (new | cached).items()}
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=k, num_computed_tokens=v[1]) for k, v in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_computed_tokens=[v[1] for v in cached.values()]
        ),
        scheduled_spec_decode_tokens=drafts or {},
    )


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param(_output({"a": (256, 0)}, {}), 0, id="first chunk"),
        pytest.param(_output({}, {"a": (256, 512)}), 512, id="later chunk"),
        pytest.param(_output({}, {"a": (1, 4000)}), 0, id="decode"),
        pytest.param(_output({"w": (64, 3968)}, {"a": (1, 4000)}), 3968, id="warm prefix"),
        pytest.param(
            _output({"n": (9, 0)}, {"a": (4, 4000)}, {"a": [1, 2, 3]}), 0, id="draft tokens"
        ),
    ],
)
def test_only_a_request_that_prefills_on_is_a_continuation(output: Any, expected: int) -> None:
    assert longest_continuation(output) == expected
