"""Hooks: set where they fit, alone where they do not, and off again without a trace."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wstrace import recorder
from wstrace.findings.analysed_run import load_run
from wstrace.recorder.install import (
    WORKER_MODULE,
    WORKSPACE_MODULE,
    install,
    uninstall,
)
from wstrace.recorder.settings import Settings
from wstrace.recorder.wrapping import Function, Hooks
from wstrace.trace.records import Hook
from wstrace.versions import release_of
from wstrace.vllm import methods
from wstrace.vllm.methods import Known

EXACT = Known("Owner", "method", "a test", ("self", "size"), exact=True)
LEADING = Known("Owner", "method", "a test", ("self", "size"))


class Owner:
    """What is wrapped."""

    def method(self, size: int) -> int:
        return size


def twice(original: Function) -> Function:
    def method(self: Any, size: int) -> Any:
        return 2 * original(self, size)

    return method


@pytest.fixture
def said() -> list[Hook]:
    return []


@pytest.fixture
def hooks(said: list[Hook]) -> Any:
    made = Hooks(report=said.append, vllm=release_of("0.30.0"))
    yield made
    made.remove()


def test_a_hook_that_fits_is_set_and_taken_off_again(hooks: Hooks, said: list[Hook]) -> None:
    before = vars(Owner)["method"]
    assert hooks.wrap(Owner, EXACT, twice)
    assert Owner().method(3) == 6
    assert said == [Hook(name="Owner.method", set=True)]
    hooks.remove()
    assert vars(Owner)["method"] is before


def test_an_inherited_method_is_wrapped_on_the_subclass_only(hooks: Hooks) -> None:
    class Sub(Owner):
        pass

    hooks.wrap(Sub, EXACT, twice)
    assert (Sub().method(3), Owner().method(3)) == (6, 3)
    hooks.remove()
    assert "method" not in vars(Sub)
    assert Sub().method(3) == 3


def test_setting_a_hook_twice_wraps_once(hooks: Hooks, said: list[Hook]) -> None:
    hooks.wrap(Owner, EXACT, twice)
    assert hooks.wrap(Owner, EXACT, twice)
    assert Owner().method(3) == 6
    assert len(said) == 1


def test_an_added_argument_stands_down_where_the_hook_is_exact(
    hooks: Hooks, said: list[Hook]
) -> None:
    class Newer:
        def method(self, size: int, alignment: int = 1) -> int:
            return size

    assert not hooks.wrap(Newer, EXACT, twice)
    assert said[0].why == "signature is (self, size, alignment), known is (self, size)"
    assert hooks.wrap(Newer, LEADING, twice)


def test_another_first_argument_stands_down_where_the_hook_reads_it(hooks: Hooks) -> None:
    class Newer:
        def method(self, batch: int) -> int:
            return batch

    assert not hooks.wrap(Newer, LEADING, twice)
    assert hooks.states["Newer.method"].why.endswith("known is (self, size, ...)")


def test_a_method_that_is_gone_is_told(hooks: Hooks, said: list[Hook]) -> None:
    assert not hooks.wrap(ModuleType("gone"), EXACT, twice)
    assert said[0].why == "no such method in this vLLM"


@pytest.mark.parametrize(
    ("vllm", "told"),
    [
        ("0.30.2", 0),
        ("0.31.0", 1),
        ("0.31.0rc1.dev7+gabc", 1),
        ("0.1.dev12345+gabc", 1),
        (None, 1),
    ],
)
def test_a_vllm_older_than_the_method_is_nothing_to_tell(vllm: str | None, told: int) -> None:
    said: list[Hook] = []
    newer = Known("Owner", "later", "a test", since="0.31")
    assert not Hooks(report=said.append, vllm=release_of(vllm)).wrap(Owner, newer, twice)
    assert len(said) == told


def test_what_is_no_method_or_cannot_be_replaced_stands_down(hooks: Hooks) -> None:
    class Odd:
        method = 3

    assert not hooks.wrap(Odd, EXACT, twice)
    assert hooks.states["Odd.method"].why == "is a int, not a method"
    append = Known("list", "append", "a test", ("self", "object"))
    assert not hooks.wrap(list, append, twice)
    assert hooks.states["list.append"].why.startswith("cannot be replaced")


def test_a_wrapper_around_ours_stays(hooks: Hooks) -> None:
    class Local(Owner):
        def method(self, size: int) -> int:
            return size

    hooks.wrap(Local, EXACT, twice)
    ours = Local.method
    Local.method = lambda self, size: ours(self, size) + 1  # type: ignore[method-assign]
    hooks.remove()
    assert Local().method(3) == 7


def test_every_hook_of_the_table_has_its_wrapper() -> None:
    text = "".join(path.read_text() for path in Path(recorder.__file__).parent.rglob("*.py"))
    for known in methods.HOOKS:
        made = known.phase is not None or known is methods.RAY_STEP
        assert made or re.search(rf"def {known.name}\(|\"{known.name}\"", text), known.label


def _door_module(monkeypatch: pytest.MonkeyPatch, door: type | None) -> None:
    module = ModuleType("vllm.v1.worker.worker_base")
    if door is not None:
        module.WorkerWrapperBase = door  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, module.__name__, module)


RENAMED = type("WorkerWrapperBase", (), {"start_device": lambda self: None})


@pytest.mark.parametrize(
    ("door", "why"),
    [
        (None, "no class WorkerWrapperBase in vllm.v1.worker.worker_base"),
        (RENAMED, "no such method in this vLLM"),
    ],
)
def test_a_vllm_without_the_door_goes_on_and_the_trace_says_why_it_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, door: type | None, why: str
) -> None:
    _door_module(monkeypatch, door)
    try:
        assert install(Settings(str(tmp_path), "run")).hooks.is_set(methods.DOOR.label) is False
    finally:
        uninstall()
    session = load_run(tmp_path)
    assert session.verdict() == "inconclusive"
    assert session.inconclusive == [
        "no worker left a trace: the recorder never attached to one",
        f"the hook WorkerWrapperBase.init_device stood down: {why}",
    ]


@pytest.mark.parametrize("had_workspace", [True, False])
def test_a_door_that_moved_is_told_by_processes_that_had_a_workspace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, had_workspace: bool
) -> None:
    monkeypatch.delitem(sys.modules, WORKER_MODULE, raising=False)
    monkeypatch.delitem(sys.modules, WORKSPACE_MODULE, raising=False)
    if had_workspace:
        monkeypatch.setitem(sys.modules, WORKSPACE_MODULE, ModuleType(WORKSPACE_MODULE))
    install(Settings(str(tmp_path), "run"))
    uninstall()
    told = "".join(path.read_text() for path in tmp_path.iterdir())
    assert ("WorkerWrapperBase.init_device" in told) == had_workspace
    assert (f"{WORKER_MODULE} was never imported" in told) == had_workspace


def test_a_worker_whose_vllm_has_no_workspace_module_still_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = ModuleType("vllm.v1.worker.worker_base")

    class WorkerWrapperBase:
        worker = Owner()

        def init_device(self) -> str:
            return "started"

    module.WorkerWrapperBase = WorkerWrapperBase  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.worker_base", module)
    try:
        live = install(Settings(str(tmp_path), "run"))
        assert WorkerWrapperBase().init_device() == "started"
        assert "no module" in live.hooks.states["WorkspaceManager"].why
    finally:
        uninstall()


def _sent_by_ray(function: Any) -> Any:
    """What Ray's actor classes have for a method: a wrapper with the attributes of a driver's
    wrapper, in a process where `function` is vLLM's own again."""

    @functools.wraps(function)
    def _resume_span(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    vars(_resume_span)["__wstrace_original__"] = function
    return _resume_span


def test_the_door_of_an_actors_class_is_found_and_passed_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class WorkerWrapperBase:
        worker = Owner()

        def init_device(self) -> str:
            return "started"

    class RayWorkerWrapper(WorkerWrapperBase):
        pass

    class Actor(RayWorkerWrapper):
        init_device = _sent_by_ray(WorkerWrapperBase.init_device)

    class Own(WorkerWrapperBase):
        def init_device(self) -> str:
            return super().init_device()

    passed: list[Any] = []
    monkeypatch.setattr(
        "wstrace.recorder.install._before_init_device", lambda live, door: passed.append(door)
    )
    monkeypatch.setattr("wstrace.recorder.install._after_init_device", lambda live, door: None)
    _door_module(monkeypatch, WorkerWrapperBase)
    doors = [Actor(), Own(), RayWorkerWrapper()]
    try:
        install(Settings(str(tmp_path), "run"))
        assert [door.init_device() for door in doors] == ["started"] * 3
    finally:
        uninstall()
    assert passed == doors
    assert [door.init_device() for door in doors] == ["started"] * 3
    assert passed == doors


@pytest.mark.parametrize("records", [True, False])
def test_a_step_of_the_older_ray_executor_counts_once_and_is_let_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: bool
) -> None:
    """Its workers call the runner's methods; the worker's own are for every other executor."""

    class Worker:
        rank, vllm_config = 0, None

        def execute_model(self, scheduler_output: Any) -> str:
            return "worker's"

    class WorkerWrapperBase:
        worker = Worker()

        def init_device(self) -> str:
            return "started"

    def execute_model_ray(self: Any, execute_model_input: Any) -> Any:
        during.append(live.steps.output)
        if execute_model_input[1] == "breaks":
            raise KeyError("vLLM's")
        return execute_model_input[1]

    class Actor(WorkerWrapperBase):
        init_device = _sent_by_ray(WorkerWrapperBase.init_device)

    Actor.execute_model_ray = _sent_by_ray(execute_model_ray)  # type: ignore[attr-defined]
    during: list[Any] = []
    real, nothing = _planned(a=3, b=1), _planned()
    _door_module(monkeypatch, WorkerWrapperBase)
    try:
        asked = Settings(str(tmp_path) if records else None, "run", guard=not records)
        live, actor = install(asked), Actor()
        actor.init_device()
        step = actor.execute_model_ray  # type: ignore[attr-defined]
        assert (step((real, "given")), step((nothing, "none", object()))) == ("given", "none")
        with pytest.raises(KeyError):
            step(execute_model_input=(real, "breaks"))
        assert actor.worker.execute_model(real) == "worker's"
        counted = (live.steps.index, live.steps.real, live.steps.max_tokens)
        assert counted == ((4, 3, 4) if records else (0, 0, 0))
        assert during == ([real, nothing, real] if records else [None] * 3)
        assert live.steps.output is None
        step((real, "given"))
        assert (live.steps.output, live.steps.paused, live.steps.running) == (None, None, False)
    finally:
        uninstall()
    assert actor.execute_model_ray((real, "given")) == "given"  # type: ignore[attr-defined]
    assert live.steps.real == (4 if records else 0)


def _planned(**tokens: int) -> Any:
    """What the recorder reads of a SchedulerOutput with these new requests."""
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=[],
        scheduled_cached_reqs=None,
    )


def test_a_wrapper_below_somebody_elses_is_not_wrapped_again(hooks: Hooks) -> None:
    hooks.wrap(Owner, EXACT, twice)
    ours = vars(Owner)["method"]

    @functools.wraps(ours)
    def theirs(self: Owner, size: int) -> Any:
        return ours(self, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Owner, "method", theirs)
        assert hooks.wrap(Owner, EXACT, twice)
        assert Owner().method(3) == 6
