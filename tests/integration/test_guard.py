"""`WSTRACE_GUARD` on a real `vllm serve`: what kills the demo's server is served.

The same prompts as in the demo: the second and third are what the locked arena refuses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.integration.test_main_job import PATTERNS, SITE, run_command, worst_case, wstrace
from wstrace.findings.analysed_run import load_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from wstrace.testbed.engine import Server

pytestmark = pytest.mark.engine

SHORT, LONG, LONGEST, TOKENS_OUT = 100, 1500, 2048, 4
PROMPTS = (SHORT, LONG, LONGEST - TOKENS_OUT)
# WARNING 11-28 17:30:00 [production.py:240] - {"site": "wstrace/testbed/...
LINE = re.compile(r"- \{\"site\": .*\}$", re.MULTILINE)


def test_a_guarded_server_answers_every_prompt_and_records_nothing(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    counters = tmp_path / "counters" / "guard.prom"
    counters.parent.mkdir()
    env = {"WSTRACE_GUARD": "1", "WSTRACE_GUARD_FILE": str(counters)}
    server = serve(PATTERNS, "--block-size", "128", env=env)
    statuses = [server.complete(tokens, TOKENS_OUT).status for tokens in PROMPTS]
    statuses += [server.complete(tokens, TOKENS_OUT).status for tokens in PROMPTS]

    assert statuses == [200] * 6
    assert server.exit_code is None
    log = server.log.read_text()
    assert "Workspace is locked" not in log
    assert log.count(f":{SITE}' asked ") == 1
    sites = {site["site"]: site for text in LINE.findall(log) for site in yaml.safe_load(text)}
    (told,) = [site for name, site in sites.items() if name.endswith(SITE)]
    assert (told["grade"], told["bytes"]) == ("proved", worst_case(LONGEST))
    (file,) = counters.parent.iterdir()
    assert file.name == "guard-rank0.prom"
    counted = re.search(rf"wstrace_guard_growths_total{{.*{SITE}.*}} (\d+)", file.read_text())
    # Chunks of 256: the second prompt goes on at 256 to 1280 tokens. The third one shares its
    # beginning, 11 blocks of 128, and goes on at 1408, 1664 and 1920.
    assert counted is not None
    assert int(counted[1]) == 5 + 3
    assert not list(Path.cwd().glob("wstrace-2*"))
    assert not list(tmp_path.rglob("*.wst.jsonl"))


def test_the_gate_of_a_recorded_twin_still_calls_it_an_escape(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    server = serve(
        PATTERNS,
        *("--block-size", "128"),
        before=run_command(trace, "--warn-at", "0.9"),
        env={"WSTRACE_GUARD": "1"},
    )
    assert [server.complete(tokens, TOKENS_OUT).status for tokens in PROMPTS] == [200] * 3
    server.stop()
    assert "wstrace guard: '" in server.log.read_text()
    assert wstrace("gate", str(trace)).returncode == 1
    run = load_run(trace)
    assert {finding.code for finding in run.escapes} == {"WS101"}
    (worker,) = run.workers
    assert worker.header.on_growth == "grow"
    # The site is known from its first request, at 256 computed tokens; the next step is told.
    (near,) = [near for near in worker.near if near.site.endswith(SITE)]
    assert (near.bytes, near.arena) == (2 * 4 * 512 * 64 * 2, 2 * 4 * 256 * 64 * 2)
    assert near.worst == worst_case(LONGEST)
    assert f"{SITE} comes near its limit" in server.log.read_text()
    reserve = tmp_path / "reserve.yaml"
    assert wstrace("reserve", str(trace), "-o", str(reserve)).returncode == 0
    _reserved_and_guarded(serve, reserve)


def _reserved_and_guarded(serve: Callable[..., Server], reserve: Path) -> None:
    """Production: with the twin's reserve nothing grows, and what comes near is no warning."""
    server = serve(
        PATTERNS,
        *("--block-size", "128"),
        env={"WSTRACE_RESERVE": str(reserve), "WSTRACE_GUARD": "1", "WSTRACE_WARN_AT": "0.5"},
    )
    assert [server.complete(tokens, TOKENS_OUT).status for tokens in PROMPTS] == [200] * 3
    said = server.log.read_text().rpartition("wstrace guard: on")[2].splitlines()
    assert not [line for line in said if "The arena grew" in line]
    (near,) = [line for line in said if f"{SITE} comes near its limit" in line]
    assert "INFO" in near
    assert near.endswith("fits.")
