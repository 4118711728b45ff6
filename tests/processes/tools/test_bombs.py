"""What reads input of others stays small, whatever the input is made of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.tools.test_fuzz import MEGABYTE, in_time
from tools.fuzz.targets import DEMO, LOG, TARGETS, attempt


def trace_head() -> bytes:
    return next(DEMO.glob("*.jsonl")).read_bytes()


def filled(piece: bytes, size: int = 4 * MEGABYTE) -> bytes:
    return piece * (size // len(piece))


NOTE = b'{"t":"note","ns":1,"text":"x"}\n'
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a trace of notes": ("trace", lambda: trace_head() + filled(NOTE)),
    "a trace whose line never ends": ("trace", lambda: trace_head() + filled(b"x")),
    "a trace of open lists": ("trace", lambda: trace_head() + filled(b"[")),
    "a trace of unknown kinds": (
        "trace",
        lambda: trace_head() + filled(b'{"t":"new"}\n', MEGABYTE),
    ),
    "a run file of open objects": ("run-file", lambda: filled(b'{"a":')),
    "a log of one line": ("triage", lambda: filled(b"0123456789abcdef")),
    "a log of failures": ("triage", lambda: filled(LOG, 2 * MEGABYTE)),
    "a log of halves": ("triage", lambda: filled(LOG[60:180], 2 * MEGABYTE)),
    "a log of line ends": ("triage", lambda: filled(b"\n", MEGABYTE // 4)),
    "a reserve of one key": ("reserve", lambda: filled(b"a", MEGABYTE)),
    "a reserve of open lists": ("reserve", lambda: filled(b"[", MEGABYTE)),
    "a reserve of small lists": (
        "reserve",
        lambda: b"slots:\n" + filled(b"- [1, 2]\n", MEGABYTE // 2),
    ),
    "a formula of brackets": ("formula", lambda: b"(" * 16000),
    "a formula of products": ("formula", lambda: b"9" * 4000 + b"*9" * 6000),
    "a formula of minuses": ("formula", lambda: b"-" * 16000 + b"1"),
    "a model of open lists": ("model-config", lambda: filled(b"[", MEGABYTE)),
    "a model of numbers": ("model-config", lambda: b"[" + filled(b"1,") + b"1]"),
    "a model of digits": ("model-config", lambda: b'{"hidden_size":' + filled(b"9") + b"}"),
}
SLACK = 24 * MEGABYTE  # windows of fixed size, and what is read once: rules, grammars


def peak_of(target: str, data: bytes) -> int:
    """Bytes by which a process grows at most while it reads `data`; a fork of this one."""
    attempt(TARGETS[target], next(iter(TARGETS[target].seeds())))
    result, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
            before = memory("VmRSS")
            with in_time():
                attempt(TARGETS[target], data)
            os.write(told, str(memory("VmHWM") - before).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(told)
    with open(result) as answer:
        return int(answer.read() or -1)


def memory(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", BOMBS)
def test_memory_stays_below_ten_times_the_input(name: str) -> None:
    target, make = BOMBS[name]
    data = make()
    peak = peak_of(target, data)
    assert 0 <= peak <= 10 * len(data) + SLACK, f"{peak / len(data):.1f} times its input"
