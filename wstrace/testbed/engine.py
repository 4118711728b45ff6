"""A real `vllm serve` on the CPU engine, started, asked and stopped; standard library only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

# Dynamo traces the model (profile_run happens, and fullgraph holds), but no C++ is compiled:
# Inductor on two cores costs more than the rest of the start.
TRACED: Final = ("--compilation-config", '{"mode":2,"backend":"eager"}')
SERVE: Final = (
    *("--load-format", "dummy"),
    *("--max-model-len", "2048"),
    *("--max-num-batched-tokens", "256"),
    *("--max-num-seqs", "8"),
    *TRACED,
)
LOG_TAIL_LINES: Final = 12
# vLLM looks for plugins in the metadata of what is on the path, in each of its processes, also
# in spawned ones. This folder holds the testbed's entry point; no installed package has it.
PLUGIN_PATH: Final = Path(__file__).with_name("on_path")
STOP_SECONDS: Final = 20.0
WAIT_SECONDS: Final = 10.0
READY_SECONDS: Final = 180.0
LONGEST_SECONDS: Final = 1800.0


def engine_env(
    patterns: str = "", *, prefix: Path | None = None, **variables: str
) -> dict[str, str]:
    """The whole environment for a CPU engine process, without the caller's `WSTRACE_*`.

    `patterns` is the value of `WSTRACE_TESTBED`, and puts the plugin on PYTHONPATH; `prefix`
    is the virtual environment that holds vLLM (default: this one); `variables` are added last
    (for more folders on PYTHONPATH see `plugin_path`). libiomp5 is preloaded where the
    environment has it: without it the x86 worker dies at its first forward pass.
    """
    home = prefix or Path(sys.prefix)
    env = {name: text for name, text in os.environ.items() if not name.startswith("WSTRACE_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # thousands of modules, compiled at every start
    env |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(home / "vllm-cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    openmp = home / "lib" / "libiomp5.so"
    if openmp.exists():
        env["LD_PRELOAD"] = ":".join(filter(None, (str(openmp), env.get("LD_PRELOAD"))))
    if patterns:
        env["WSTRACE_TESTBED"] = patterns
        env["PYTHONPATH"] = plugin_path(env.get("PYTHONPATH", ""))
    return env | variables


def plugin_path(*folders: str | Path) -> str:
    """A PYTHONPATH with the testbed's plugin, then `folders`."""
    return os.pathsep.join(filter(None, map(str, (PLUGIN_PATH, *folders))))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def prompt_of(num_tokens: int) -> list[int]:
    """`num_tokens` token ids; prompts of different lengths share no prefix (mod 256)."""
    return [(num_tokens + 31 * position) % 256 for position in range(num_tokens)]


@dataclass(frozen=True)
class Answer:
    """What the server said: HTTP status (0: no answer at all) and the body's text."""

    status: int
    body: str


@dataclass
class Server:
    """`vllm serve MODEL` in its own process group; use it as a context manager.

    `arguments` come after `SERVE` and win over it. `before` is a command to put in front,
    such as `["wstrace", "run", "-o", "DIR", "--"]`. Output goes to the file `log`. Entering
    waits until the server is ready (`on_wait(seconds)` is called every ten) and raises
    `WstraceError` with the end of the log if it exits, if for `ready_seconds` neither its
    log grows nor its processes compute, or after `LONGEST_SECONDS`: a start on a busy
    machine takes minutes, one that hangs stands still. Leaving stops it; no process of the
    group survives.
    """

    model: Path
    log: Path
    arguments: Sequence[str] = ()
    before: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=engine_env)
    prefix: Path = field(default_factory=lambda: Path(sys.prefix))
    ready_seconds: float = READY_SECONDS
    port: int = field(default_factory=free_port)
    on_wait: Callable[[float], None] | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        vllm = str(self.prefix / "bin" / "vllm")
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        return [*self.before, vllm, "serve", str(self.model), *SERVE, *where, *self.arguments]

    @property
    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self.process.poll() if self.process else None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the command. Raises `WstraceError` where it cannot be run."""
        with self.log.open("ab") as log:
            self.process = self._spawn(log)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_heed_sigint,
            )
        except OSError as error:
            raise WstraceError(
                f"cannot start {self.command[0]}: {error.strerror}",
                "Build the engine's environment with scripts/engine-env.",
            ) from error

    def wait_ready(self) -> None:
        """Return once /health answers 200; `WstraceError` if it exits or stands still."""
        started = said = moved = time.monotonic()
        seen = self._progress()
        while self._get("/health").status != 200:
            now = time.monotonic()
            if self.exit_code is not None:
                raise self._failed(f"the server exited with code {self.exit_code}")
            if now - moved > self.ready_seconds:
                raise self._failed(f"the server stood still for {self.ready_seconds:.0f} s")
            if now - started > LONGEST_SECONDS:
                raise self._failed(f"the server was not ready in {LONGEST_SECONDS:.0f} s")
            if self.on_wait is not None and now - said > WAIT_SECONDS:
                said = now
                self.on_wait(said - started)
            if (progress := self._progress()) != seen:
                seen, moved = progress, now
            time.sleep(0.2)

    def _progress(self) -> tuple[int, int]:
        """What changes while the server starts: its log's bytes, its processes' CPU ticks."""
        return self.log.stat().st_size, sum(map(_ticks, self.processes()))

    def _failed(self, what: str) -> WstraceError:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return WstraceError(what, "\n".join(["The end of its log:", *lines]))

    def complete(
        self, prompt: int | Sequence[int], max_tokens: int = 4, seconds: float = 120.0
    ) -> Answer:
        """Ask for `max_tokens` after `prompt`: token ids, or how many of them."""
        tokens = prompt_of(prompt) if isinstance(prompt, int) else list(prompt)
        request = {
            "model": str(self.model),
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return self._get("/v1/completions", request, seconds)

    def _get(
        self, path: str, request: dict[str, Any] | None = None, seconds: float = 10.0
    ) -> Answer:
        data = None if request is None else json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with _direct.open(
                urllib.request.Request(url, data, headers), None, seconds
            ) as reply:
                return Answer(reply.status, reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())
        except OSError as error:
            return Answer(0, str(error))

    def processes(self) -> dict[int, str]:
        """Process id to title (`VLLM::Worker...`) of all that live in the server's group."""
        assert self.process
        return {
            pid: title
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (title := _title(pid := int(entry.name)))
            if _group(pid) == self.process.pid
        }

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """SIGINT, then SIGKILL to the group after `seconds`; returns the exit code."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill_group()
        return self.process.wait()

    def _kill_group(self) -> None:
        assert self.process
        while self.processes() or self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
            time.sleep(0.05)


_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _title(pid: int) -> str:
    """The command line of a live process, empty for one that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return text.replace(b"\0", b" ").decode(errors="replace").strip()


def _heed_sigint() -> None:
    """In the child: a shell's background job ignores SIGINT, and what it starts would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _ticks(pid: int) -> int:
    """Clock ticks that a process has computed; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # "7 (python3 -c) S 1 7 ...": utime and stime are the 12th and 13th after the name.
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
