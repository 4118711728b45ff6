"""`wstrace watch --metrics` under a real Prometheus, with the alert rules and the recipes.

Needs Debian's prometheus and the schemas of kubernetes-validate: scripts/monitoring-tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from wstrace.recorder.state.guard_file import write_counters
from wstrace.recorder.state.guard_state import GuardState, Outgrown
from wstrace.trace.records import Ranks, Slot

pytestmark = pytest.mark.monitoring

ROOT = Path(__file__).parents[2]
DOCS, RULES = ROOT / "docs" / "monitoring", ROOT / "dashboards" / "prometheus"
SAMPLE = ROOT / "sample_traces" / "demo-grow"
SITE = "wstrace/testbed/patterns.py:DecodeScratch._decode_attention"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program until the block ends; its output goes to a file in `folder`."""
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def watching(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wstrace.cli.app", "watch", *arguments]


def get(url: str) -> str:
    with urllib.request.urlopen(url) as reply:  # pytest's limit ends a wait for nothing
        return str(reply.read().decode())


def until(found: Callable[[], Any]) -> Any:
    """The first answer that is something; pytest's limit ends a wait for nothing."""
    while True:
        try:
            answer = found()
        except (urllib.error.URLError, ConnectionError):
            answer = None
        if answer:
            return answer
        time.sleep(0.3)


class Prometheus:
    """A real one, which scrapes `port` every second and has the alert rules."""

    def __init__(self, folder: Path, target: int) -> None:
        self.folder, self.port = folder, free_port()
        config = yaml.safe_load((DOCS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(RULES / "rules.yml", folder)
        self.command = [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def ask(self, path: str, **query: str) -> Any:
        text = get(
            f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        )
        return json.loads(text)["data"]

    def values(self, expression: str) -> list[float]:
        return [float(row["value"][1]) for row in self.ask("query", query=expression)["result"]]

    def alerts(self) -> dict[str, set[str]]:
        """Alert name to its states."""
        found: dict[str, set[str]] = {}
        for alert in self.ask("alerts")["alerts"]:
            found.setdefault(alert["labels"]["alertname"], set()).add(alert["state"])
        return found


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus on `wstrace watch` of a real trace and of a guard's counters."""
    guard = GuardState()
    guard.count(Outgrown("attn.py:late", Slot()), 1 << 20, grew=True)
    write_counters(str(tmp_path / "guard.prom"), Ranks(rank=0), guard)
    port = free_port()
    where = ("--metrics", f"127.0.0.1:{port}", "--guard-file", str(tmp_path / "guard.prom"))
    prometheus = Prometheus(tmp_path, port)
    with ExitStack() as stack:
        stack.enter_context(running(watching(str(SAMPLE), *where), tmp_path))
        assert until(lambda: get(f"http://127.0.0.1:{port}/metrics"))
        stack.enter_context(running(prometheus.command, tmp_path))
        assert until(lambda: prometheus.values("up")) == [1.0]
        yield prometheus


def test_prometheus_reads_the_run_and_the_guard(scraped: Prometheus) -> None:
    arena = until(lambda: scraped.values("wstrace_arena_bytes"))
    assert arena == [8388608]
    # 8 requests * 8 heads * 32 splits: worked out in docs/testbed.md; the lock was at 67,840
    (bound,) = scraped.values(f'wstrace_site_bound_bytes{{site="{SITE}"}}')
    (room,) = scraped.values(f'wstrace_site_headroom_bytes{{site="{SITE}"}}')
    assert (bound, room) == (540928, 8388608 - 540928)
    assert scraped.values('wstrace_guard_growths_total{site="attn.py:late"}') == [1]


def test_the_alerts_of_the_rules_come(scraped: Prometheus) -> None:
    found = until(lambda: "WstraceOutgrown" in scraped.alerts() and scraped.alerts())
    assert found["WstraceOutgrown"] == {"firing"}


def test_the_dashboards_queries_are_promql(scraped: Prometheus) -> None:
    board = json.loads((ROOT / "dashboards" / "grafana" / "wstrace.json").read_text())
    queries = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    assert len(queries) > 15
    until(lambda: scraped.values("wstrace_arena_bytes"))
    for query in queries:
        text = query.replace("$instance", ".*").replace("$__rate_interval", "1m")
        scraped.ask("query", query=text)  # a query that is none is answered 400


def test_the_rules_hold_in_promtool() -> None:
    for arguments in (("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")):
        done = subprocess.run(
            ["promtool", *arguments], cwd=RULES, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_holds_in_promtool(tmp_path: Path) -> None:
    shutil.copy(DOCS / "prometheus.yml", tmp_path)
    shutil.copy(RULES / "rules.yml", tmp_path)
    command = ["promtool", "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_served_has_the_style_of_prometheus(tmp_path: Path) -> None:
    """promtool's linter, which knows names, units and help texts."""
    port = free_port()
    with running(watching(str(SAMPLE), "--metrics", f"127.0.0.1:{port}"), tmp_path):
        text = until(lambda: get(f"http://127.0.0.1:{port}/metrics"))
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_deployment_is_valid_by_kubernetes_own_schema() -> None:
    import kubernetes_validate

    document = yaml.safe_load((DOCS / "kubernetes-sidecar.yaml").read_text())
    kubernetes_validate.validate(document, "1.30", strict=True)
    document["spec"]["template"]["spec"]["containers"][1]["port"] = 9464
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.30", strict=True)


def commands_of(recipe: str) -> dict[str, str]:
    """The shell lines of each container of a recipe that is the vLLM image."""
    document = yaml.safe_load((DOCS / recipe).read_text())
    if recipe == "compose.yaml":
        services = document["services"].items()
        return {n: s["command"][0] for n, s in services if "vllm" in s["image"]}
    containers = document["spec"]["template"]["spec"]["containers"]
    return {c["name"]: c["args"][0] for c in containers}


@pytest.mark.parametrize("recipe", ["compose.yaml", "kubernetes-sidecar.yaml"])
def test_the_sidecars_own_command_serves(recipe: str, tmp_path: Path) -> None:
    """The line of the recipe, its paths moved below a folder, before there is any run."""
    line = commands_of(recipe)["wstrace"].splitlines()[-1]
    port = free_port()
    moved = line.replace("/wstrace/", f"{tmp_path}/").replace(":9464", f"127.0.0.1:{port}")
    words = shlex.split(moved.removeprefix("exec wstrace watch "))
    with running(watching(*words), tmp_path):
        assert until(lambda: _listens(port))
        shutil.copytree(SAMPLE, tmp_path / "trace")
        write_counters(str(tmp_path / "guard.prom"), Ranks(rank=0), _one_growth())
        name = "wstrace_arena_bytes" if "trace" in words[0] else "wstrace_guard_growths_total"
        url = f"http://127.0.0.1:{port}/metrics"
        assert until(lambda: re.search(rf"^{name}{{.*}} \d", get(url), re.MULTILINE))


def _one_growth() -> GuardState:
    guard = GuardState()
    guard.count(Outgrown("attn.py:late", Slot()), 1 << 20, grew=True)
    return guard


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


def test_the_servers_options_are_those_that_vllm_gets() -> None:
    for recipe in ("compose.yaml", "kubernetes-sidecar.yaml"):
        line = commands_of(recipe)["vllm"].replace("$$", "$").splitlines()[-1]
        words = shlex.split(os.path.expandvars(line).removeprefix("exec "))
        assert "vllm serve" in " ".join(words)
        if words[0] == "wstrace":
            options = words[2 : words.index("--")]
            assert options == ["-o", "/wstrace/trace", "--warn-at", "0.9"]
