"""What reads input of others raises nothing but WstraceError, ends soon, and stays small.

For seconds; `scripts/fuzz` does it for minutes, guided by coverage.
"""

from __future__ import annotations

import os
import re
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.fuzz.mutate import KINDS, WORDS, Edit, damaged
from tools.fuzz.targets import DEMO, LOG, TARGETS, attempt

EXAMPLES = {
    "trace": 25,
    "collapsed": 20,
    "run-file": 15,
    "triage": 40,
    "reserve": 20,
    "formula": 60,
}
CPU_SECONDS = 60  # the worst takes 3; what never ends is found on any machine
MEGABYTE = 1 << 20
EDITS: st.SearchStrategy[list[Edit]] = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 1 << 16),
        st.integers(0, 200),
        st.sampled_from(WORDS) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=4,
)


@contextmanager
def in_time() -> Iterator[None]:
    """TimeoutError instead of a hang; by the time computed, so a busy machine is no hang."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_is_understood(name: str) -> None:
    """Else the fuzzer would only ever see the first refusal."""
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_told_in_two_lines_or_read(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())

    @settings(
        max_examples=EXAMPLES.get(name, 60),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(seeds), EDITS)
    def check(seed: bytes, edits: list[Edit]) -> None:
        with in_time():
            attempt(target, damaged(seed, edits)[: target.most])

    check()


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


def test_a_small_model_config_takes_little_memory() -> None:
    (seed,) = TARGETS["model-config"].seeds()
    TARGETS["model-config"].run(seed)
    tracemalloc.start()
    try:
        TARGETS["model-config"].run(seed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTE // 4
