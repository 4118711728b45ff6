"""Scenarios for a vLLM that wstrace does not know, and `wstrace doctor` on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.matrix.harness import MIB, Engine, ask, other_ask, recorded
from tests.matrix.kit import Facts, captured, caught, lock, scenario
from wstrace.cli.app import main


def serve(*requests: Callable[[], Any]) -> list[Any]:
    """A whole engine with one graph and the lock; what its two steps were answered."""

    def capture_model() -> None:
        captured(lambda: ask(MIB))
        lock()

    engine = Engine({"profile_run": lambda: ask(MIB), "capture_model": capture_model}).start()
    answers: list[Any] = []
    engine.script["execute_model"] = lambda: answers.extend(request() for request in requests)
    engine.step(a=3)
    engine.step(b=3)
    return answers


def with_and_without(folder: Path, *requests: Callable[[], Any]) -> Facts:
    """The same engine without the recorder, then with it, and the hooks that stood down."""
    plain = serve(*requests)
    with recorded(folder) as live:
        told = serve(*requests)
    why = {name: hook.why for name, hook in live.hooks.states.items() if not hook.set}
    return {"plain": plain, "recorded": told, "stood_down": why}


@scenario
def future(folder: Path) -> Facts:
    """The same answers with the recorder and without, vLLM's refusal among them."""
    return with_and_without(
        folder,
        lambda: ask(512).numel(),
        lambda: ask(MIB).numel(),
        lambda: caught(lambda: other_ask(2 * MIB)),
    )


@scenario
def quiet(folder: Path) -> Facts:
    """As `future`, and nothing is wrong: only a hook that stood down can spoil the verdict."""
    return with_and_without(folder, lambda: ask(512).numel())


@scenario
def doctor(folder: Path) -> Facts:
    """`wstrace doctor` in this process: text and JSON, each with its exit code."""
    return {form: _doctor(folder, form) for form in ("text", "json")}


def _doctor(folder: Path, form: str) -> tuple[int, str]:
    before, out = sys.argv, StringIO()
    sys.argv = ["wstrace", "doctor", "-o", str(folder), "--format", form]
    try:
        with redirect_stdout(out), redirect_stderr(StringIO()):
            main()
    except SystemExit as left:
        return (left.code if isinstance(left.code, int) else 0), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()
