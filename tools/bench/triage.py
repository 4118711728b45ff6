"""Time and memory of `wstrace triage` on big logs, made here and streamed, not stored.

    scripts/bench triage [--mb 1024] [--shape quiet|crash-loop|ranks|one-line|halves|all]
        [--write]

quiet: a long healthy log with one failure near its end. crash-loop: the same failure again
and again, every line of interest. ranks: the same, each time of eight processes, their lines
mixed. one-line: no newline at all. halves: one line, dense with beginnings of the message
that never end. Prints a line for each and exits 1 where one takes more than the limits: 40 s
of CPU time and 200 MB for 1 GB. Of less than 1 GB the half is measured too, and what 1 GB
takes follows from the two: the first megabytes are read closely, the others only looked
through. --write puts the whole size of every shape into docs/scale.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from tools import ROOT
from tools.bench.machine import machine, write

LIMIT_S, LIMIT_MB, WHOLE_MB = 40.0, 200.0, 1024
BEGIN, END = "<!-- made by scripts/bench triage -->", "<!-- end of triage -->"
HEALTHY = (
    "(APIServer pid=1) INFO 05-05 14:{m:02d}:{s:02d} [loggers.py:271] Engine 000: Avg prompt "
    "throughput: {n}.5 tokens/s, Avg generation throughput: 97.2 tokens/s, Running: {r} reqs, "
    "Waiting: 0 reqs, GPU KV cache usage: 12.3%, Prefix cache hit rate: 45.6%\n"
    '(APIServer pid=1) INFO:     127.0.0.1:{p} - "POST /v1/completions HTTP/1.1" 200 OK\n'
)
MESSAGE = (
    "AssertionError: Workspace is locked but allocation from 'turboquant_attn.py:747:"
    "_continuation_prefill' requires 16.00 MB, current size is 1.02 MB. Workspace growth is "
    "not allowed after locking."
)
FRAMES = (
    "EngineCore encountered a fatal error.",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3/dist-packages/vllm/v1/worker/gpu_worker.py", line 843, in '
    "execute_model",
    "    output = self.model_runner.execute_model(",
    '  File "/usr/lib/python3/dist-packages/vllm/v1/attention/backends/turboquant_attn.py", '
    "line 747, in _continuation_prefill",
    "    k_buf, v_buf = current_workspace_manager().get_simultaneous(",
    '  File "/usr/lib/python3/dist-packages/vllm/v1/worker/workspace.py", line 157, in '
    "_ensure_workspace_size",
    MESSAGE,
)


def healthy(block: int) -> bytes:
    lines = (
        HEALTHY.format(m=block % 60, s=n % 60, n=block * 7 + n, r=n % 9, p=40000 + n % 9999)
        for n in range(3000)
    )
    return "".join(lines).encode()


def crash(block: int) -> bytes:
    clock = f"05-05 {block % 24:02d}:{block % 60:02d}:00"
    lines = (
        f"(EngineCore pid={block // 50}) ERROR {clock} [core.py:1138] {f}\n" for f in FRAMES
    )
    return "".join(lines).encode()


def quiet(size: int) -> Iterator[bytes]:
    made, block = 0, 0
    while made < size:
        data = healthy(block)
        yield data
        made, block = made + len(data), block + 1
    yield crash(1)
    yield healthy(block)


def crash_loop(size: int) -> Iterator[bytes]:
    made, block = 0, 0
    while made < size:
        data = b"".join(crash(block + n) for n in range(200))
        yield data
        made, block = made + len(data), block + 200


def ranks(size: int) -> Iterator[bytes]:
    """Eight workers of one server die at once, again and again."""
    made, block = 0, 0
    while made < size:
        clock = f"05-05 {block % 24:02d}:{block % 60:02d}:00"
        lines = [
            f"(Worker_TP{rank} pid={8 * (block // 50) + rank}) ERROR {clock} [x.py:1] {frame}\n"
            for frame in FRAMES
            for rank in range(8)
        ]
        data = "".join(lines).encode() * 25
        yield data
        made, block = made + len(data), block + 1


def one_line(size: int) -> Iterator[bytes]:
    for _ in range(size >> 20):
        yield b"0123456789abcdef" * (1 << 16)
    yield MESSAGE.encode()


def halves(size: int) -> Iterator[bytes]:
    half = MESSAGE[MESSAGE.index("Workspace") : MESSAGE.index("tion_prefill")].encode()
    for _ in range(size >> 20):
        yield half * ((1 << 20) // len(half))
    yield MESSAGE.encode()


SHAPES = {
    "quiet": quiet,
    "crash-loop": crash_loop,
    "ranks": ranks,
    "one-line": one_line,
    "halves": halves,
}


def measure(shape: str, megabytes: int) -> tuple[float, float, bool]:
    """CPU seconds, peak MB and whether the failure was found, of one run in a pipe."""
    child = subprocess.Popen(
        [sys.executable, "-m", "wstrace.cli.app", "triage", "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    for data in SHAPES[shape](megabytes << 20):
        child.stdin.write(data)
    child.stdin.close()
    found = b"_continuation_prefill" in child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = status
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, found and status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--write", action="store_true", help="Put it into docs/scale.md.")
    options = parser.parse_args()
    if options.write and (options.mb < WHOLE_MB or options.shape != "all"):
        parser.error("--write needs the whole size of every shape")
    failed, rows = False, []
    for shape in SHAPES if options.shape == "all" else (options.shape,):
        start = time.perf_counter()
        seconds, peak, found = measure(shape, options.mb)
        whole = seconds
        if options.mb < WHOLE_MB:
            half, _, _ = measure(shape, options.mb // 2)
            slope = (seconds - half) / (options.mb - options.mb // 2)
            whole = seconds + max(0.0, slope) * (WHOLE_MB - options.mb)
        good = found and whole <= LIMIT_S and peak <= LIMIT_MB
        failed = failed or not good
        rows.append(f"| {shape} | {seconds:.1f} | {peak:.0f} | {'yes' if found else 'no'} |")
        print(
            f"{shape:<11}{options.mb:>6} MB  {seconds:6.1f} s CPU  "
            f"{time.perf_counter() - start:6.1f} s  peak {peak:5.0f} MB  1 GB: {whole:5.1f} s  "
            f"{'found' if found else 'NOT FOUND'}  {'ok' if good else 'TOO MUCH'}",
            flush=True,
        )
    if options.write:
        write(ROOT / "docs" / "scale.md", _page(options.mb, rows, failed), BEGIN, END)
    return int(failed)


def _page(megabytes: int, rows: list[str], failed: bool) -> str:
    head = ["| shape | CPU time, s | peak, MB | failure found |", "| --- | --- | --- | --- |"]
    target = f"Target of each: {LIMIT_S:.0f} s of CPU time and {LIMIT_MB:.0f} MB: "
    told = "missed" if failed else "met"
    lines = ["", f"{megabytes:,} MB each, piped in:", "", *head, *rows, "", f"{target}{told}."]
    return "\n".join([*lines, "", machine(), ""])


if __name__ == "__main__":
    sys.exit(main())
