"""What reads input of others raises nothing but WstraceError, ends soon, and stays small.

For seconds; `scripts/fuzz` does it for minutes, guided by coverage.
"""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.fuzz.mutate import KINDS, WORDS, Edit, damaged
from tools.fuzz.targets import TARGETS, attempt

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
