"""Where in its life the engine was, and what cannot have happened there."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import Failure, bound_of, log_lines, log_of, read
from wstrace.findings.finding import Finding

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
V2 = "(Worker pid=9) INFO 08-12 10:00:00 [model_runner.py:{}] "
HEAD = "(Worker pid=9) INFO 08-12 10:00:00 [x.py:1] "
FRAME = '  File "/x/vllm/v1/worker/gpu_worker.py", line 7, in {}'
LOCKED = "Workspace locked. Current sizes: [1.02]"
KV = "Available KV cache memory: 38.58 GiB"


def _lines(*lines: str) -> str:
    return "\n".join(HEAD + line for line in lines)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Starting to load model m...", 0),
        ("Model loading took 16.5 GiB memory and 3.1 seconds", 0),
        (KV, 0),
        ("Capturing CUDA graphs (decode, FULL):   0%|          | 0/35", 0),
        ("Graph capturing finished in 20 secs, took 0.5 GiB", 1),
        ("init engine (profile, create kv cache, warmup model) took 12.30 s", 1),
        ("Application startup complete.", 1),
    ],
)
def test_the_last_line_before_it_tells(line: str, found: int) -> None:
    """No graph of serving replays in a start; after the captures an excerpt may be cut."""
    text = f"{V2.format(392)}Loading model from scratch...\n{_lines(line, ILLEGAL)}"
    assert len(read(text).findings) == found


def test_the_stack_comes_before_the_lines() -> None:
    stack = ["Traceback (most recent call last):", FRAME.format("execute_model"), ILLEGAL]
    text = f"{V2.format(392)}hello\n{_lines('Model loading took 16.5 GiB', *stack)}"
    assert len(read(text).findings) == 1


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("model_runner.py:520", 1),
        ("gpu/model_runner.py:520", 1),
        ("gpu_model_runner.py:520", 0),
    ],
)
def test_the_v2_runner_by_its_prefix(place: str, found: int) -> None:
    text = f"(Worker pid=9) INFO 08-12 10:00:00 [{place}] hello\n{_lines(ILLEGAL)}"
    assert len(read(text).findings) == found


def _refused(*before: str, stack: str = "") -> Finding:
    lines = Failure().traceback()
    if stack:
        lines.insert(1, FRAME.format(stack))
    text = "\n".join([_lines(*before), *log_lines(lines, "Worker pid=9")])
    (finding,) = read(text).findings
    return finding


@pytest.mark.parametrize("stack", ["profile_run", "load_model", "initialize_kv_cache"])
def test_a_lock_before_warm_up_by_the_stack(stack: str) -> None:
    log = log_of(_refused(stack=stack))
    assert log.kind == "order_of_warmup"
    assert "locked before warm-up" in log.why


def test_a_lock_before_warm_up_by_debug_lines() -> None:
    assert "locked before warm-up" in log_of(_refused(LOCKED, KV)).why
    assert log_of(_refused(KV, LOCKED)).kind == "never_profiled"
    again = log_of(_refused(LOCKED, "Workspace unlocked. Current sizes: [1.02]", KV))
    assert again.kind == "never_profiled"


@pytest.mark.parametrize(
    ("asked", "had", "kind"),
    [
        (1.02, 16.0, "wrong_slot"),
        (16.0, 16.0, "never_profiled"),
        (16.0, 1.02, "never_profiled"),
    ],
)
def test_a_request_below_the_arena_is_of_another_slot(
    asked: float, had: float, kind: str
) -> None:
    (finding,) = read(Failure(required=asked, current=had).message).findings
    log = log_of(finding)
    assert log.kind == kind
    if kind == "wrong_slot":
        assert (finding.code, log.confidence) == ("WS104", "possible")
        assert "refuses only what is larger" in log.why


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (
            "Initializing a V1 LLM engine (v0.21.0) with config: enforce_eager=True, seed=0",
            "locks nothing",
        ),
        ("Initializing a V1 LLM engine (v0.21.0) with config: enforce_eager=False, seed=0", ""),
    ],
)
def test_settings_under_which_nothing_locks(before: str, told: str) -> None:
    evidence = " ".join(log_of(_refused(before)).evidence)
    assert (told in evidence) if told else ("locks nothing" not in evidence)


def test_a_runner_that_never_locks() -> None:
    config = "Initializing a V1 LLM engine (v0.26.0) with config: model='m'"
    text = f"{V2.format(7)}hello\n{_lines(config)}\n{Failure().message}"
    (finding,) = read(text).findings
    assert "the V2 runner of 0.26.0 locks nothing" in " ".join(log_of(finding).evidence)


DCP = Failure("flash_attn.py", 925, "_forward_with_dcp", 8.0, 2.0)


@pytest.mark.parametrize(
    ("version", "code"), [("0.21.0", "WS102"), ("0.24.0", "WS102"), ("0.26.0", "WS101")]
)
def test_a_size_that_never_changes_was_never_asked_before(version: str, code: str) -> None:
    """From 0.26.0 every call of FlashAttention's DCP path asks for the same bytes."""
    engine = f"Initializing a V1 LLM engine (v{version}) with config: model='m', seed=0"
    (finding,) = read(f"{_lines(engine)}\n{DCP.message}").findings
    assert finding.code == code


def test_the_size_of_dcp_has_no_default_where_dcp_asks() -> None:
    (finding,) = read(DCP.message).findings
    assert "decode_context_parallel_size" in bound_of(finding).needs
    (finding,) = read(f"vllm serve m -dcp 2\n{DCP.message}").findings
    assert "decode_context_parallel_size" not in bound_of(finding).needs


@pytest.mark.parametrize(
    ("version", "failure", "code", "confidence"),
    [
        ("0.21.0", Failure("turboquant_attn.py", 879, "_decode_attention"), "WS101", "likely"),
        (
            "0.21.0",
            Failure("turboquant_attn.py", 9, "_decode_attention", 1, 0),
            "WS101",
            "certain",
        ),
        (
            "0.33.0",
            Failure("ultraquant_attn.py", 504, "_ultraquant_continuation_prefill"),
            "WS101",
            "likely",
        ),
        ("0.33.0", Failure("rocm_octave_attn.py", 334, "_mid_o_buffer"), "WS102", "likely"),
        ("0.33.0", Failure("kda.py", 1341, "_forward"), "WS101", "likely"),
        ("0.24.0", Failure("turboquant_attn.py", 918, "_decode_attention"), "WS104", "likely"),
        ("0.22.1", Failure(), "WS101", "certain"),
        ("0.24.0", Failure(), "WS101", "likely"),
        ("0.22.1", Failure("trtllm_ragged.py", 7, "_get_workspace_buffer"), "WS104", "likely"),
        (
            "0.24.0",
            Failure("sparse_attn_indexer.py", 7, "sparse_attn_indexer"),
            "WS102",
            "likely",
        ),
    ],
)
def test_what_the_release_reserves_itself_is_not_certain(
    version: str, failure: Failure, code: str, confidence: str
) -> None:
    engine = f"Initializing a V1 LLM engine (v{version}) with config: model='m', seed=0"
    (finding,) = read(f"{_lines(engine)}\n{failure.message}").findings
    assert (finding.code, log_of(finding).confidence) == (code, confidence)


def test_what_to_type_where_nothing_locks() -> None:
    (finding,) = read(f"{V2.format(7)}hello\n{_lines(ILLEGAL)}").findings
    assert log_of(finding).commands[-1].startswith("pip install 'vllm>=0.30.0'")


def test_no_reserve_makes_a_lane() -> None:
    text = "RuntimeError: Workspace lane 1 is not configured; manager has 1 lane(s)"
    (finding,) = read(text).findings
    assert log_of(finding).commands[-1] == "no reserve helps: the lane is not there"
    assert not any("reserve.yaml" in line for line in log_of(finding).commands)
