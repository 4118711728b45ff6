"""Headline, class, sizes and reason of a finding agree, for every class and every log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.triage.generator import Failure, log_of, read
from wstrace.findings.finding import Finding
from wstrace.known_sites.known import LogClass
from wstrace.report.finding_text import block

ROOT = Path(__file__).parents[3]
LOGS = [*ROOT.parent.glob("*/cases/logs/*.log"), *ROOT.parent.glob("*/cases-2/*.log")]
CODES: dict[LogClass, set[str]] = {
    "never_profiled": {"WS101"},
    "undersized_in_profile": {"WS102", "WS106"},
    "wrong_slot": {"WS104"},
    "order_of_warmup": {"WS101", "WS102"},
    "persistent_resource_missing": {"WS105", "WS106"},
    "unlocked_growth_oom": {"WS201"},
    "pointer_moved_after_capture": {"WS301"},
    "over_reserved": {"WS203"},
    "unknown": {"WS101", "WS102"},
}
SIZE = re.compile(r"\d ?[KMG]i?B\b")
# words of a headline, and words of a reason that deny it
DENIED = [
    ("never before it", r"asked before the lock, for less|Warm-up runs this site"),
    ("than before it", r"does not say|Nothing in warm-up|nothing of 5 KiB"),
    ("KV sizing never saw", r"KV sizing has not happened|does not show whether KV sizing"),
    ("graphs point at", r"No line here shows"),
    ("never warmed", r"cannot be of one slot"),
]
HEAD = "(Worker pid=9) INFO 08-12 10:00:00 [x.py:1] "
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.21 GiB. GPU 0 has"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
KV = f"{HEAD}Available KV cache memory: 38.58 GiB"
CAPTURED = f"{HEAD}Graph capturing finished in 20 secs, took 0.5 GiB"
GREW = f"{HEAD}Resized workspace from 'a.py:7:forward': 1.00 MB -> 16.00 MB (ubatch 0)"
UNKNOWN = Failure("a.py", 7, "forward")
FRAME = '  File "/x/vllm/v1/worker/gpu_worker.py", line 7, in {}'
V2 = "(Worker pid=9) INFO 08-12 10:00:00 [model_runner.py:520] hello"
DECODE = (
    '  File "/x/vllm/v1/attention/backends/turboquant_attn.py", line 7, in _decode_attention'
)


def _stack(function: str, failure: Failure = UNKNOWN) -> str:
    head, *lines = failure.traceback()
    return "\n".join([head, *([FRAME.format(function)] if function else []), *lines])


def _inside(function: str) -> str:
    return _stack(function, Failure()).rpartition("\n")[0]


TEXTS = {
    "never": Failure().message,
    "undersized": Failure("modular_kernel.py", 7, "_allocate_buffers").message,
    "unknown": UNKNOWN.message,
    "empty": Failure("a.py", 7, "forward", 16.0, 0.0).message,
    "less": Failure(required=1.0, current=2.0).message,
    "in start-up": _stack("compile_or_warm_up_model"),
    "in profiling": _stack("profile_run"),
    "half": "(Worker_DP1_EP1 pid=7) ERROR 05-05 14:02:37 [x.py:1] "
    + Failure("modular_kernel.py", 7, "_allocate_buffers", 16.0, 8.0).message,
    "grown": f"{KV}\n{GREW}",
    "captured": f"{CAPTURED}\n{GREW}",
    "by hand": "locked workspace: growing anyway 1.00 MB -> 16.00 MB for a.py:7:forward",
    "oom inside": f"{_inside('')}\n{OOM}",
    "oom in profiling": f"{_inside('profile_run')}\n{OOM}",
    "oom in serving": f"{_inside('execute_model')}\n{OOM}",
    "oom after": f"{KV}\n{GREW}\n{HEAD}{OOM}",
    "oom in a layer": f"{DECODE}\n{OOM}",
    "illegal after": f"{CAPTURED}\n{GREW}\n{HEAD}{ILLEGAL}",
    "illegal on V2": f"{V2}\n{ILLEGAL}",
    "illegal with DCP": f"(Worker_TP0_DCP0 pid=7) ERROR 05-05 14:02:37 [x.py:1] {ILLEGAL}",
}


def _agrees(finding: Finding) -> None:
    log = log_of(finding)
    assert finding.code in CODES[log.kind]
    for words, denial in DENIED:
        assert not (words in finding.title and re.search(denial, log.why)), finding.title
    told = "\n".join(block(finding, 80))
    assert finding.title.split()[0] in told
    silent = "no sizes" in finding.detail or "unknown size" in finding.detail
    assert not silent or not any(SIZE.search(line) for line in log.evidence), log.evidence
    assert (finding.serving_bytes is None) == (log.required_text is None) or log.kind not in (
        "never_profiled",
        "unlocked_growth_oom",
    )


@pytest.mark.parametrize("path", LOGS or [None], ids=lambda path: path and path.stem)
def test_every_log(path: Path | None) -> None:
    if path is None:
        pytest.skip("the reports are not beside this checkout")
    for finding in read(path.read_bytes()).findings:
        _agrees(finding)


@pytest.mark.parametrize("name", TEXTS)
def test_every_class(name: str) -> None:
    found = read(TEXTS[name]).findings
    assert found
    for finding in found:
        _agrees(finding)


def test_the_texts_show_every_class_but_reservations_and_resources() -> None:
    kinds = {log_of(f).kind for text in TEXTS.values() for f in read(text).findings}
    assert set(CODES) - kinds == {"persistent_resource_missing", "over_reserved"}


def test_memory_that_ran_out_in_profiling_has_its_size() -> None:
    (finding,) = read(TEXTS["oom in profiling"]).findings
    assert finding.title == "memory ran out while warm-up grew the arena"
    assert finding.detail == "tried to allocate 26.21 GiB"
    assert finding.serving_bytes == round(26.21 * 2**30)
    assert log_of(finding).confidence == "certain"
