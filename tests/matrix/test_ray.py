"""The older Ray executor of each release: its own `execute_model_ray`, compiled from its source
and run under the recorder's wrapper. Ray is not needed, and no more of vLLM than that class."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.matrix.conftest import chosen_versions
from tests.matrix.runs import parsed
from tests.matrix.wheels import UnavailableError, python_files
from wstrace.recorder.hooks.worker import ray_step
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.process import Live
from wstrace.vllm.methods import RAY_STEP

pytestmark = pytest.mark.matrix
SOURCE = "vllm/v1/executor/ray_utils.py"


@pytest.mark.parametrize("version", chosen_versions())
def test_a_step_of_its_worker_passes_the_hook_and_not_the_workers_method(
    version: str, tmp_path: Path
) -> None:
    try:
        source = (python_files(version) / SOURCE).read_text()
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef)]
    written = [n for n in found if n.name == RAY_STEP.owner]
    assert bool(written) == (parsed(version)[:2] <= parsed(RAY_STEP.until))
    for node in written:
        _steps(_compiled(node), tmp_path)


def _compiled(node: ast.ClassDef) -> Any:
    """The class as vLLM wrote it, over what it takes from elsewhere."""
    later = ast.parse("from __future__ import annotations")
    later.body.append(node)
    names: dict[str, Any] = {
        "WorkerWrapperBase": object,
        "current_platform": SimpleNamespace(
            is_tpu=lambda: False, set_device=lambda device: None
        ),
        "get_pp_group": lambda: SimpleNamespace(is_last_rank=True, is_first_rank=True),
        "IntermediateTensors": type("IntermediateTensors", (), {}),
        "AsyncModelRunnerOutput": type("AsyncModelRunnerOutput", (), {}),
    }
    exec(compile(later, SOURCE, "exec"), names)
    return names[RAY_STEP.owner]


class Runner:
    """The model runner: what it was called with, and what the recorder knew by then."""

    supports_mm_inputs = False

    def __init__(self, live: Live) -> None:
        self.live, self.called = live, list[Any]()

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any) -> None:
        self.called.append(("execute", self.live.steps.real, self.live.steps.output))

    def sample_tokens(self, grammar_output: str) -> str:
        self.called.append(("sample", self.live.steps.real, self.live.steps.output))
        return grammar_output + "'s tokens"


def _steps(owner: Any, folder: Path) -> None:
    live = Live(Settings(str(folder), "run"))
    assert live.hooks.wrap(owner, RAY_STEP, ray_step(live))
    wrapper, runner = owner.__new__(owner), Runner(live)
    wrapper.compiled_dag_cuda_device_set = False
    wrapper.worker = SimpleNamespace(model_runner=runner, device="cpu")  # no execute_model
    planned = [_planned(tokens) for tokens in (3, 5)]
    handed = [(planned[0], "a"), (planned[1], "b", None)]
    assert [wrapper.execute_model_ray(i) for i in handed] == ["a's tokens", "b's tokens"]
    assert runner.called == [
        (what, number + 1, planned[number])
        for number in (0, 1)
        for what in ("execute", "sample")
    ]
    assert (live.steps.real, live.steps.max_tokens, live.steps.output) == (2, 5, None)


def _planned(tokens: int) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens={"a": tokens},
        total_num_scheduled_tokens=tokens,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=None,
    )
