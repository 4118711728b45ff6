"""`wstrace exercise` against a small server on loopback that answers as vLLM does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from wstrace.cli.commands.exercise import command
from wstrace.errors import WstraceError
from wstrace.exercise.corners import corners_within


class Fake(ThreadingHTTPServer):
    """Counts completions; from prompt length `breaks_at` on it fails, and is dead if `dies`.

    The batch's prompts (32 tokens) are held until `wait_for` requests run at once.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.max_model_len: int | None = 512
        self.breaks_at = 1 << 30
        self.status = 500
        self.dies = True
        self.alive = True
        self.delay = 0.0
        self.key = ""
        self.prompts: list[list[int]] = []
        self.running = self.most_running = 0
        self.wait_for = 0
        self.gate = threading.Condition()

    def handle_error(self, *args: Any) -> None:
        """A client that gave up; any other error shows as an answer that does not come."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """The three routes that are used."""

    server: Fake

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200 if self.server.alive else 503, {})
        elif self.server.key and self.headers.get("Authorization") != self.server.key:
            self._answer(401, {"error": {"message": "no key"}})
        else:
            card = {"id": "tiny", "max_model_len": self.server.max_model_len}
            self._answer(200, {"data": [card]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake = self.server
        with fake.gate:
            fake.prompts.append(body["prompt"])
            fake.running += 1
            fake.most_running = max(fake.most_running, fake.running)
            fake.gate.notify_all()
            if len(body["prompt"]) == 32:
                fake.gate.wait_for(lambda: fake.most_running >= fake.wait_for)
        time.sleep(fake.delay)
        with fake.gate:
            fake.running -= 1
        total = len(body["prompt"]) + body["max_tokens"]
        if total > (fake.max_model_len or 0) or not body["prompt"]:
            self._answer(400, {"error": {"message": "too long"}})
        elif len(body["prompt"]) >= fake.breaks_at:
            fake.alive = fake.alive and not fake.dies
            self._answer(fake.status, {"error": {"message": "EngineDeadError"}})
        else:
            self._answer(200, {"choices": []})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server in a thread."""
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


Exercise = Callable[..., tuple[int, str]]


@pytest.fixture
def exercise(monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """Run the command; (exit code, output)."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    app = typer.Typer()
    app.command()(command)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(arguments))
        if isinstance(result.exception, WstraceError):
            return result.exception.exit_code, result.exception.message
        return result.exit_code, result.output

    return run


def test_all_answered(fake: Fake, exercise: Exercise) -> None:
    fake.wait_for = 24
    code, text = exercise("--url", fake.url)
    assert code == 0, text
    assert "all 32 requests were answered" in text
    assert len(fake.prompts) == 32
    assert fake.most_running == 24
    for corner in ("decode", "batch", "long prompt", "warm prefix", "resumed chunks"):
        assert corner in text


def test_the_corners_are_reached(fake: Fake, exercise: Exercise) -> None:
    """A prompt of max_model_len - 1, it again, and its prefix with another end."""
    exercise("--url", fake.url + "/v1/")
    first, again, warm = [p for p in fake.prompts if len(p) == 511]
    assert first == again
    assert warm != first
    assert warm[: 511 - 64] == first[: 511 - 64]
    assert any(len(p) == 256 for p in fake.prompts)


@pytest.mark.parametrize("number", [1, 2, 4, 8, 9, 10, 32, 300])
@pytest.mark.parametrize("max_model_len", [2, 17, 512, 1 << 16])
def test_the_plan_keeps_to_its_limits(number: int, max_model_len: int) -> None:
    corners, left_out = corners_within(max_model_len, number)
    calls = [call for corner in corners for call in corner.calls]
    assert 0 < len(calls) <= number
    assert {c.name for c in corners}.isdisjoint(left_out)
    assert len(corners) + len(left_out) == 5
    for call in calls:
        assert call.prompt
        assert call.max_tokens >= 1
        assert len(call.prompt) + call.max_tokens <= max_model_len
        assert all(0 < token < 128 for token in call.prompt[:200])


def test_what_is_left_out_is_said(fake: Fake, exercise: Exercise) -> None:
    code, text = exercise("--url", fake.url, "--max-requests", "2")
    assert code == 0
    assert len(fake.prompts) == 2
    assert text.count("left out: --max-requests") == 3


def test_a_server_that_dies(fake: Fake, exercise: Exercise) -> None:
    fake.breaks_at = 400
    code, text = exercise("--url", fake.url)
    assert code == 1
    assert "the server died in corner 'long prompt': HTTP 500 EngineDeadError" in text
    assert max(map(len, fake.prompts)) == 511
    assert sum(len(p) >= 400 for p in fake.prompts) == 1  # nothing is sent after that
    assert "2 not sent" in text


def test_a_server_that_fails_and_lives(fake: Fake, exercise: Exercise) -> None:
    fake.breaks_at, fake.dies = 400, False
    code, text = exercise("--url", fake.url)
    assert code == 1
    assert "the server failed in corner 'long prompt'" in text


def test_a_refusal_is_not_a_success(fake: Fake, exercise: Exercise) -> None:
    fake.breaks_at, fake.status, fake.dies = 400, 429, False
    code, text = exercise("--url", fake.url)
    assert code == 1
    assert "corner 'long prompt' was refused: HTTP 429" in text


def test_time_is_bounded(fake: Fake, exercise: Exercise) -> None:
    fake.delay = 0.7
    code, text = exercise("--url", fake.url, "--max-seconds", "1")
    assert code == 1
    assert "time was up" in text
    assert len(fake.prompts) < 32


def test_nothing_listens(exercise: Exercise) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_address[1]
    code, text = exercise("--url", f"http://127.0.0.1:{port}")
    assert code == 2
    assert "does not answer" in text


def test_waiting_for_a_server_that_becomes_ready(fake: Fake, exercise: Exercise) -> None:
    fake.alive = False
    threading.Timer(0.6, lambda: setattr(fake, "alive", True)).start()
    start = time.monotonic()
    assert exercise("--url", fake.url, "--wait", "600", "--max-requests", "1")[0] == 0
    assert time.monotonic() - start >= 0.6


def test_waiting_ends(exercise: Exercise) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_address[1]
    start = time.monotonic()
    assert exercise("--url", f"http://127.0.0.1:{port}", "--wait", "1")[0] == 2
    assert time.monotonic() - start >= 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "file:///x"])
def test_not_a_url(url: str, exercise: Exercise) -> None:
    assert exercise("--url", url)[0] == 2


def test_another_model_than_asked_for(fake: Fake, exercise: Exercise) -> None:
    assert exercise("--url", fake.url, "--model", "tiny", "--max-requests", "1")[0] == 0
    code, text = exercise("--url", fake.url, "--model", "huge")
    assert (code, "huge" in text) == (2, True)
    fake.max_model_len = None
    assert exercise("--url", fake.url)[0] == 2


def test_the_key_comes_from_the_environment(
    fake: Fake, exercise: Exercise, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.key = "Bearer abc"
    code, text = exercise("--url", fake.url)
    assert (code, "wants a key" in text) == (2, True)
    monkeypatch.setenv("VLLM_API_KEY", "abc")
    assert exercise("--url", fake.url, "--max-requests", "1")[0] == 0


def test_loopback_does_not_go_through_a_proxy(
    fake: Fake, exercise: Exercise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert exercise("--url", fake.url, "--max-requests", "1")[0] == 0
