"""The phase of a whole or a cut stack, of both runners: names, files, source lines."""

from __future__ import annotations

import pytest

from tests.unit.triage.generator import log_of, read
from wstrace.triage.extract import tracebacks
from wstrace.triage.ingest.prefixes import Unwrapper
from wstrace.triage.ingest.squeeze import join

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
V2 = "(Worker pid=9) INFO 08-12 10:00:00 [model_runner.py:520] hello\n"
LAYER = '  File "/x/vllm/v1/attention/backends/mla/indexer.py", line 410, in build'
RUNNER = "/x/vllm/v1/worker/gpu/model_runner.py"


def _frame(path: str, function: str, source: str = "pass") -> str:
    return f'  File "{path}", line 7, in {function}\n    {source}\n'


# as vLLM 0.13.0 to 0.33.0 have them: V2's managers, drafters, encoders, V1's loop, and PyTorch
# below them.
CAPTURES = [
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "capture"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "capture_graph"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "_capture_full_graph"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "_capture_piecewise_graph"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "capture_graphs"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "prepare_inputs_to_capture"),
    ("/x/vllm/v1/worker/gpu/spec_decode/eagle_cudagraph.py", "capture_graph"),
    ("/x/vllm/v1/worker/gpu/spec_decode/eagle/cudagraph.py", "capture"),
    ("/x/vllm/v1/worker/gpu/spec_decode/eagle/speculator.py", "capture_model"),
    ("/x/vllm/v1/worker/gpu/spec_decode/dflash/speculator.py", "capture"),
    ("/x/vllm/v1/worker/gpu/cudagraph.py", "_prepare_dflash_inputs_to_capture"),
    ("/x/vllm/v1/worker/gpu/mm/encoder_runner.py", "capture"),
    ("/x/vllm/v1/worker/gpu/mm/encoder_cudagraph.py", "_capture_budget_graph"),
    ("/x/vllm/v1/worker/encoder_cudagraph.py", "capture"),
    ("/x/vllm/v1/worker/gpu_model_runner.py", "_capture_cudagraphs"),
    ("/x/vllm/v1/worker/gpu_model_runner.py", "_warmup_and_capture"),
    ("/x/vllm/v1/worker/gpu_ubatch_wrapper.py", "_capture_ubatches"),
    ("/x/vllm/v1/worker/gpu_ubatch_wrapper.py", "_capture_ubatch_thread"),
    ("/x/vllm/compilation/breakable_cudagraph.py", "_capture"),
    ("/x/torch/cuda/graphs.py", "capture_begin"),
    ("/x/torch/cuda/graphs.py", "capture_end"),
]  # fmt: skip
# functions of the same words that run in serving, or in no phase of their own
OTHERS = [
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "run_fullgraph"),
    ("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "captured_token_counts"),
    ("/x/vllm/compilation/cuda_graph.py", "__call__"),
    ("/x/vllm/v1/metrics/loggers.py", "capture"),
    ("/x/torch/cuda/graphs.py", "replay"),
]


def _phase(text: str) -> str | None:
    squeezed = join(list(Unwrapper().lines(text + ILLEGAL, 1)))
    position = squeezed.text.index("torch.Accelerator")
    return tracebacks.phase(
        tracebacks.before(position, tracebacks.frames_of(squeezed), squeezed)
    )


@pytest.mark.parametrize(("path", "function"), CAPTURES)
def test_a_stack_cut_inside_a_capture(path: str, function: str) -> None:
    assert _phase(_frame(path, function) + LAYER + "\n") == "capture"


@pytest.mark.parametrize(("path", "function"), OTHERS)
def test_a_name_alone_is_no_capture(path: str, function: str) -> None:
    assert _phase(_frame(path, function) + LAYER + "\n") is None
    assert _phase(_frame(RUNNER, "execute_model") + _frame(path, function)) == "serving"


@pytest.mark.parametrize(
    ("source", "phase"),
    [
        ("self.cudagraph_manager.capture(", "capture"),
        ("self.prefill_cudagraph_manager.capture(", "capture"),
        ("self.query_cudagraph_manager.capture(", "capture"),
        ("self.encoder_cudagraph_manager.capture(graph_pool=pool)", "capture"),
        ("self.model_state.encoder_runner.capture()", "capture"),
        ("self.speculator.capture()", "capture"),
        ("self.speculator.capture_model()", "capture"),
        ("cuda_graph_memory_bytes = self.model_runner.capture_model()", "capture"),
        ("with torch.cuda.graph(graph, stream=stream):", "capture"),
        ("self.model_runner.profile_run()", "profile"),
        ("available = self.worker.determine_available_memory()", "profile"),
        ("estimate = self.model_runner.profile_cudagraph_memory()", "graph-estimate"),
        ("self.model_runner.initialize_kv_cache(kv_cache_config)", "kv-init"),
        ("self.model_runner.load_model(eep_scale_up=False)", "load"),
        ("warmup_kernels(self.model_runner)", None),
        ("output = self.model_runner.execute_model(", "serving"),
        ("self.metrics.capture(1)", None),
    ],
)
def test_the_source_line_of_a_cut_stack(source: str, phase: str | None) -> None:
    """Where the frames inside were left out, and where a line of source is all that is left."""
    inside = _frame(RUNNER, "wrapped", source)
    assert _phase(inside + LAYER + "\n") == phase
    assert _phase(f"    {source}\n{LAYER}\n") == phase


def test_the_estimate_of_graphs_captures_inside() -> None:
    stack = _frame(RUNNER, "profile_cudagraph_memory", "self.capture_model(profile_only=True)")
    inner = _frame("/x/vllm/v1/worker/gpu/cudagraph_utils.py", "capture")
    assert _phase(stack + inner) == "graph-estimate"


@pytest.mark.parametrize(("path", "function"), CAPTURES)
def test_no_graph_of_serving_replays_in_a_capture(path: str, function: str) -> None:
    assert read(V2 + _frame(path, function) + LAYER + "\n" + ILLEGAL).findings == []


def test_an_illegal_access_of_a_step_is_told() -> None:
    (finding,) = read(V2 + _frame(RUNNER, "execute_model") + LAYER + "\n" + ILLEGAL).findings
    assert (finding.code, log_of(finding).confidence) == ("WS301", "possible")
