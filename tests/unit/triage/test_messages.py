"""vLLM's other messages, older forms, and completion from the traceback."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, log_lines, log_of, read, rule_of

WORKER = "Worker_TP0_EP0 pid=77"


def _message(middle: str, tail: str = "current size is 1.02 MB.") -> str:
    return (
        f"AssertionError: Workspace is locked but allocation{middle} requires 16.00 MB, {tail}"
    )


def test_without_a_caller_the_traceback_names_it() -> None:
    lines = [*Failure().traceback()[:-1], _message("")]
    (finding,) = read("\n".join(log_lines(lines, WORKER))).findings
    assert (finding.file, log_of(finding).line, finding.function) == (
        "turboquant_attn.py", 747, "_continuation_prefill",
    )  # fmt: skip
    log = log_of(finding)
    assert (log.required_text, log.current_text) == (
        "16.00 MB",
        "1.02 MB",
    )


def test_without_caller_or_traceback_the_sizes_remain() -> None:
    (finding,) = read(_message("")).findings
    assert (finding.file, finding.function) == ("", "")
    assert log_of(finding).kind == "unknown"
    assert finding.serving_bytes == 16 * 2**20


def test_caller_without_function() -> None:
    lines = [*Failure().traceback()[:-1], _message(" from 'turboquant_attn.py:747'")]
    (finding,) = read("\n".join(lines)).findings
    assert finding.function == "_continuation_prefill"


def test_unknown_caller() -> None:
    (finding,) = read(_message(" from 'unknown'")).findings
    assert (finding.file, log_of(finding).name) == ("", None)


def test_named_allocation_of_an_early_version() -> None:
    (finding,) = read(_message(" for 'moe_scratch'")).findings
    assert log_of(finding).name == "moe_scratch"
    assert finding.serving_bytes == 16 * 2**20


def test_a_traceback_of_another_site_completes_nothing() -> None:
    lines = [*Failure(line=9).traceback()[:-1], _message(" from 'turboquant_attn.py:747'")]
    (finding,) = read("\n".join(lines)).findings
    assert finding.function == ""


@pytest.mark.parametrize(
    "key", ["'scratch'", "('marlin', 0, 7)", "(<class 'torch.Tensor'>, 3)"]
)
def test_persistent_resource(key: str) -> None:
    text = (
        f"AssertionError: Workspace is locked but {key} was not allocated during warmup for "
        "the current ubatch and lane."
    )
    (finding,) = read("\n".join(log_lines([text], WORKER))).findings
    assert (finding.code, log_of(finding).kind) == ("WS105", "persistent_resource_missing")
    assert log_of(finding).name == key
    assert finding.serving_bytes is None
    assert finding.ranks[0].tp == 0


def test_persistent_resource_with_traceback_names_its_site() -> None:
    folder = "vllm/model_executor/layers/quantization/utils"
    frames = Failure("marlin_utils.py", 432, "get_marlin_workspace", folder=folder).traceback()
    text = "AssertionError: Workspace is locked but 'k' was not allocated during warmup for"
    (finding,) = read("\n".join([*frames[:-1], text])).findings
    assert (finding.file, finding.function) == ("marlin_utils.py", "get_marlin_workspace")
    assert log_of(finding).rule is not None
    assert rule_of(finding).id == "moe.marlin_locks"


def test_permute_scratch_counts_rows() -> None:
    text = (
        "AssertionError: Workspace is locked but MoE permute scratch requires 65536 rows, "
        "current capacity is 32768 rows. Scratch growth is not allowed after locking."
    )
    (finding,) = read(text).findings
    assert finding.code == "WS106"
    log = log_of(finding)
    assert (log.required_text, log.current_text) == (
        "65536 rows",
        "32768 rows",
    )
    assert finding.serving_bytes is None


def test_lane_that_does_not_exist() -> None:
    text = "RuntimeError: Workspace lane 1 is not configured; manager has 1 lane(s)."
    (finding,) = read(text).findings
    assert (finding.code, log_of(finding).kind) == ("WS104", "wrong_slot")


def test_one_failure_told_three_times_is_one_finding() -> None:
    failure = Failure()
    engine = f"RuntimeError: Worker failed with error '{failure.message}', please check"
    text = [
        *log_lines(failure.traceback(), "Worker_DP1_TP2_EP6 pid=5"),
        *log_lines([engine], "EngineCore_DP1 pid=4"),
        "",
        f"`{failure.message}`",
    ]
    (finding,) = read("\n".join(text)).findings
    assert (finding.ranks[0].dp, finding.ranks[0].tp, finding.ranks[0].ep) == (1, 2, 6)
    assert log_of(finding).times == 3
    assert log_of(finding).at == 9


def test_ranks_stay_apart() -> None:
    text = [
        line
        for rank in range(4)
        for line in log_lines(Failure().traceback(), f"Worker_TP{rank} pid=10{rank}")
    ]
    found = read("\n".join(text)).findings
    assert [finding.ranks[0].tp for finding in found] == [0, 1, 2, 3]


def test_rank_is_not_taken_from_an_unrelated_excerpt() -> None:
    text = [*log_lines(["all is well"], "Worker_TP5 pid=7"), "", Failure().message]
    (finding,) = read("\n".join(text)).findings
    assert not finding.ranks


def test_the_same_base_name_needs_the_path() -> None:
    folder = "vllm/models/deepseek_v4/nvidia"
    failure = Failure("flashmla.py", 319, "_forward_prefill", 30.0, 20.0, folder)
    (bare,) = read(failure.message).findings
    (placed,) = read("\n".join(failure.traceback())).findings
    assert log_of(placed).module == "vllm/models/deepseek_v4/nvidia/flashmla.py"
    assert rule_of(placed)
    assert log_of(bare).rule is None or rule_of(bare).formula == rule_of(placed).formula


def test_layer_from_compiled_code() -> None:
    call = (
        "    buf9 = torch.ops.vllm.unified_attention_with_output.default(buf4, buf5, buf8, "
        "'model.layers.3.self_attn.attn')"
    )
    lines = Failure().traceback()
    lines.insert(1, call)
    (finding,) = read("\n".join(log_lines(lines, WORKER))).findings
    assert finding.layers[0] == "model.layers.3.self_attn.attn"


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ("compile_or_warm_up_model", "post-lock-warmup"),
        ("profile_run", "profile"),
        ("profile_cudagraph_memory", "graph-estimate"),
        ("initialize_from_config", "kv-init"),
        ("execute_model", "serving"),
    ],
)
def test_phase_from_the_traceback(frame: str, phase: str) -> None:
    lines = Failure().traceback()
    lines.insert(1, f'  File "/x/vllm/v1/worker/gpu_worker.py", line 1, in {frame}')
    (finding,) = read("\n".join(lines)).findings
    assert finding.phase == phase
    assert (log_of(finding).kind == "order_of_warmup") == (phase != "serving")


@pytest.mark.parametrize(
    ("left_out", "found"), [((), 1), (("_continuation_prefill",), 0), (("raise",), 0)]
)
def test_a_stack_whose_message_was_cut_off(left_out: tuple[str, ...], found: int) -> None:
    """A person's `...` for frames leaves the engine's above the manager: they did not ask."""
    lines = Failure().traceback()[:-1]
    runner = '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 7, in execute_model'
    kept = [line for line in lines if not any(word in line for word in left_out)]
    findings = read("\n".join([kept[0], runner, *kept[1:]])).findings
    assert [(f.function, f.serving_bytes) for f in findings] == [
        ("_continuation_prefill", None)
    ] * found
