"""What people take for the arena and is not: each with its own size and its own knob."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.triage.generator import Failure, log_lines, log_of, read
from wstrace.cli.commands import triage
from wstrace.report.triage import render_json, render_markdown, render_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.diagnose.relatives import NotTheArena
from wstrace.triage.report import one_report
from wstrace.triage.report import read as triaged

if TYPE_CHECKING:
    from pathlib import Path

BUFFER = 394 * 2**20
OVERFLOW = (
    "RuntimeError: Error in function 'aligned_alloc' at /x/allocator.h:49: Buffer overflow "
    "when allocating memory for batch_prefill_tmp_v with size 536870912 and alignment 16, but "
    "only 394264576 bytes available in AlignedAllocator. Increase the workspace buffer size."
)
FAILED = (
    "RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 536870912 and "
    "alignment 16 in AlignedAllocator"
)
BELOW = (
    "WARNING 05-05 14:00:00 [x.py:1] VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=413138944 is below "
    "the 637534208 bytes computed for the sparse MLA workspace with dcp_world_size=4"
)
ABSENT = (
    "AssertionError: WorkspaceManager not initialized. Call init_workspace_manager() with a "
    "device before using workspace functions."
)
FITTED = (
    "INFO 05-05 14:00:00 [kv_cache_utils.py:1] Auto-fit max_model_len: reduced from 262144 to "
    "150528 to fit in available KV cache memory (5.31 GiB)"
)
GROWTH = (
    "INFO 05-05 13:59:00 [workspace.py:190] [WORKSPACE DEBUG] Resized workspace from "
    "'sparse_attn_indexer.py:113:sparse_attn_indexer': 0.00 MB -> 1321.00 MB (ubatch 0)"
)
SCRATCH = (
    "Traceback (most recent call last):",
    '  File "/x/vllm/v1/attention/backends/mla/flashmla_sparse.py", line 980, in forward_mqa',
    '  File "/x/vllm/third_party/flashmla/flash_mla.py", line 140, in flash_mla_with_kvcache',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 4 has a total "
    "capacity of 139.80 GiB of which 5.12 GiB is free.",
)


def _one(text: str, given: dict[str, int] | None = None) -> NotTheArena:
    found = read(text, Given(given or {}))
    assert found.findings == []
    (relative,) = found.relatives
    return relative


@pytest.mark.parametrize(
    ("text", "asked", "had", "size"),
    [
        (OVERFLOW, 512 * 2**20, 394_264_576, BUFFER + 512 * 2**20 - 394_264_576),
        (FAILED, 512 * 2**20, None, BUFFER + 512 * 2**20),
        (BELOW, 637_534_208, BUFFER, 637_534_208),
    ],
)
def test_flashinfers_own_buffer(text: str, asked: int, had: int | None, size: int) -> None:
    found = _one(text)
    assert (found.kind, found.asked, found.had) == ("flashinfer_buffer", asked, had)
    name, _, number = found.knob.partition("=")
    assert name == "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"
    assert size <= int(number) < size + 2**20
    assert int(number) % 2**20 == 0


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("RuntimeError: FlashInfer workspace buffer is too small", None),
        ("trtllm workspace size exceeds the buffer: 536870912 needed", 536_870_912),
    ],
)
def test_flashinfers_buffer_in_other_words(text: str, asked: int | None) -> None:
    found = _one(text)
    assert (found.kind, found.asked) == ("flashinfer_buffer", asked)
    assert found.knob.startswith("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=")


def test_the_buffer_that_the_text_names_counts() -> None:
    text = f"VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1073741824 vllm serve m\n{FAILED}"
    assert _one(text).knob.endswith(f"={1536 * 2**20}")


def test_no_manager() -> None:
    found = _one("\n".join(log_lines([ABSENT], "EngineCore pid=1")))
    assert found.kind == "no_manager"
    assert "init_workspace_manager" in found.knob


def test_a_reservation_for_a_longer_context() -> None:
    """40 times 150,528 rows of 128 + 4 bytes and 1 MiB are what the shorter context needs."""
    found = _one(f"{GROWTH}\n{FITTED}", {"index_head_dim": 128})
    assert found.kind == "fitted_context"
    assert found.had == 1321 * 2**20
    assert found.asked == 5 * 8 * 150_528 * 132 + 2**20
    assert found.knob == "--max-model-len 150528"
    assert "262,144" in found.why


@pytest.mark.parametrize(
    "text", [FITTED, f"{FITTED}\n{GROWTH.replace('sparse_attn_indexer.py', 'x.py')}"]
)
def test_a_fitted_context_alone_is_a_healthy_start(text: str) -> None:
    assert read(text).relatives == []


def test_a_persons_words_of_it() -> None:
    assert _one("The indexer was reserved for 262,144 and then fitted to 150,528").kind == (
        "fitted_context"
    )


def test_a_kernels_own_scratch() -> None:
    found = _one("\n".join(log_lines(SCRATCH, "Worker_TP4_EP4 pid=9")))
    assert found.kind == "kernel_scratch"
    assert (found.asked, found.had) == (8 * 2**30, round(5.12 * 2**30))
    assert found.function == "forward_mqa"
    assert "--max-num-batched-tokens" in found.knob
    assert "not the arena" in found.why
    assert [rank.tp for rank in found.ranks] == [4]


def test_beside_a_refusal_the_scratch_is_not_named() -> None:
    text = "\n".join([*SCRATCH, *Failure().traceback()])
    assert read(text).relatives == []


@pytest.mark.parametrize(
    "line",
    [
        "WARNING workspace locked, growing anyway: 2.05 MB -> 9.94 MB for mla.py:7:forward",
        "[patch] Workspace is locked; resizing from 2.05 MB to 9.94 MB (mla.py:7:forward)",
        "growing locked arena for mla.py:7:forward: requires 9.94 MB, current size 2.05 MB",
        "[ws] post-lock growth of workspace by mla.py:7:forward: 2.05 MB => 9.94 MB",
    ],
)
def test_a_patch_that_grows_after_the_lock_is_ws301_by_hand(line: str) -> None:
    (finding,) = read(line).findings
    assert (finding.code, finding.site) == ("WS301", "mla.py:forward")
    log = log_of(finding)
    assert (log.current_text, log.required_text) == ("2.05 MB", "9.94 MB")
    assert "by hand" in log.why


@pytest.mark.parametrize(
    "line",
    [
        "Workspace growth is not allowed after locking: 2.05 MB -> 9.94 MB",
        "the workspace is locked at 2.05 MB and 9.94 MB are free",
        "block 7 locked, growing from 2 MB to 4 MB",
    ],
)
def test_other_talk_of_locks(line: str) -> None:
    assert read(line).findings == []


def test_every_output_tells_a_relative_from_nothing() -> None:
    report = one_report([read(OVERFLOW)])
    assert "not the arena" in render_text(report)
    assert "Not the arena" in render_markdown(report)
    (found,) = json.loads(render_json(report))["relatives"]
    assert (found["asked_bytes"], found["had_bytes"]) == (512 * 2**20, 394_264_576)
    app = typer.Typer()
    app.command()(triage.command)
    codes = [CliRunner().invoke(app, [], input=text) for text in (OVERFLOW, "all is well")]
    assert [code.exit_code for code in codes] == [3, 0]
    assert CliRunner().invoke(app, [], input=Failure().message).exit_code == 0


ROOT_OF = "/usr/local/lib/python3.12/dist-packages"
RAN_OUT = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 4 has a total "
    "capacity of 139.80 GiB of which 5.12 GiB is free."
)


def _stack(*frames: str) -> str:
    """A stack of `path:function` below the site-packages, with memory running out in it."""
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        path, _, function = frame.partition(":")
        lines.append(f'  File "{ROOT_OF}/{path}", line 7, in {function}')
    return "\n".join([*lines, RAN_OUT])


MLA = "vllm/model_executor/layers/attention/mla_attention.py:forward_impl"
SPARSE = "vllm/v1/attention/backends/mla/flashmla_sparse.py"
FLASHMLA = "vllm/third_party/flashmla/flash_mla_interface.py"
MIXED = f"{SPARSE}:_forward_fp8_kv_mixed_batch"
# chains of calls of releases, and the layer's own frame that asked the kernel
CHAINS = [
    # 0.13.0 to 0.16.0
    (("vllm/attention/layer.py:unified_mla_attention_with_output", f"{SPARSE}:forward", MIXED,
      f"{SPARSE}:_fp8_flash_mla_kernel",
      "vllm/v1/attention/ops/flashmla.py:flash_mla_with_kvcache"), "_fp8_flash_mla_kernel"),
    # 0.18.1 on
    ((MLA, f"{SPARSE}:forward_mqa", MIXED, f"{FLASHMLA}:flash_mla_with_kvcache"),
     "_forward_fp8_kv_mixed_batch"),
    ((MLA, f"{SPARSE}:forward_mqa", f"{SPARSE}:_forward_bf16_kv",
      f"{SPARSE}:_bf16_flash_mla_kernel", f"{FLASHMLA}:flash_mla_sparse_fwd",
      "torch/_ops.py:__call__"), "_bf16_flash_mla_kernel"),
    ((MIXED, "flash_mla/flash_mla_interface.py:flash_mla_with_kvcache"),
     "_forward_fp8_kv_mixed_batch"),
    ((MLA, "vllm/v1/attention/backends/mla/cutlass_mla.py:forward_mqa",
      "vllm/_custom_ops.py:sm100_cutlass_mla_decode", "torch/_ops.py:__call__"), "forward_mqa"),
    (("vllm/v1/attention/backends/flash_attn.py:forward",
      "vllm/vllm_flash_attn/flash_attn_interface.py:flash_attn_varlen_func"), "forward"),
    (("vllm/v1/attention/backends/flashinfer.py:forward", "flashinfer/prefill.py:run"),
     "forward"),
    (("vllm/model_executor/layers/fused_moe/deep_gemm_moe.py:apply",
      "vllm/utils/deep_gemm.py:m_grouped_fp8_gemm_nt_contiguous", "deep_gemm/__init__.py:call"),
     "apply"),
    (("vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:_forward_core",
      "vllm/model_executor/layers/fla/ops/chunk.py:chunk_gated_delta_rule"), "_forward_core"),
]  # fmt: skip
# no kernel below, or no layer of attention or experts above it
NEITHER = [
    (MIXED,),
    (f"{SPARSE}:forward_mqa", "torch/nn/functional.py:linear"),
    (f"{SPARSE}:forward_mqa", "vllm/model_executor/layers/linear.py:forward"),
    ("vllm/model_executor/models/llama.py:forward", "vllm/_custom_ops.py:rms_norm"),
    ("vllm/v1/sample/sampler.py:forward", "torch/_ops.py:__call__"),
    ("vllm/v1/worker/gpu_model_runner.py:execute_model",),
]


@pytest.mark.parametrize(("frames", "function"), CHAINS)
def test_the_frame_that_asks_a_kernel(frames: tuple[str, ...], function: str) -> None:
    found = read(_stack(*frames))
    (relative,) = found.relatives
    assert (relative.kind, relative.function) == ("kernel_scratch", function)
    assert not found.findings


@pytest.mark.parametrize("frames", NEITHER)
def test_memory_alone_has_other_causes(frames: tuple[str, ...]) -> None:
    found = read(_stack(*frames))
    assert not [r for r in found.relatives if r.kind == "kernel_scratch"]


def test_a_buffer_that_fails_in_many_words_is_told_once() -> None:
    """FlashInfer's, vLLM's and a person's words for one buffer: the largest setting counts."""
    text = "\n".join((OVERFLOW, BELOW, FAILED, "the flashinfer workspace buffer is too small"))
    (found,) = read(text).relatives
    assert found.knob == "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=950009856"


@pytest.mark.parametrize(
    ("told", "buffer"),
    [
        ("FlashInfer fails; set VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1073741824", BUFFER),
        ("export VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1073741824", 1 << 30),
        ("I set VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1073741824 and it dies", 1 << 30),
    ],
)
def test_what_a_message_tells_to_set_is_not_set(told: str, buffer: int) -> None:
    (found,) = read(f"{told}\n{FAILED}").relatives
    assert f"of {buffer:,} bytes" in found.why


KV = (
    "ValueError: To serve at least one request with the model's max seq len (131072), (24.00 "
    "GiB KV cache is needed, which is larger than the available KV cache memory (10.53 GiB). "
    "Based on the available memory, the estimated maximum model length is 57504."
)
OLD_KV = KV.replace("model's", "models's")
TRITON = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, "
    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
)
OTHERS = [
    (KV, "kv_cache", 24 << 30, round(10.53 * 2**30), "--max-model-len"),
    (OLD_KV, "kv_cache", 24 << 30, round(10.53 * 2**30), "--max-model-len"),
    ("ValueError: No available memory for the cache blocks. Try increasing "
     "`gpu_memory_utilization` when initializing the engine.", "kv_cache", None, None,
     "--gpu-memory-utilization"),
    ("ValueError: Free memory on device (10.25/79.18 GiB) on startup is less than desired GPU "
     "memory utilization (0.9, 71.26 GiB). Decrease GPU memory utilization.", "kv_cache",
     round(71.26 * 2**30), round(10.25 * 2**30), "--gpu-memory-utilization"),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
     "requests. Please try lowering `max_num_seqs`.", "graph_memory", None, None,
     "--max-num-seqs"),
    (TRITON, "shared_memory", 163840, 101376, "num_stages"),
    ("ncclUnhandledCudaError: Call to CUDA function failed. Last error:\nFailed to CUDA calloc "
     "async 1228800 bytes", "communicator", 1228800, None, "NCCL_BUFFSIZE"),
    ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x8Hq0b (size 9637888)",
     "communicator", 9637888, None, "--shm-size"),
    ("nvshmem: symmetric heap out of memory: 1073741824 bytes requested", "all2all_buffer",
     1073741824, None, "NVSHMEM_SYMMETRIC_SIZE"),
    ("RuntimeError: DeepEP error: num_rdma_bytes is not enough for this dispatch",
     "all2all_buffer", None, None, "VLLM_DEEPEP_BUFFER_SIZE_MB"),
    ("MORI_SHMEM heap is full", "all2all_buffer", None, None, "MORI_SHMEM_HEAP_SIZE"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "asked", "had", "knob"), OTHERS)
def test_other_memory(
    line: str, kind: str, asked: int | None, had: int | None, knob: str
) -> None:
    found = read("\n".join(log_lines(line.split("\n"), "Worker_TP0 pid=7")))
    (relative,) = found.relatives
    assert (relative.kind, relative.asked, relative.had) == (kind, asked, had)
    assert knob in relative.knob
    assert not found.findings


@pytest.mark.parametrize("function", ["capture_model", "profile_cudagraph_memory"])
def test_memory_that_runs_out_in_a_capture(function: str) -> None:
    frame = f"vllm/v1/worker/gpu_model_runner.py:{function}"
    (found,) = read(_stack(frame, "vllm/model_executor/layers/linear.py:forward")).relatives
    assert (found.kind, found.asked) == ("graph_memory", 8 << 30)
    assert "--max-cudagraph-capture-size" in found.knob


def test_one_buffer_on_several_ranks_is_told_once(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(OVERFLOW)
    report = triaged([str(tmp_path)], Given())
    (found,) = report.relatives
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3]
