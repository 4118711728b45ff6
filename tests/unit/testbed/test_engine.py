"""Starting, asking and stopping, with a small program in vLLM's place."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from wstrace.errors import WstraceError
from wstrace.testbed.engine import Answer, Server, engine_env, prompt_of

PROGRAM = """#!/bin/sh
exec {python} -c '
import http.server, json, os, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--die" in sys.argv: sys.exit("the model is not there")
if "--hang" in sys.argv: signal.pause()
if "--slow" in sys.argv:
    while sum(os.times()[:2]) < 3: pass
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


def test_a_start_slower_than_the_limit_is_waited_for_while_it_computes(server: Server) -> None:
    """Three seconds of work, nothing in the log, and a limit of one second."""
    server.arguments, server.ready_seconds = ["--slow"], 1.0
    with server:
        assert server.complete(5).status == 200


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
    env = engine_env("clean", EXTRA="1")
    assert env["WSTRACE_TESTBED"] == "clean"
    assert env["EXTRA"] == "1"
    assert "WSTRACE_DIR" not in env


def test_prompts_of_different_lengths_share_no_prefix() -> None:
    assert len(prompt_of(300)) == 300
    assert prompt_of(300)[0] != prompt_of(400)[0]
