"""What may change in a coming vLLM: edits of a copy of the newest sources, one a future."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix.wheels import CHANGES

Edit = Callable[[str], str]
ENSURE = "WorkspaceManager._ensure_workspace_size"
DOOR = "WorkerWrapperBase.init_device"
WORKER = "vllm/v1/worker/gpu_worker.py"
WRAPPER = "vllm/v1/worker/worker_base.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
WORKSPACE = "vllm/v1/worker/workspace.py"
SCRATCH = "vllm/v1/worker/scratch_memory.py"


@dataclass(frozen=True)
class Future:
    """A future: its edits by file, and what wstrace must make of it.

    `hook` stands down because of `why` ("" where none does); `doctor` is what doctor fails on;
    `blind` where an escape is not seen as one. `renamed` and `modules` tell the harness how
    this vLLM is driven; `moved` are files under a new name, `added` new ones.
    """

    hook: str = ""
    why: str = ""
    edits: dict[str, Edit] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    doctor: str = ""
    blind: bool = False

    def apply(self, sources: Path) -> None:
        """Edit the copy in place; an edit that changes nothing is an error."""
        for file, edit in self.edits.items():
            before = (sources / file).read_text()
            (sources / file).write_text(edit(before))
            assert (sources / file).read_text() != before, f"the edit of {file} changed nothing"
        for old, new in self.moved.items():
            self._move(sources, old, new)
        for file, text in self.added.items():
            (sources / file).write_text(text)
        changes = {"renamed": self.renamed, "modules": self.modules}
        (sources / CHANGES).write_text(json.dumps(changes))

    @staticmethod
    def _move(sources: Path, old: str, new: str) -> None:
        """Give a module another name, everywhere."""
        (sources / old).rename(sources / new)
        was, now = (name.removesuffix(".py").replace("/", ".") for name in (old, new))
        for file in sources.rglob("*.py"):
            file.write_text(re.sub(rf"\b{re.escape(was)}\b", now, file.read_text()))


def renamed(old: str, new: str) -> Edit:
    """All uses of a name."""
    return lambda text: re.sub(rf"\b{old}\b", new, text)


def takes(method: str, argument: str, after: str = "self") -> Edit:
    """The method takes one more argument, behind `after`."""
    head = re.compile(rf"(def {method}\(\s*(?:.*?\b)?{after}\b(?::[^,)]*)?)(,|\))", re.DOTALL)
    return lambda text: head.sub(rf"\1, {argument}\2", text, count=1)


def replaced(old: str, new: str) -> Edit:
    """A piece of text."""
    return lambda text: text.replace(old, new)


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def edit(text: str) -> str:
        for each in edits:
            text = each(text)
        return text

    return edit


def no_method(owner: str, name: str, *files: str) -> Future:
    """A method of the worker, the runner or the door under another name."""
    label, now = f"{owner}.{name}", f"{name}_anew"
    edits = {file: renamed(name, now) for file in files}
    why = "no such method in this vLLM"
    return Future(label, why, edits, {f"{owner}.{name}": now}, doctor=label)


def of_graphs(name: str) -> Future:
    """A method of PyTorch's CUDAGraph under another name: the child process renames it."""
    label = f"CUDAGraph.{name}"
    return Future(label, "no such method", renamed={label: f"{name}_anew"}, doctor=label)


def manager(why: str, edit: Edit, hook: str = ENSURE, blind: bool = True) -> Future:
    """The manager itself changed."""
    return Future(hook, why, {WORKSPACE: edit}, doctor=hook, blind=blind)


RE_EXPORT = """
from vllm.v1.worker import scratch_memory

globals().update({k: v for k, v in vars(scratch_memory).items() if not k.startswith("__")})
"""
FUTURES: dict[str, Future] = {
    "manager: method renamed": manager(
        "no such method", renamed("_ensure_workspace_size", "_room")
    ),
    "manager: argument added": manager(
        "alignment",
        both(
            takes("_ensure_workspace_size", "alignment: int", "required_bytes"),
            replaced(
                "self._ensure_workspace_size(total_bytes)",
                "self._ensure_workspace_size(total_bytes, alignment=256)",
            ),
        ),
    ),
    "manager: lock takes an argument": manager(
        "strict", takes("lock", "strict: bool = True"), "WorkspaceManager.lock", False
    ),
    "manager: unlock renamed": manager(
        "no such method", renamed("unlock", "open_up"), "WorkspaceManager.unlock", False
    ),
    "manager: a resource's key has another name": manager(
        "name", renamed("key", "name"), "WorkspaceManager.get_persistent_resource", False
    ),
    "manager: field renamed": manager(
        "the manager has no field _current_workspaces",
        renamed("_current_workspaces", "_arenas"),
        blind=False,  # the refusal is recorded, though no request is
    ),
    "manager: class renamed": Future(
        "WorkspaceManager",
        "not in vllm.v1.worker.workspace",
        {WORKSPACE: renamed("WorkspaceManager", "ScratchManager")},
        doctor="vllm.v1.worker.workspace:WorkspaceManager",
        blind=True,
    ),
    "manager: moved to another module": Future(
        "WorkspaceManager",
        "no module vllm.v1.worker.workspace",
        modules={"v1.worker.workspace": "v1.worker.scratch_memory"},
        moved={WORKSPACE: SCRATCH},
        doctor="vllm.v1.worker.workspace:WorkspaceManager",
        blind=True,
    ),
    "manager: moved, and the old module re-exports it": Future(
        modules={"v1.worker.re_exported": "v1.worker.scratch_memory"},
        moved={WORKSPACE: SCRATCH},
        added={WORKSPACE: RE_EXPORT},
    ),
    "door: method renamed": Future(
        DOOR,
        "no such method",
        {WRAPPER: renamed("init_device", "open"), WORKER: renamed("init_device", "open")},
        {DOOR: "open", "Worker.init_device": "open"},
        doctor=DOOR,
        blind=True,
    ),
    "door: class renamed": Future(
        DOOR,
        "no class WorkerWrapperBase",
        {WRAPPER: renamed("WorkerWrapperBase", "WorkerShell")},
        {"WorkerWrapperBase": "WorkerShell"},
        doctor="vllm.v1.worker.worker_base:WorkerWrapperBase",
        blind=True,
    ),
    "door: moved to another module": Future(
        DOOR,
        "vllm.v1.worker.worker_base was never imported",
        modules={"v1.worker.worker_base": "v1.worker.shell"},
        moved={WRAPPER: "vllm/v1/worker/shell.py"},
        doctor="vllm.v1.worker.worker_base:WorkerWrapperBase",
        blind=True,
    ),
    "worker: execute_model renamed": Future(
        "Worker.execute_model",
        "no such method in this vLLM",
        {WORKER: renamed("execute_model", "step"), WRAPPER: renamed("execute_model", "step")},
        {"Worker.execute_model": "step", "WorkerWrapperBase.execute_model": "step"},
        doctor="Worker.execute_model",
    ),
    "worker: execute_model takes an argument first": Future(
        "Worker.execute_model",
        "signature is (self, step_number, scheduler_output",
        {
            WORKER: takes("execute_model", "step_number: int"),
            WRAPPER: replaced("worker.execute_model(", "worker.execute_model(0, "),
        },
        doctor="Worker.execute_model",
    ),
    "worker: execute_model takes one argument more": Future(
        edits={WORKER: takes("execute_model", "step_number: int = 0", "scheduler_output")}
    ),
    "worker: execute_model renamed, its base class still declares it": Future(
        "Worker.execute_model",
        "declared and not implemented",
        {
            WORKER: renamed("execute_model", "run_step"),
            WRAPPER: replaced("worker.execute_model(", "worker.run_step("),
        },
        {"Worker.execute_model": "run_step"},
        doctor="Worker.execute_model",
    ),
    "worker: compile_or_warm_up_model renamed": Future(
        "Worker.compile_or_warm_up_model",
        "no such method in this vLLM",
        {
            WORKER: renamed("compile_or_warm_up_model", "warm_up"),
            WRAPPER: renamed("compile_or_warm_up_model", "warm_up"),
        },
        {"Worker.compile_or_warm_up_model": "warm_up"},
        doctor="Worker.compile_or_warm_up_model",
    ),
    "worker: load_model takes an argument": Future(
        edits={WORKER: takes("load_model", "stage: int = 0")}
    ),
    "worker: moved to another module": Future(
        modules={"v1.worker.gpu_worker": "v1.worker.device_worker"},
        moved={WORKER: "vllm/v1/worker/device_worker.py"},
    ),
    "runner: profile_run renamed": no_method("GPUModelRunner", "profile_run", RUNNER),
    "runner: capture_model renamed": no_method("GPUModelRunner", "capture_model", RUNNER),
    "runner: profile_run takes an argument": Future(
        edits={RUNNER: takes("profile_run", "stage: int = 0")}
    ),
    "graph: capture_begin renamed": of_graphs("capture_begin"),
    "graph: capture_end renamed": of_graphs("capture_end"),
    "graph: reset renamed": of_graphs("reset"),
}
