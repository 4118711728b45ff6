"""`wstrace doctor` on a vLLM of the future: text, JSON and exit code name the lost hook."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wstrace.cli import app as program
from wstrace.cli import checkup, fit
from wstrace.vllm.methods import HOOKS, Known

ENSURE = "WorkspaceManager._ensure_workspace_size"
METHODS = [known for known in HOOKS if known.name != "__init__"]
Answer = tuple[int, str]


def method(parameters: Iterable[str]) -> Any:
    """A method that takes these parameters."""

    def made(*args: Any, **kwargs: Any) -> None:
        return None

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in parameters])
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made


class Vllm:
    """Every module and class of the hook table, each method as the table knows it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owners: dict[str, Any] = {}
        for place in fit.PLACES:
            module = sys.modules.get(place.module)
            if place.module.startswith("vllm") and not hasattr(module, "made_here"):
                module = ModuleType(place.module)
                module.made_here = True  # type: ignore[attr-defined]
                monkeypatch.setitem(sys.modules, place.module, module)
            assert module is not None
            self._fill(monkeypatch, module, place)

    def _fill(self, monkeypatch: pytest.MonkeyPatch, module: Any, place: fit.Place) -> None:
        methods = {known.name: method(known.parameters) for known in place.hooks}
        owner = type(place.owner, (), methods | {"__init__": fields}) if place.owner else module
        if place.owner:
            monkeypatch.setattr(module, place.owner, owner, raising=False)
        else:
            vars(module).update(methods)
        self.owners[place.name] = owner

    def owners_of(self, known: Known) -> list[Any]:
        """The classes (or the module) that have this method."""
        return [self.owners[place.name] for place in fit.PLACES if known in place.hooks]


def fields(self: Any, *device: Any) -> None:
    """The manager's fields."""
    self._current_workspaces, self._device = [], device
    self._locked, self._num_ubatches = False, 1


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    pytest.importorskip("torch")
    monkeypatch.setattr(checkup, "_vllm", lambda: checkup.Check("vLLM", "ok", "99.0"))
    monkeypatch.setattr(checkup, "plugin_check", lambda: checkup.Check("plugin", "ok", "there"))
    monkeypatch.setattr(fit, "installed_vllm", lambda: "99.0")
    return Vllm(monkeypatch)


@pytest.fixture
def doctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Answer]:
    def run(*options: str) -> Answer:
        argv = ["wstrace", "doctor", "-o", str(tmp_path), *options]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as left:
            program.main()
        code = left.value.code
        return (code if isinstance(code, int) else 0), capsys.readouterr().out

    return run


def test_where_all_hooks_fit_doctor_is_content(vllm: Vllm, doctor: Any) -> None:
    code, text = doctor()
    assert code == 0, text
    assert "FAIL" not in text
    code, text = doctor("--format", "json")
    answer = json.loads(text)
    assert (code, answer["ready"], answer["stand_down"]) == (0, True, [])
    assert {check["state"] for check in answer["checks"]} == {"ok"}


@pytest.mark.parametrize("known", METHODS, ids=lambda known: known.label)
def test_a_method_that_was_renamed_is_named(
    vllm: Vllm, doctor: Any, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in vllm.owners_of(known):
        monkeypatch.delattr(owner, known.name)
    said(doctor, known.label, "no such method in this vLLM")


@pytest.mark.parametrize(
    "known", [k for k in HOOKS if k.exact or len(k.parameters) > 1], ids=lambda k: k.label
)
def test_a_method_that_takes_another_argument_is_named(
    vllm: Vllm, doctor: Any, known: Known
) -> None:
    first = known.parameters[:1]
    for owner in vllm.owners_of(known):
        setattr(owner, known.name, method((*first, "alignment", *known.parameters[1:])))
    said(doctor, known.label, "alignment")


@pytest.mark.parametrize("known", [k for k in METHODS if not k.exact], ids=lambda k: k.label)
def test_an_argument_that_is_passed_through_is_no_misfit(
    vllm: Vllm, doctor: Any, known: Known
) -> None:
    for owner in vllm.owners_of(known):
        setattr(owner, known.name, method((*known.parameters, "alignment")))
    assert doctor()[0] == 0


def said(doctor: Any, label: str, why: str) -> None:
    """Text and JSON say that this hook stands down, it alone, and the exit code is 1."""
    code, text = doctor()
    assert code == 1
    told = [line for line in text.splitlines() if line.startswith("FAIL")]
    assert told
    assert all(line.startswith(f"FAIL  {label}: ") and why in line for line in told)
    code, text = doctor("--format", "json")
    answer = json.loads(text)
    assert (code, answer["ready"]) == (1, False)
    assert {lost["hook"] for lost in answer["stand_down"]} == {label}
    assert why in answer["stand_down"][0]["why"]


def test_a_field_that_was_renamed_is_known_from_an_instance(vllm: Vllm, doctor: Any) -> None:
    def other_fields(self: Any, *device: Any) -> None:
        fields(self)
        self._arenas = self.__dict__.pop("_current_workspaces")

    manager = vllm.owners["vllm.v1.worker.workspace:WorkspaceManager"]
    manager.__init__ = other_fields
    said(doctor, ENSURE, "no field _current_workspaces")


@pytest.mark.parametrize(
    ("place", "code", "mark"),
    [
        ("vllm.v1.worker.workspace:WorkspaceManager", 1, "FAIL"),
        ("vllm.v1.worker.worker_base:WorkerWrapperBase", 1, "FAIL"),
        ("vllm.v1.worker.gpu_worker:Worker", 0, "note"),
    ],
)
def test_a_class_that_moved_is_told(
    vllm: Vllm,
    doctor: Any,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    code: int,
    mark: str,
) -> None:
    module, _, owner = place.partition(":")
    monkeypatch.delattr(sys.modules[module], owner)
    found, text = doctor()
    assert f"{mark}  {place}: no class {owner} in {module}" in text
    assert found == code


def test_an_older_vllm_lacks_what_came_later(
    vllm: Vllm, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "installed_vllm", lambda: "0.13.0")
    manager = vllm.owners["vllm.v1.worker.workspace:WorkspaceManager"]
    del manager.unlock, manager.get_persistent_resource
    assert doctor()[0] == 0
    del manager.lock
    assert doctor()[0] == 1


def test_without_vllm_there_is_one_line_about_it(
    doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "installed_vllm", lambda: None)
    monkeypatch.setattr(checkup, "find_spec", lambda name: None)
    code, text = doctor()
    assert code == 1
    assert text.count("FAIL") == 1
    assert "FAIL  vLLM: not installed here" in text
    assert "cannot be imported" not in text


def test_a_vllm_without_the_older_ray_executor_has_no_line_about_it(
    vllm: Vllm, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["vllm.v1.executor.ray_utils"]
    assert "RayWorkerWrapper: the method is as known" in doctor()[1]
    monkeypatch.setattr(module, "RayWorkerWrapper", None)  # as without Ray
    code, text = doctor()
    assert (code, "RayWorkerWrapper" in text) == (0, False)


def test_a_source_tree_on_the_path_is_a_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "installed_vllm", lambda: None)
    monkeypatch.setattr(checkup, "find_spec", lambda name: object())
    found = checkup._vllm()
    assert found.state == "warn"
    assert found.detail.endswith("taken for newer than 0.33.0")
