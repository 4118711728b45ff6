"""The main job on a real `vllm serve`: seen dying, diagnosed, cured; and what may go wrong.

One server is shared by the tests that only read what it left behind.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from wstrace.bounds.bound import Bound
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.reserve.config import ReserveConfig, dumps, layout, load_reserve, model_digest
from wstrace.testbed.engine import Server, engine_env, prompt_of
from wstrace.trace.records import Growth, Limit, ReserveEvent, Slot

pytestmark = pytest.mark.engine

PATTERNS = "decode_scratch,continuation"
HEADS, HEAD_SIZE, BLOCK = 4, 64, 128
BLOCK_BYTES = 4 * 2 * BLOCK * HEADS * HEAD_SIZE * 2  # 4 layers of keys and values, bfloat16
SITE = "_continuation_prefill"
SECRETS = {
    "argv": "ArgvS3cretKey",
    "env": "hf_EnvS3cretToken",
    "url": "UrlS3cretToken",
    "prompt": "PromptS3cretWords",
    "id": "IdS3cretMark",
}


def worst_case(max_model_len: int) -> int:
    """2*R256(Hk*round_up(max_model_len-1, block)*D*2), worked out here by hand."""
    padded = -(-(max_model_len - 1) // BLOCK) * BLOCK
    one = HEADS * padded * HEAD_SIZE * 2
    return 2 * (-(-one // 256) * 256)


def wstrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A wstrace command, as a person types it."""
    return subprocess.run(
        [sys.executable, "-m", "wstrace.cli.app", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def run_command(trace: Path, *options: str) -> list[str]:
    """`wstrace run -o TRACE OPTIONS --`, to put before `vllm serve`."""
    return [sys.executable, "-m", "wstrace.cli.app", "run", "-o", str(trace), *options, "--"]


def bound_of(session: AnalysedRun, function: str = SITE) -> Bound:
    """The bound of the site whose function ends in `function`."""
    return next(s.bound for s in session.sites if s.key.function.endswith(function))


@dataclass
class Crash:
    """What the crashed server left: its log, the trace, statuses of the two prompts."""

    log: str
    trace: Path
    statuses: tuple[int, int]
    ended: bool
    reserve: Path


def ask_with_secrets(server: Server) -> int:
    """A short prompt that carries a marked text, a marked request id and the API key."""
    body = {
        "model": str(server.model),
        "prompt": f"{SECRETS['prompt']} tell me",
        "max_tokens": 2,
        "request_id": SECRETS["id"],
    }
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {SECRETS['argv']}",
        "X-Request-Id": SECRETS["id"],
    }
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return int(reply.status)


def ask_tokens(server: Server, tokens: int) -> int:
    """A prompt of so many tokens, with the API key; the HTTP status."""
    body = {"model": str(server.model), "prompt": prompt_of(tokens), "max_tokens": 4}
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {SECRETS['argv']}",
    }
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.fixture(scope="module")
def crash(engine: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Crash:
    """`vllm serve` under `wstrace run`: a short prompt, then 400 tokens, which kill it."""
    folder = tmp_path_factory.mktemp("crash")
    env = engine_env(PATTERNS, prefix=engine, HF_TOKEN=SECRETS["env"])
    env["WSTRACE_TEST_URL"] = f"https://host/x?token={SECRETS['url']}"
    server = Server(
        model,
        folder / "serve.log",
        arguments=["--api-key", SECRETS["argv"], "--block-size", str(BLOCK)],
        before=run_command(folder / "trace"),
        env=env,
        prefix=engine,
    )
    with server:
        statuses = (ask_with_secrets(server), ask_tokens(server, 400))
        ended = exits(server)
    reserve = folder / "reserve.yaml"
    done = wstrace("reserve", str(folder / "trace"), "-o", str(reserve))
    assert done.returncode == 0, done.stderr
    return Crash(server.log.read_text(), folder / "trace", statuses, ended, reserve)


def exits(server: Server) -> bool:
    """Whether the server ends by itself; where it does not, pytest's limit ends the wait."""
    while server.exit_code is None:
        time.sleep(0.1)
    return True


def test_the_engine_dies_of_vllms_own_unchanged_error(crash: Crash) -> None:
    assert (crash.statuses, crash.ended) == ((200, 500), True)
    # 400 tokens in chunks of 256: the second continues 256 computed ones.
    required = 2 * HEADS * 256 * HEAD_SIZE * 2
    # Warm-up decoded one request: 8 heads, 32 splits of 65 float32, 64 float16, 1 float32.
    arena = 8 * 32 * 65 * 4 + 8 * 64 * 2 + 256
    found = re.search(
        r"AssertionError: Workspace is locked but allocation from "
        r"'patterns\.py:\d+:_continuation_prefill' requires (\S+) MB, current size is "
        r"(\S+) MB\. Workspace growth is not allowed after locking\.",
        crash.log,
    )
    assert found
    assert found.groups() == (f"{required / 2**20:.2f}", f"{arena / 2**20:.2f}")


def test_the_verdict_at_the_end_names_the_site_and_the_next_command(crash: Crash) -> None:
    verdict = crash.log[crash.log.index("\nwstrace: '") :].strip().splitlines()
    assert len(verdict) <= 12
    assert SITE in verdict[0]
    assert "WS101" in verdict[0]
    assert any("wstrace reserve" in line for line in verdict)


def test_the_escape_is_found_with_phase_step_layer_and_slot(crash: Crash) -> None:
    (finding,) = load_run(crash.trace).escapes
    assert finding.code == "WS101"
    assert finding.serving_bytes == 2 * HEADS * 256 * HEAD_SIZE * 2
    assert finding.phase == "serving"
    assert finding.slot == Slot(0, 0)
    assert finding.layers == ("model.layers.0.self_attn.attn",)
    assert finding.step is not None
    (request,) = finding.step.requests
    assert (request.computed, request.scheduled) == (256, 144)


def test_the_reserve_is_exact_from_a_trace_with_a_short_prompt(crash: Crash) -> None:
    bound = bound_of(load_run(crash.trace))
    assert (bound.grade, bound.bytes) == ("proved", worst_case(2048))
    config = load_reserve(crash.reserve)
    assert [slot.bytes for slot in config.slots] == [worst_case(2048)]


def test_phases_are_seen_in_vllms_order(crash: Crash) -> None:
    (view,) = load_run(crash.trace).workers
    phases = [change.phase for change in view.phases if change.phase != "init"]
    expected = ["load", "profile", "kv-init", "warmup", "post-lock-warmup", "serving"]
    assert phases[: len(expected)] == expected


def test_planted_secrets_and_prompts_are_nowhere(crash: Crash) -> None:
    session = load_run(crash.trace)
    written = {p.name: p.read_text() for p in [*crash.trace.iterdir(), crash.reserve]}
    written["text"] = render_text(session)
    written["markdown"] = render_markdown(session)
    written["json"] = wstrace("report", str(crash.trace), "--format", "json").stdout
    written["verdict"] = crash.log[crash.log.index("\nwstrace: '") :]
    for name, text in written.items():
        for what, secret in SECRETS.items():
            assert secret not in text, f"the secret of {what} is in {name}"
    assert SECRETS["argv"] not in "".join(
        line for line in crash.log.splitlines() if "wstrace" in line
    )


def test_only_the_worker_leaves_a_file_and_it_is_private(crash: Crash) -> None:
    names = sorted(p.name for p in crash.trace.iterdir())
    assert len(names) == 2
    assert names[1] == "run.json" or names[0] == "run.json"
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in crash.trace.iterdir())


def test_next_leads_from_the_crash_to_a_server_that_survives(
    crash: Crash, engine: Path, model: Path, tmp_path: Path
) -> None:
    """The one command that the verdict names: `wstrace fix` with the command that died.

    It finds the site that the crash hid, and its reserve answers every request of `exercise`.
    """
    (line,) = [text for text in crash.log.splitlines() if text.startswith("next:  ")]
    assert line.startswith("next:  wstrace fix -- YOUR COMMAND   (")
    env = engine_env(PATTERNS, prefix=engine)
    server = Server(model, tmp_path / "unused.log", env=env, prefix=engine)
    ours = [sys.executable, "-m", "wstrace.cli.app", "fix", "-o", str(tmp_path), "--"]
    done = subprocess.run(
        [*ours, *server.command],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "result     Fixed: the same requests were answered." in done.stdout
    assert "asked 528.25 KiB" in done.stdout  # 8 requests decode; the crash came before them
    assert f"{worst_case(2048) // BLOCK_BYTES * BLOCK:,} KV-cache tokens" in done.stdout
    grown, verified = load_run(tmp_path / "grown"), load_run(tmp_path / "verified")
    assert [f.code for f in grown.escapes] == ["WS101", "WS102"]
    (worker,) = verified.workers
    assert worker.counts is not None
    assert worker.counts.max_reqs == 8
    assert worker.counts.max_continued >= 2047 - 256
    assert verified.verdict() == "clean"
    (command,) = [text for text in done.stdout.splitlines() if text.startswith("production ")]
    assert f"WSTRACE_RESERVE={tmp_path}/reserve.yaml " in command
    assert exercised_everything(done.stderr) == 2


def exercised_everything(progress: str) -> int:
    """How many of the two servers answered every request."""
    return progress.count("requests were answered")


def test_gate_fails_on_the_crash(crash: Crash) -> None:
    done = wstrace("gate", str(crash.trace), "--format", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["verdict"] == "findings"
    assert [f["code"] for f in found["findings"] if f["severity"] == "error"] == ["WS101"]


def test_a_longer_model_len_reserves_by_the_formula_in_every_slot_once(
    serve: Callable[..., Server], crash: Crash, tmp_path: Path
) -> None:
    """Also: the worker is then killed with SIGKILL in the middle of serving."""
    trace = tmp_path / "trace"
    server = serve(
        PATTERNS,
        *("--max-model-len", "4096", "--block-size", str(BLOCK)),
        before=run_command(trace, "--reserve", str(crash.reserve)),
        env={"WSTRACE_TESTBED_NUM_UBATCHES": "2", "WSTRACE_TESTBED_NUM_LANES": "2"},
    )
    assert server.complete(4092).status == 200
    kill_worker_mid_serving(server, trace)
    assert server.process is not None
    server.process.wait()  # before that run.json has no end, and the run is inconclusive

    (view,) = load_run(trace).workers
    slots = [Slot(0, 0), Slot(0, 1), Slot(1, 0), Slot(1, 1)]
    reserved = [r for r in view.process.records if isinstance(r, Growth) and r.reserve]
    assert [(g.slot, g.after, g.phase) for g in reserved] == [
        (slot, worst_case(4096), "profile") for slot in slots
    ]
    (event,) = [r for r in view.process.records if isinstance(r, ReserveEvent)]
    assert event.event == "applied"
    assert event.sizes == [worst_case(4096)] * 4
    assert view.locked_sizes == dict.fromkeys(slots, worst_case(4096))
    assert load_run(trace).verdict() == "clean"
    assert view.counts is not None
    assert view.counts.max_computed >= 3840
    assert not view.ended


def kill_worker_mid_serving(server: Server, trace: Path) -> None:
    """SIGKILL to the worker while a request runs; every record before it must be readable."""
    asking = threading.Thread(target=server.complete, args=(3000,), kwargs={"max_tokens": 400})
    (file,) = trace.glob("*.wst.jsonl")
    pid = int(file.name.split(".")[2])
    asking.start()
    while not running(server):
        assert asking.is_alive(), "the request ended before it was seen running"
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    asking.join()


def running(server: Server) -> bool:
    """Whether vLLM's own metrics say that a request runs."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as reply:
        text = reply.read().decode()
    # vllm:num_requests_running{engine="0",model_name="/tmp/model"} 1.0
    return re.search(r"^vllm:num_requests_running\S* [1-9]", text, re.MULTILINE) is not None


def of_another_model(config: ReserveConfig) -> ReserveConfig:
    """The same config as it would have been made for a model with other heads."""
    limits: dict[str, Limit] = {**config.limits, "num_kv_heads": 2}
    model = msgspec.structs.replace(
        config.model, digest=model_digest(limits), layout=layout(limits)
    )
    return msgspec.structs.replace(config, limits=limits, model=model)


def test_a_reserve_for_another_model_stops_the_start(
    serve: Callable[..., Server], crash: Crash, tmp_path: Path
) -> None:
    """`fail`, the default: two lines in the log. `skip` is the test of two ranks."""
    foreign = tmp_path / "foreign.yaml"
    foreign.write_text(dumps(of_another_model(load_reserve(crash.reserve))))
    trace = tmp_path / "trace"
    with pytest.raises(Exception, match="exited with code"):
        serve(PATTERNS, before=run_command(trace, "--reserve", str(foreign)))
    log = (tmp_path / "serve.log").read_text()
    assert "does not fit this engine: num_kv_heads is 4" in log
    assert "or start with --reserve-policy skip" in log
    assert wstrace("gate", str(trace)).returncode == 3


def test_two_ranks_decide_alike(
    serve: Callable[..., Server], crash: Crash, tmp_path: Path
) -> None:
    """TP=2 and two API servers: half the KV heads a rank, one header a rank.

    Also `--reserve-policy skip` with a reserve that does not fit: served, the gate says so.
    """
    trace = tmp_path / "trace"
    server = serve(
        "clean",
        *("--tensor-parallel-size", "2", "--api-server-count", "2"),
        before=run_command(trace, "--reserve", str(crash.reserve), "--reserve-policy", "skip"),
    )
    assert server.complete(400).status == 200
    said = re.search(r"does not fit this engine: (.*)", server.log.read_text())
    assert said is not None
    assert "tensor_parallel_size is 2" in said[1]
    assert wstrace("gate", str(trace)).returncode == 3
    session = load_run(trace)
    assert [view.ranks.tp for view in session.workers] == [0, 1]
    assert [view.limits["num_kv_heads"] for view in session.workers] == [2, 2]
    refusals = {event.why for view in session.workers for event in view.reserves}
    assert len(refusals) == 1
    assert "tensor_parallel_size" in refusals.pop()
    assert "WS204" not in {f.code for f in session.findings}
    assert len(list(trace.glob("*.wst.jsonl"))) == 2
