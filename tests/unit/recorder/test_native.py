"""The look-up in C decides as the wrapper in Python does, or leaves the request to it.

Skipped where `wstrace-native` is not installed: `scripts/test-native` builds it, and runs the
recorder's other tests with it too.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import threading
import tomllib
import traceback
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wstrace
from tests.unit.recorder.test_ways import Recorded
from wstrace.cli.checkup import look_up_check
from wstrace.recorder.hooks import native
from wstrace.recorder.hooks.native import NotUsedError, extension, wrap_seen
from wstrace.recorder.settings import Settings, read_settings
from wstrace.recorder.state.counters import Counters, Entry
from wstrace.recorder.state.process import Live
from wstrace.trace.records import Slot

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
built = pytest.mark.skipif(
    find_spec(native.MODULE) is None and "WSTRACE_REQUIRE_NATIVE" not in os.environ,
    reason="wstrace-native is not installed: scripts/test-native builds it",
)


def test_the_extension_has_wstraces_version_and_the_extra_names_it() -> None:
    setup = (ROOT / "tools/native/setup.py").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["native"]
    # matches: 'VERSION = "0.1.0"'
    assert re.findall(r'^VERSION = "(.+)"$', setup, re.MULTILINE) == [wstrace.__version__]
    assert extra == [f"wstrace-native=={wstrace.__version__}"]


def fake(monkeypatch: pytest.MonkeyPatch, **content: Any) -> None:
    module = ModuleType(native.MODULE)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, native.MODULE, module)


def why_not() -> str:
    with pytest.raises(NotUsedError) as told:
        extension()
    return str(told.value)


def test_what_keeps_it_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, native.MODULE, None)
    assert why_not() == "wstrace-native is not installed"
    fake(monkeypatch, __version__="0.0.1")
    assert why_not() == f"wstrace-native is 0.0.1, wstrace {wstrace.__version__}"
    fake(monkeypatch)
    assert why_not() == f"wstrace-native is None, wstrace {wstrace.__version__}"
    fake(monkeypatch, __version__=wstrace.__version__, seen=lambda *_: False)
    monkeypatch.delattr("torch.compiler.substitute_in_graph")
    assert why_not().startswith("PyTorch cannot trace past it: ImportError: ")


def test_doctor_says_which_one_a_run_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WSTRACE_NATIVE", raising=False)
    monkeypatch.setitem(sys.modules, native.MODULE, None)
    told = "looked up in Python (wstrace-native is not installed)"
    assert look_up_check().detail == told
    monkeypatch.setattr(native, "_tell_dynamo", lambda seen: None)
    fake(monkeypatch, __version__=wstrace.__version__, seen=lambda *_: False)
    assert look_up_check().detail == f"looked up in C (wstrace-native {wstrace.__version__})"
    monkeypatch.setenv("WSTRACE_NATIVE", "0")
    assert look_up_check().detail == "looked up in Python (WSTRACE_NATIVE)"
    assert look_up_check().state == "ok"


@pytest.mark.parametrize("content", [{"__version__": "0.0.1"}, {}])
def test_python_looks_up_where_it_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
) -> None:
    fake(monkeypatch, **content)
    live = Live(Settings(directory=str(tmp_path), run="r"))
    assert wrap_seen(live)(_same)(None, 7) == 7
    assert live.counters.table is None


def test_it_can_be_switched_off() -> None:
    assert read_settings({}).native
    assert not read_settings({"WSTRACE_NATIVE": "0"}).native
    assert not read_settings({"VLLM_WSTRACE_NATIVE": "off"}).native


@built
def test_it_is_used_unless_it_is_switched_off(tmp_path: Path) -> None:
    for asked in (True, False):
        live = Live(Settings(directory=str(tmp_path), run="r", native=asked))
        wrap_seen(live)
        assert (live.counters.table is not None) == asked


WORDS = st.lists(st.sampled_from(("d1", "d2", "p1", "p2", "!", "0", "1")), max_size=30)


@built
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(WORDS)
def test_python_and_c_record_and_count_alike(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    """A decode or prefill by one of two callers; a new phase (!); another slot (0, 1)."""
    told = []
    for looks_in_c in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not looks_in_c:
                patch.setitem(sys.modules, native.MODULE, None)
            recorded = Recorded(tmp_path_factory.mktemp("r"))
        live = recorded.live
        assert (live.counters.table is not None) == looks_in_c
        recorded.manager._current_workspaces *= 2
        for word in words:
            if word == "!":
                live.forget_hot()
            elif word in "01":
                index = int(word)
                live.manager.slot_of = lambda _, index=index: index
            else:
                recorded.traffic((word,))
        live.forget_hot()
        made = [(a, a.provenance and a.provenance.formula) for a in recorded.requests()]
        requests = [(request.bytes, request.slot, formula) for request, formula in made]
        counted = {k: (v.calls, v.max_bytes) for k, v in live.counters.tallies.items()}
        told.append((requests, counted))
    assert told[0] == told[1]
    assert sum(calls for calls, _ in told[0][1].values()) == sum(w[0] in "dp" for w in words)


def _same(manager: Any, size: Any) -> Any:
    return size


class Rig:
    """A hot wrapper in C around `answer`, asked by `ask`."""

    def __init__(self, folder: Path, answer: Callable[[Any, Any], Any]) -> None:
        self.live = Live(Settings(directory=str(folder), run="r"))
        self.ensure = wrap_seen(self.live)(answer)
        self._current_workspaces = [None]

    def manager(self, size: Any) -> Any:
        return self.ensure(self, size)

    def ask(self, size: Any) -> Any:
        return self.manager(size)

    def calls(self) -> int:
        return sum(entry.calls for entry in self.live.counters.entries())


@built
def test_an_error_of_vllms_is_the_same_object_with_the_frames_of_the_wrapper(
    tmp_path: Path,
) -> None:
    wrong = KeyError("vLLM's own")
    fails: list[bool] = []

    def answer(manager: Any, size: Any) -> Any:
        if fails:
            raise wrong
        return size

    rig = Rig(tmp_path, answer)
    rig.ask(256)
    fails.append(True)
    with pytest.raises(KeyError) as told:
        rig.ask(256)
    assert told.value is wrong
    names = [frame.name for frame in traceback.extract_tb(told.value.__traceback__)][1:]
    assert names == ["ask", "manager", "_ensure_workspace_size", "answer"]
    assert (wrong.__context__, wrong.__cause__) == (None, None)
    assert rig.calls() == 2


@built
@pytest.mark.parametrize("size", [True, 256.0, 1 << 80, "256", None])
def test_what_is_no_plain_integer_is_left_to_python(tmp_path: Path, size: Any) -> None:
    rig = Rig(tmp_path, _same)
    for _ in range(3):
        assert rig.ask(size) is size
    assert rig.calls() == 3
    assert len(rig.live.counters.table) == 0  # type: ignore[arg-type]


@built
def test_an_error_in_the_slot_is_pythons_and_an_interrupt_is_nobodys(tmp_path: Path) -> None:
    rig = Rig(tmp_path, _same)
    rig.ask(256)

    def raises(error: BaseException) -> Callable[[Any], int]:
        def slot_of(manager: Any) -> int:
            raise error

        return slot_of

    rig.live.manager.slot_of = raises(KeyError("no slot"))
    assert rig.ask(256) == 256
    rig.live.manager.slot_of = raises(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        rig.ask(256)


@built
def test_the_table_may_be_emptied_while_it_is_looked_at(tmp_path: Path) -> None:
    """A slot is asked of vLLM, and a frame's making may run a finaliser: both run code."""
    rig = Rig(tmp_path, _same)
    rig.live.manager.slot_of = lambda _: 0
    rig.ask(256)

    def empties(manager: Any) -> int:
        rig.live.forget_hot()
        gc.collect()
        return 0

    rig.live.manager.slot_of = empties
    for _ in range(3):
        rig.ask(256)
    rig.live.forget_hot()
    assert sum(tally.calls for tally in rig.live.counters.tallies.values()) == 4


@built
def test_a_second_recorders_table_is_its_own_and_goes_with_it(tmp_path: Path) -> None:
    def two() -> list[weakref.ref[Live]]:
        first, second = Rig(tmp_path, _same), Rig(tmp_path, _same)
        for rig in (first, second, first):
            rig.ask(256)
        assert (first.calls(), second.calls()) == (2, 1)
        return [weakref.ref(first.live), weakref.ref(second.live)]

    alive = two()
    gc.collect()
    assert [live() for live in alive] == [None, None]


@built
def test_a_forked_child_counts_for_itself(tmp_path: Path) -> None:
    rig = Rig(tmp_path, _same)
    rig.ask(256)
    rig.ask(256)
    rig.live.counters.forked()
    assert rig.calls() == 0
    rig.ask(256)
    assert rig.calls() == 1


@built
def test_a_threads_first_function_has_no_caller(tmp_path: Path) -> None:
    rig = Rig(tmp_path, _same)
    rig.ask(256)
    thread = threading.Thread(target=lambda: None)
    answers: list[Any] = []
    thread.run = lambda: answers.append(rig.manager(256))  # type: ignore[method-assign]
    thread.start()
    thread.join()
    assert answers == [256]


@built
def test_wrong_arguments_are_refused() -> None:
    module = importlib.import_module(native.MODULE)
    counters = Counters()

    class Loose:
        """Its fields are no slots."""

        slot_of = None

    with pytest.raises(TypeError, match="slot_of is no slot"):
        module.Table(Entry, Loose(), 2)
    with pytest.raises((TypeError, AttributeError)):
        module.Table(Counters, counters, 2)
    for wrong in ((), (None, None, 1), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            module.seen(*wrong)
    table = module.Table(Entry, Live(Settings(None, "r")).manager, 2)
    entry = Entry(0, 1, Slot(), 0)
    for wrong_put in ((), (1, 2, 3, 4, entry), (Rig.ask.__code__, 1, 2, 3, "entry")):
        with pytest.raises(TypeError):
            table.put(*wrong_put)
    table.put(Rig.ask.__code__, "place", 2, None, entry)
    assert len(table) == 0


@built
def test_many_keys_are_kept_apart(tmp_path: Path) -> None:
    rig = Rig(tmp_path, _same)
    for _ in range(2):
        for size in range(0, 256 * 3000, 256):
            rig.ask(size)
    entries = rig.live.counters.entries()
    assert {entry.bytes: entry.calls for entry in entries} == dict.fromkeys(
        range(0, 256 * 3000, 256), 2
    )


@built
def test_the_worker_record_says_so() -> None:
    from wstrace.trace.records import Ranks, WorkerInit

    told = WorkerInit(ranks=Ranks(), world=Ranks(), limits={}, native=True)
    assert b'"native":true' in msgspec.json.encode(told)
