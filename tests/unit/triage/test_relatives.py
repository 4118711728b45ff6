"""What people take for the arena and is not: each with its own size and its own knob."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.triage.generator import Failure, log_lines, log_of, read
from wstrace.cli.commands import triage
from wstrace.report.triage import render_json, render_markdown, render_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.diagnose.relatives import NotTheArena
from wstrace.triage.report import combine

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
    report = combine([read(OVERFLOW)])
    assert "not the arena" in render_text(report)
    assert "Not the arena" in render_markdown(report)
    (found,) = json.loads(render_json(report))["relatives"]
    assert (found["asked_bytes"], found["had_bytes"]) == (512 * 2**20, 394_264_576)
    app = typer.Typer()
    app.command()(triage.command)
    codes = [CliRunner().invoke(app, [], input=text) for text in (OVERFLOW, "all is well")]
    assert [code.exit_code for code in codes] == [3, 0]
    assert CliRunner().invoke(app, [], input=Failure().message).exit_code == 0
