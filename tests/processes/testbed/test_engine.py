"""Starting, asking and stopping, with a small program in vLLM's place."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from wstrace.errors import WstraceError
from wstrace.server_process import cpu_ticks, last_error
from wstrace.testbed.engine import Answer, Server, engine_env, prompt_of

PROGRAM = """#!/bin/sh
exec {python} -c '
import http.server, json, os, signal, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--die" in sys.argv: sys.exit("the model is not there")
if "--hang" in sys.argv: signal.pause()
def end(*_):
    for _ in range(23): print("ending", flush=True); time.sleep(0.1)
    os._exit(7)
if "--ends-slowly" in sys.argv: signal.signal(signal.SIGINT, end)
if "--deaf" in sys.argv: signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(2, 1); signal.pause()"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.answer(200, b"")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        long = len(asked["prompt"]) > 9
        self.answer(500 if long else 200, json.dumps(asked).encode())
    def answer(self, status, body):
        self.send_response(status); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
' "$@"
"""


@pytest.fixture
def server(tmp_path: Path) -> Server:
    import sys

    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o700)
    return Server(Path("model"), tmp_path / "log", prefix=tmp_path)


def test_answers_carry_status_and_body(server: Server) -> None:
    with server:
        answer = server.complete(5, max_tokens=2)
        assert answer.status == 200
        assert '"max_tokens": 2' in answer.body
        assert server.complete(range(10)).status == 500
    assert server.complete(5) == Answer(0, server.complete(5).body)


def test_its_log_is_nobody_elses_to_read(server: Server) -> None:
    with server:
        assert server.log.stat().st_mode & 0o777 == 0o600


def test_no_process_survives(server: Server) -> None:
    with server:
        assert len(server.processes()) == 2
    assert server.processes() == {}
    assert server.exit_code is not None


def test_one_that_ignores_sigint_is_killed(server: Server) -> None:
    server.arguments = ["--deaf"]
    with server:
        assert server.stop(seconds=0.5) == -9
    assert server.processes() == {}


def test_one_that_needs_longer_than_the_limit_to_end_is_not_cut_while_it_writes(
    server: Server,
) -> None:
    server.arguments = ["--ends-slowly"]
    with server:
        assert server.stop(seconds=2.0) == 7


def test_an_early_exit_shows_the_log(server: Server) -> None:
    server.arguments = ["--die"]
    with pytest.raises(WstraceError, match="exited with code 1") as raised, server:
        pass
    assert "the model is not there" in raised.value.hint


def test_a_hang_is_bounded(server: Server) -> None:
    """One that neither writes nor computes; a slow start that does is waited for."""
    server.arguments, server.ready_seconds = ["--hang"], 1.0
    with pytest.raises(WstraceError, match="stood still for 1 s"), server:
        pass
    assert server.processes() == {}


class Starting(Server):
    """Not healthy before so many looks; what it computes goes on for `works` of them."""

    def __init__(self, folder: Path, looks: int, works: int) -> None:
        super().__init__(Path("model"), folder / "log", prefix=folder)
        self.looks, self.works = looks, works
        self.seen = 0

    @property
    def exit_code(self) -> int | None:
        return None

    def healthy(self) -> bool:
        self.seen += 1
        return self.seen > self.looks

    def _progress(self) -> tuple[int, int]:
        return 0, min(self.seen, self.works)


@pytest.mark.parametrize("works", [100, 50])
def test_a_start_slower_than_the_limit_is_waited_for_while_it_computes(
    works: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 looks of 0.2 s, nothing in the log, and a limit of one second; the clock is ours."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    server = Starting(tmp_path, looks=100, works=works)
    server.log.touch()
    server.ready_seconds = 1.0
    if works == 100:
        server.wait_ready()
        assert now[0] == pytest.approx(20.0)
        return
    with pytest.raises(WstraceError, match="stood still for 1 s"):
        server.wait_ready()
    assert 10.5 < now[0] < 11.5


def test_what_a_process_computes_is_counted() -> None:
    begin = cpu_ticks(os.getpid())
    used = time.process_time()
    while time.process_time() < used + 0.05:
        pass
    assert cpu_ticks(os.getpid()) - begin >= 4  # of 10 ms
    assert cpu_ticks(1 << 30) == 0


def test_sigint_stops_the_server_of_a_process_that_ignores_it(server: Server) -> None:
    """As a background job of a shell does: the child would ignore it too, and be killed."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with server:
            assert server.stop() != -signal.SIGKILL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_missing_program_is_said(tmp_path: Path) -> None:
    with (
        pytest.raises(WstraceError, match="Cannot start"),
        Server(Path("model"), tmp_path / "log", prefix=tmp_path),
    ):
        pass


def test_a_command_can_stand_before(server: Server) -> None:
    server.before = ["/usr/bin/env", "X=1"]
    with server:
        assert server.complete(5).status == 200


def test_the_callers_wstrace_settings_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WSTRACE_DIR", "/somewhere")
    monkeypatch.setenv("VLLM_WSTRACE_GUARD", "1")
    env = engine_env("clean", EXTRA="1")
    assert env["WSTRACE_TESTBED"] == "clean"
    assert env["EXTRA"] == "1"
    assert "WSTRACE_DIR" not in env
    assert "VLLM_WSTRACE_GUARD" not in env


def test_prompts_of_different_lengths_share_no_prefix() -> None:
    assert len(prompt_of(300)) == 300
    assert prompt_of(300)[0] != prompt_of(400)[0]


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("usage: vllm\nvllm: error: unrecognized arguments: --no 3\n", "vllm: error: unrec"),
        (
            "(Worker pid=7) ERROR 11-28 21:37:47 [exec.py:3]   File 'a.py', line 1\n"
            "(Worker pid=7) [exec.py:3] torch.OutOfMemoryError: CUDA out of memory. Tried\n"
            "(EngineCore pid=6) [core.py:9] RuntimeError: Worker failed with error 'CUDA "
            "out of memory', please check the stack trace above for the root cause\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Died: {}\n"
            "a.py:254: UserWarning: leaked shared_memory\n",
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
        ),
        ("OSError: [Errno 98] Address already in use\n", "OSError: [Errno 98] Address"),
        (
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeErr",
        ),
        ("INFO ready\nno Error: here is none of it, nor a TypeError\n", ""),
        ("", ""),
    ],
)
def test_the_last_error_of_a_log_is_the_cause(log: str, error: str) -> None:
    found = last_error(log)
    assert found.startswith(error)
    assert bool(found) == bool(error)
    assert "\n" not in found


def test_what_a_server_said_begins_with_its_own_start(server: Server) -> None:
    server.log.write_text("ValueError: of an earlier start\n")
    server.arguments = ["--die"]
    with pytest.raises(WstraceError), server:
        pass
    assert "the model is not there" in server.said()
    assert "earlier" not in server.said()


def test_a_server_that_a_signal_ended_is_told_by_its_name(server: Server) -> None:
    server.arguments = ["--hang"]
    server.start()
    assert server.process is not None
    server.process.kill()
    with pytest.raises(WstraceError, match="the server was killed by SIGKILL"):
        server.wait_ready()
    server.stop()
