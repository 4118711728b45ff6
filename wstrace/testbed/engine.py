"""A real `vllm serve` on the CPU engine, started, asked and stopped; standard library only."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wstrace.recorder.settings import PREFIXES
from wstrace.server_process import READY_SECONDS, ServerProcess

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

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
# vLLM looks for plugins in the metadata of what is on the path, in each of its processes, also
# in spawned ones. This folder holds the testbed's entry point; no installed package has it.
PLUGIN_PATH: Final = Path(__file__).with_name("on_path")


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
    env = {name: text for name, text in os.environ.items() if not name.startswith(PREFIXES)}
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
class Server(ServerProcess):
    """`vllm serve MODEL` in its own process group; use it as a context manager.

    `arguments` come after `SERVE` and win over it. `before` is a command to put in front,
    such as `["wstrace", "run", "-o", "DIR", "--"]`.
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

    def healthy(self) -> bool:
        """Whether /health is 200."""
        return self._get("/health").status == 200

    def complete(
        self,
        prompt: int | Sequence[int],
        max_tokens: int = 4,
        seconds: float = 120.0,
        **more: int,
    ) -> Answer:
        """Ask for `max_tokens` after `prompt`: token ids, or how many of them.

        `more` are further fields of the request.
        """
        tokens = prompt_of(prompt) if isinstance(prompt, int) else list(prompt)
        request = {
            "model": str(self.model),
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
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


_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
