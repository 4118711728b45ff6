"""Related symptoms: a finding only with evidence, and how sure it is."""

from __future__ import annotations

from tests.unit.triage.generator import Failure, log_lines, log_of, read
from wstrace.trace.records import Slot

LABEL = "Worker_TP0 pid=211"
KV = "Available KV cache memory: 16.93 GiB"
CAPTURED = "Graph capturing finished in 3 secs, took 0.07 GiB"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 88.00 MiB. GPU 0 has"


def _resize(before: float, after: float, slot: str = "ubatch 0") -> str:
    return (
        "[WORKSPACE DEBUG] Resized workspace from 'turboquant_attn.py:792:"
        f"_continuation_prefill': {before:.2f} MB -> {after:.2f} MB ({slot})"
    )


def _read(*lines: str) -> list[tuple[str, str, str]]:
    found = read("\n".join(log_lines(lines, LABEL))).findings
    return [
        (finding.code, log_of(finding).kind, log_of(finding).confidence) for finding in found
    ]


def test_growth_after_kv_sizing() -> None:
    assert _read(KV, _resize(2.05, 17.56)) == [("WS201", "unlocked_growth_oom", "likely")]


def test_growth_after_capture() -> None:
    found = _read(KV, CAPTURED, _resize(2.05, 17.56))
    assert found == [("WS301", "pointer_moved_after_capture", "likely")]


def test_growth_before_kv_sizing_is_normal() -> None:
    assert _read(_resize(0.0, 17.56), KV, CAPTURED) == []


def test_growth_in_another_process_is_normal() -> None:
    text = [*log_lines([KV], "Worker_TP1 pid=9"), *log_lines([_resize(0, 9)], LABEL)]
    assert read("\n".join(text)).findings == []


def test_illegal_access_alone_is_nothing() -> None:
    assert _read(KV, CAPTURED, ILLEGAL) == []


def test_illegal_access_after_a_growth() -> None:
    found = _read(KV, CAPTURED, _resize(2.05, 17.56), ILLEGAL)
    assert found == [("WS301", "pointer_moved_after_capture", "likely")]


def test_illegal_access_before_a_growth_is_not_its_work() -> None:
    found = _read(KV, CAPTURED, ILLEGAL, _resize(2.05, 17.56))
    assert found == [("WS301", "pointer_moved_after_capture", "likely")]
    evidence = read("\n".join(log_lines([CAPTURED, ILLEGAL], LABEL))).findings
    assert evidence == []


def test_illegal_access_with_the_runner_that_never_locks() -> None:
    frame = '  File "/x/vllm/v1/worker/gpu/model_runner.py", line 1, in execute_model'
    assert _read(frame, ILLEGAL) == [("WS301", "pointer_moved_after_capture", "possible")]
    newer = "Initializing a V1 LLM engine (v0.30.0) with config: model='m'"
    assert _read(newer, frame, ILLEGAL) == []


def test_memory_that_runs_out_elsewhere_is_nothing() -> None:
    frame = '  File "/x/vllm/model_executor/models/llama.py", line 1, in forward'
    assert _read(KV, frame, OOM) == []


def test_memory_that_runs_out_inside_the_growth() -> None:
    lines = Failure().traceback()[:-1]
    assert _read(*lines, OOM) == [("WS201", "unlocked_growth_oom", "likely")]
    step = '  File "/x/vllm/v1/worker/gpu_worker.py", line 7, in execute_model'
    assert _read(lines[0], step, *lines[1:], OOM) == [
        ("WS201", "unlocked_growth_oom", "certain")
    ]


def test_memory_that_runs_out_in_a_known_layer_without_the_arena() -> None:
    frame = (
        '  File "/x/vllm/v1/attention/backends/turboquant_attn.py", line 662, '
        "in _continuation_prefill"
    )
    assert _read("Traceback (most recent call last):", frame, OOM) == [
        ("WS201", "unlocked_growth_oom", "possible")
    ]


def test_memory_that_runs_out_after_a_growth() -> None:
    found = _read(KV, _resize(2.05, 900.0), OOM)
    assert found == [("WS201", "unlocked_growth_oom", "possible")]


def test_exact_sizes_from_the_lock_line() -> None:
    lock = "[WORKSPACE DEBUG] Workspace locked. Current sizes: [1.02001953125]"
    lines = log_lines([lock, *Failure().traceback()], LABEL)
    (finding,) = read("\n".join(lines)).findings
    assert finding.arena_bytes == 1_069_568
    assert log_of(finding).current_exact


def test_debug_lines_tell_never_asked_from_asked_for_less() -> None:
    failure = Failure("new_layer.py", 5, "forward", 16.0, 2.0)
    asked = _resize(0.0, 2.0).replace("turboquant_attn.py:792:_continuation_prefill", "{}")
    for site, kind in (
        ("new_layer.py:5:forward", "undersized_in_profile"),
        ("other.py:1:f", "never_profiled"),
    ):
        text = log_lines([asked.format(site), *failure.traceback()], LABEL)
        assert log_of(read("\n".join(text)).findings[0]).kind == kind


def test_a_larger_slot_beside_it() -> None:
    failure = Failure("new_layer.py", 5, "forward", 16.0, 0.0)
    lines = log_lines([_resize(0.0, 64.0, "ubatch 1, lane 0"), *failure.traceback()], LABEL)
    (finding,) = read("\n".join(lines)).findings
    assert (finding.code, log_of(finding).kind) == ("WS104", "wrong_slot")


def test_all_versions_of_the_resize_line() -> None:
    for slot, wanted in (
        ("2 ubatches, total memory 35.12 MB", None),
        ("ubatch 1", Slot(1, 0)),
        ("ubatch 1, lane 1", Slot(1, 1)),
    ):
        (finding,) = read(
            "\n".join(log_lines([KV, _resize(2.05, 17.56, slot)], LABEL))
        ).findings
        assert finding.slot == wanted
        assert log_of(finding).required_text == "17.56 MB"
