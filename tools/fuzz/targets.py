"""What reads input of others, each as a function of bytes, with inputs to start from.

A target may raise WstraceError, which a person sees as two lines, and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch

from tools import ROOT
from tools.fuzz.repeated import repeated
from wstrace.errors import WstraceError
from wstrace.expr.expression import parse
from wstrace.expr.interval import interval
from wstrace.expr.maximum import maximise
from wstrace.findings.analysed_run import load_run
from wstrace.report import json as report_json
from wstrace.report import markdown, text
from wstrace.report import triage as triage_output
from wstrace.reserve import reader as reserve_reader
from wstrace.reserve.evaluate import evaluate
from wstrace.trace import reader
from wstrace.trace.records import Limit
from wstrace.triage import report as triage_report
from wstrace.triage.diagnose.numbers import Given
from wstrace.vllm.model_config import read_model_config

BOXES: Final = 2000  # what is instrumented takes ten times as long
DEMO: Final = ROOT / "sample_traces" / "demo-crash"
LIMITS: Final[dict[str, Limit]] = {
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "num_kv_heads": 4,
    "num_attention_heads": 8,
    "head_size": 128,
    "num_computed_tokens": 4095,
}
FORMULAS: Final = (
    "2 * round256(num_kv_heads * round_up(max_model_len - 1, block_size) * head_size * 2)",
    "max(ceil_div(max_num_seqs, 3) % 7, next_pow2(head_size) // 2, -1)",
    "min(max_num_seqs, 8) * (head_size + 1) * 4",
)
MODEL: Final = (
    b'{"architectures": ["X"], "num_attention_heads": 32, "num_key_value_heads": 8, '
    b'"hidden_size": 4096, "head_dim": 128, "compress_ratios": [0, 4, 128], '
    b'"text_config": {"num_experts": 64, "moe_intermediate_size": 1408, "index_topk": 2048}}'
)
LOG: Final = (
    b"(EngineCore pid=9) ERROR 05-05 14:00:00 [core.py:1138] AssertionError: Workspace is "
    b"locked but allocation from 'turboquant_attn.py:747:_continuation_prefill' requires 9.94 "
    b"MB, current size is 2.05 MB. Workspace growth is not allowed after locking.\n"
)


@dataclass(frozen=True)
class Target:
    """`run` reads bytes; `seeds` are inputs that it understands."""

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    most: int = 1 << 16


@contextmanager
def file_of(data: bytes, name: str) -> Iterator[Path]:
    """The bytes as the one file of a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="wstrace-fuzz-"))
    try:
        (folder / name).write_bytes(data)
        yield folder / name
    finally:
        shutil.rmtree(folder)


def trace(data: bytes) -> None:
    """A trace file, and what report makes of it."""
    with file_of(data, "a.wst.jsonl") as file:
        run = load_run(file.parent)
        text.render_text(run)
        markdown.render_markdown(run)
        report_json.render_json(run)


def collapsed(data: bytes) -> None:
    """A trace file whose requests are alike, read once for each and once for all of them."""
    with file_of(data, "a.wst.jsonl") as file:
        with patch.object(reader, "COLLAPSED_FROM", 0):
            once = _told(file.parent, whole=False)
        each = _told(file.parent, whole=True)
    if once != each:
        raise ValueError(f"read once: {once}\nread each: {each}")


def _told(folder: Path, whole: bool) -> tuple[str, str]:
    try:
        run = load_run(folder, whole=whole)
        return text.render_text(run), report_json.render_json(run)
    except WstraceError as error:
        return error.message.replace(str(folder), ""), error.hint or ""


def run_file(data: bytes) -> None:
    """run.json beside a trace."""
    with file_of(data, "run.json") as file:
        for source in DEMO.glob("*.jsonl"):
            shutil.copy(source, file.parent)
        text.render_text(load_run(file.parent))


def triage(data: bytes) -> None:
    """A log."""
    with file_of(data, "log.txt") as file:
        found = triage_report.read([str(file)], Given())
        triage_output.render_text(found)
        triage_output.render_markdown(found)


def reserve(data: bytes) -> None:
    """A reserve config, and its bytes under a live config."""
    with file_of(data, "reserve.yaml") as file:
        config = reserve_reader.load_reserve(file)
        evaluate(config, LIMITS | config.limits)


def read_formula(data: bytes) -> None:
    """A formula: read, printed and read again, evaluated, bounded, maximised."""
    expression = parse(data.decode("utf-8", "replace"))
    if parse(str(expression)) != expression:
        raise ValueError(f"{expression} does not read back")
    values = {name: LIMITS.get(name, 3) for name in expression.names}
    numbers = {n: v for n, v in values.items() if isinstance(v, int)}
    ranges = {name: (1, value) for name, value in numbers.items()}
    for use in (
        lambda: expression.evaluate(numbers),
        lambda: interval(expression.root, ranges),
        lambda: maximise(expression, {}, ranges, budget=BOXES),
    ):
        with suppress(WstraceError):
            use()


def model_config(data: bytes) -> None:
    """A model's config.json."""
    with file_of(data, "config.json") as file:
        read_model_config(file, {"tensor_parallel_size": 2})


def _trace_seeds() -> Iterator[bytes]:
    lines = next(DEMO.glob("*.jsonl")).read_bytes().splitlines(keepends=True)
    kinds = {line[:16]: line for line in lines[1:]}
    yield lines[0] + b"".join(kinds.values())
    yield b"".join(lines)


def _repeated_seeds() -> Iterator[bytes]:
    for seed in _trace_seeds():
        yield b"".join(repeated(seed.splitlines(keepends=True), 3))


def _reserve_seeds() -> Iterator[bytes]:
    for name in ("demo-grow", "h100-vllm-0.21.0-turboquant-grow"):
        yield (ROOT / "sample_traces" / name / "reserve.yaml").read_bytes()


TARGETS: Final = {
    "trace": Target(trace, _trace_seeds),
    "collapsed": Target(collapsed, _repeated_seeds),
    "run-file": Target(run_file, lambda: [(DEMO / "run.json").read_bytes()]),
    "triage": Target(triage, lambda: [LOG, LOG * 3]),
    "reserve": Target(reserve, _reserve_seeds),
    "formula": Target(read_formula, lambda: [formula.encode() for formula in FORMULAS], 2048),
    "model-config": Target(model_config, lambda: [MODEL]),
}


def attempt(target: Target, data: bytes) -> None:
    """Run it; what a person is told in two lines is fine."""
    with suppress(WstraceError):
        target.run(data)
