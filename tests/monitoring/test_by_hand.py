"""The recipes' own commands, run by hand: what a container would do, without one.

A wheel of this tree is installed by the recipe's `pip install "$WSTRACE_PACKAGE"` into an
environment that has vLLM and no wstrace, as the image has; then the lines of the server and of
the sidecar run beside each other on the CPU engine. What differs from a container: paths below
a folder, ports of the moment, and `vllm`, which is given dummy weights and the testbed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.monitoring.test_monitoring import DOCS, ROOT, free_port, get, until
from wstrace.testbed.engine import SERVE, engine_env, prompt_of
from wstrace.testbed.model import build_model

pytestmark = pytest.mark.monitoring

SITE_PACKAGES = Path(next(p for p in sys.path if p.endswith("site-packages")))
SHORT, LONG = 100, 1500
VLLM = """#!{python}
import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":  # vLLM spawns processes, which import this file
    sys.argv += {more}
    main()
"""


@dataclass
class Image:
    """What the vLLM image has: an environment with vLLM and pip, and no wstrace yet."""

    folder: Path
    package: Path

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def environment(self, port: int) -> dict[str, str]:
        """A shell's, with a `vllm` that serves at `port`."""
        programs = self.folder / f"programs-{port}"
        programs.mkdir()
        vllm = programs / "vllm"
        more = [*SERVE, "--host", "127.0.0.1", "--port", str(port)]
        vllm.write_text(VLLM.format(python=self.folder / "bin" / "python", more=more))
        vllm.chmod(0o755)
        env = engine_env("continuation,decode_scratch", prefix=Path(sys.prefix))
        path = f"{programs}:{self.folder / 'bin'}:{os.environ['PATH']}"
        on_path = self.packages / "wstrace" / "testbed" / "on_path"  # once it is installed
        return env | {"PATH": path, "PYTHONPATH": str(on_path)}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Everything but wstrace of this environment by links, and a wheel of this tree."""
    folder = tmp_path_factory.mktemp("image")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "wheel"))
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True, timeout=120)
    made = Image(folder / "env", next((folder / "wheel").glob("*.whl")))
    for entry in SITE_PACKAGES.iterdir():
        place = made.packages / entry.name
        if "wstrace" not in entry.name and not place.exists():
            place.symlink_to(entry)
    return made


@contextmanager
def shell(line: str, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """What `[bash, -ec]` runs of a container, until the block ends."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["bash", "-ec", line],
            cwd=log.parent,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def containers(recipe: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Name to script and environment of the containers that are the vLLM image."""
    document = yaml.safe_load((DOCS / recipe).read_text())
    if recipe == "compose.yaml":
        services = document["services"].items()
        return {
            name: (one["command"][0].replace("$$", "$"), dict(one["environment"]))
            for name, one in services
            if "vllm" in one["image"]
        }
    pod = document["spec"]["template"]["spec"]
    return {
        one["name"]: (
            one["args"][0],
            {entry["name"]: entry.get("value", "") for entry in one["env"]},
        )
        for one in pod["containers"]
    }


def ask(port: int, model: Path, tokens: int) -> int:
    body = {"model": str(model), "prompt": prompt_of(tokens), "max_tokens": 4}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def healthy(port: int) -> bool:
    return get(f"http://127.0.0.1:{port}/health") == ""


@pytest.mark.parametrize(
    ("recipe", "metric"),
    [
        ("kubernetes-sidecar.yaml", "wstrace_guard_growths_total"),
        ("compose.yaml", "wstrace_refused_total"),
    ],
)
def test_the_recipe_serves_its_metrics_when_its_lines_are_run_by_hand(
    recipe: str, metric: str, image: Image, tmp_path: Path
) -> None:
    """A guarded server meets the long prompt and counts it; a recorded one dies of it."""
    model, port, metrics = build_model(tmp_path / "model"), free_port(), free_port()
    env = image.environment(port)

    def moved(text: str) -> str:
        text = text.replace("/etc/wstrace/", f"{tmp_path}/").replace(
            "/wstrace/", f"{tmp_path}/"
        )
        return text.replace(":9464", f"127.0.0.1:{metrics}")

    def container(name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        script, given = containers(recipe)[name]
        own = env | {key: moved(value) for key, value in given.items()}
        own |= {"WSTRACE_PACKAGE": str(image.package)} | {"MODEL": str(model)}
        own.pop("WSTRACE_RESERVE", None)  # the config map's, of another model
        return shell(moved(script), own, tmp_path / f"{name}.log")

    with ExitStack() as stack:
        server = stack.enter_context(container("vllm"))
        until(lambda: server.poll() is not None or healthy(port))
        assert server.poll() is None, (tmp_path / "vllm.log").read_text()[-2000:]
        stack.enter_context(container("wstrace"))  # not at once: they share what pip writes to
        statuses = [ask(port, model, tokens) for tokens in (SHORT, LONG)]
        guarded = metric.startswith("wstrace_guard")
        assert statuses == [200, 200 if guarded else 500]
        url = f"http://127.0.0.1:{metrics}/metrics"
        row = re.compile(rf"^{metric}{{.*}} [1-9]", re.MULTILINE)
        assert until(lambda: row.search(get(url))), get(url)
