"""A reserve config from a log alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.triage.generator import Failure, log_lines, read
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.reserve import config as reserve
from wstrace.reserve.writer import dumps
from wstrace.trace.records import Slot
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.report import one_report
from wstrace.triage.reserve_plan import plan_report
from wstrace.vllm.limits import LIMIT_NAMES

NUMBERS = {"num_kv_heads": 4, "head_size": 256, "max_model_len": 8192, "block_size": 16}
MOE = Failure(
    "modular_kernel.py", 1084, "_allocate_buffers", 448.06, 256.0,
    "vllm/model_executor/layers/fused_moe",
)  # fmt: skip
MOE_NUMBERS = {
    "hidden_size": 2048, "moe_intermediate_size": 512, "top_k": 8,
    "max_num_batched_tokens": 8192,
}  # fmt: skip


def _text(failures: list[Failure], numbers: dict[str, int]) -> str:
    lines = [
        line
        for failure in failures
        for line in log_lines(failure.traceback(), "EngineCore pid=1")
    ]
    return dumps(plan_report(one_report([read("\n".join(lines), Given(numbers))])).config)


def _loaded(text: str, folder: Path) -> reserve.ReserveConfig:
    path = folder / "reserve.yaml"
    path.write_text(text, "utf-8")
    return reserve.load_reserve(path)


def test_it_loads_and_follows_the_live_limits(tmp_path: Path) -> None:
    config = _loaded(_text([Failure()], NUMBERS), tmp_path)
    worst = 2 * 4 * 8192 * 256 * 2
    assert [(slot.ubatch, slot.lane, slot.bytes) for slot in config.slots] == [(0, 0, worst)]
    (site,) = config.sites
    assert (site.bytes, site.grade, site.observed) == (worst, "proved", 16 * 2**20)
    live = {**NUMBERS, "max_model_len": 16384}
    assert reserve.evaluate(config, live, [Slot(0, 0)])[0].bytes == 2 * worst


def test_only_numbers_are_compared_with_the_engine(tmp_path: Path) -> None:
    lines = ["vllm serve m --dtype half --kv-cache-dtype fp8 -tp 2", Failure().message]
    report = one_report([read("\n".join(lines), Given(NUMBERS))])
    layout = _loaded(dumps(plan_report(report).config), tmp_path).model.layout
    assert layout == {"num_kv_heads": 4, "head_size": 256, "tensor_parallel_size": 2}


def test_the_largest_site_not_the_sum(tmp_path: Path) -> None:
    config = _loaded(_text([Failure(), MOE], NUMBERS | MOE_NUMBERS), tmp_path)
    assert len(config.sites) == 2
    assert config.slots[0].bytes == 512 * 2**20


def test_names_that_no_engine_reports_become_constants(tmp_path: Path) -> None:
    (site,) = _loaded(_text([MOE], MOE_NUMBERS), tmp_path).sites
    assert site.formula is not None
    assert site.constants.keys() == parse(site.formula).names - LIMIT_NAMES
    assert site.constants.items() <= {"dtype_size": 2, "sequence_parallel_size": 1}.items()


def test_a_site_without_a_bound_is_named_as_not_covered(tmp_path: Path) -> None:
    config = _loaded(_text([Failure(), MOE], NUMBERS), tmp_path)
    assert [item.site for item in config.not_covered] == [
        "modular_kernel.py:_allocate_buffers",
        "turboquant_attn.py:_decode_attention",
    ]
    assert "top_k" in config.not_covered[0].why


def test_an_incomplete_bound_names_what_is_missing() -> None:
    with pytest.raises(
        WstraceError, match="block_size, head_size, max_model_len, num_kv_heads"
    ):
        _text([Failure()], {})


def test_no_arena_failure_no_config() -> None:
    with pytest.raises(WstraceError, match="no arena failure"):
        plan_report(one_report([read("all is well")]))
