"""Servers of one GPU: started together, sized one after the other, ended together.

vLLM sizes its KV cache from device-wide memory readings between init_device and the end of
determine_available_memory: what another process allocates meanwhile falsifies it, and what
another frees makes it assert. So every server is stopped (SIGSTOP) as it announces its engine
and goes on when it is its turn; imports and compilation still overlap.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu.clock import Clock
from tools.gpu.host import Host
from wstrace.errors import WstraceError
from wstrace.testbed.engine import Server, prompt_of

# matches: "Initializing a V1 LLM engine (v0.26.0)"
ANNOUNCED: Final = re.compile(r"Initializing a V1 LLM engine")
# matches: "KV cache size: 1,024 tokens"
SIZED: Final = re.compile(r"KV cache size: [\d,]+ tokens")
SETTLE_SECONDS: Final = 2.0
POLL_SECONDS: Final = 0.05
TOKENS_OUT: Final = 8


@dataclass
class GpuServer(Server):
    """`wstrace run -o FOLDER/trace -- vllm serve MODEL ...`; all it leaves lies in `folder`.

    `recorder` are options of `wstrace run`; where not `recorded`, vLLM runs without it. Prompts
    and their answers go to prompts.jsonl, and what was said, with `log_probabilities`, to
    answers.jsonl.
    """

    host: Host | None = None
    clock: Clock | None = None
    folder: Path = Path()
    recorder: Sequence[str] = ()
    recorded: bool = True
    tokens_out: int = TOKENS_OUT
    log_probabilities: bool = False
    served: list[str] = field(default_factory=list)
    announced: threading.Event = field(default_factory=threading.Event, init=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        assert self.host
        run = self.host.wstrace(
            "run", "-q", "-o", str(self.folder / "trace"), *self.recorder, "--"
        )
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        run = run if self.recorded else []
        return [*run, *self.host.serve(self.model), *where, *self.arguments]

    def use(self, host: Host) -> None:
        """Run with another engine than the scenario's, before `launch`."""
        self.host, self.env = host, host.env()

    def launch(self) -> None:
        """Start, and stop at the announcement; `admit` lets it go on."""
        assert self.clock
        self.clock.within(1.0, f"{self.name}: launch")
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "command.json").write_text(json.dumps(self.command, indent=1) + "\n")
        self.start()
        threading.Thread(target=self._hold, daemon=True).start()

    def _hold(self) -> None:
        while self.exit_code is None and not ANNOUNCED.search(self.text()):
            time.sleep(POLL_SECONDS)
        self._signal(signal.SIGSTOP)
        self.announced.set()

    def admit(self) -> None:
        """Go on; returns when the KV cache is sized, so that the next server may."""
        self._wait(lambda: self.announced.is_set(), "engine announced")
        self._signal(signal.SIGCONT)
        self._wait(lambda: bool(SIZED.search(self.text())), "KV cache sized")
        time.sleep(SETTLE_SECONDS)

    def ready(self) -> None:
        """Wait for /health, then ask the worker for its memory numbers."""
        assert self.clock
        self._wait(lambda: self._get("/health", None, 5.0).status == 200, "ready")
        self.note("ready", at=round(self.clock.now(), 1))
        try:
            numbers = self._rpc("witness_memory")
        except (OSError, ValueError, KeyError) as error:
            numbers = []
            self.note("witness", error=str(error))
        (self.folder / "memory.json").write_text(json.dumps(numbers, indent=1) + "\n")

    def ask(self, *prompts: int | Sequence[int], seconds: float = 240.0) -> None:
        """Send prompts at the same time; write down, in their order, what came back."""
        assert self.clock
        limit = self.clock.within(seconds, f"{self.name}: a prompt")
        with ThreadPoolExecutor(len(prompts)) as pool:
            for row in pool.map(partial(self._sent, limit=limit), prompts):
                self.note("prompt", **row)

    def _sent(self, prompt: int | Sequence[int], limit: float) -> dict[str, Any]:
        """A prompt's length, its answer's HTTP status, and how long it took."""
        assert self.clock
        tokens = prompt_of(prompt) if isinstance(prompt, int) else list(prompt)
        started = time.monotonic()
        wanted = {"logprobs": 5} if self.log_probabilities else {}
        answer = self.complete(tokens, self.tokens_out, limit, **wanted)
        if self.log_probabilities and answer.status == 200:
            with (self.folder / "answers.jsonl").open("a") as file:
                file.write(json.dumps(json.loads(answer.body)["choices"]) + "\n")
        return {
            "tokens": len(tokens),
            "status": answer.status,
            "seconds": round(time.monotonic() - started, 2),
            "at": round(self.clock.now(), 1),
            "body": answer.body[:300] if answer.status != 200 else "",
        }

    def end(self) -> None:
        """SIGINT, so that run.json gets the command's end, then SIGKILL to what is left.

        Without that end its gate is inconclusive.
        """
        self._signal(signal.SIGCONT)
        self.stop()

    def kill(self) -> None:
        """SIGKILL to every process of the server; what it wrote stays."""
        if self.process is not None:
            self._signal(signal.SIGCONT)
            self._kill_group()
            self.process.wait()

    def text(self) -> str:
        """The server's log so far."""
        try:
            return self.log.read_text(errors="replace")
        except OSError:
            return ""

    def note(self, event: str, **values: Any) -> None:
        """Append a line to prompts.jsonl."""
        with (self.folder / "prompts.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")

    def _rpc(self, method: str) -> list[dict[str, int]]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/collective_rpc",
            json.dumps({"method": method, "timeout": 20}).encode(),
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, None, 30.0) as reply:
            found: list[dict[str, int]] = json.load(reply)["results"]
            return found

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return

    def _wait(self, condition: Any, what: str) -> None:
        assert self.clock
        while not condition():
            self.clock.within(1.0, f"{self.name}: {what}")
            if self.exit_code is not None:
                raise WstraceError(
                    f"{self.name}: exited with {self.exit_code} before: {what}",
                    last_error(self.text()),
                )
            time.sleep(0.2)


# matches: "(EngineCore pid=7) ValueError: no such backend"
_ERROR: Final = re.compile(r"\b\w*(?:Error|Exception)\b(?:: |$)")
# matches: "WARNING 11-28 17:29:07 [system_utils.py:299] errors like `OSError: [Errno 24]`"
_NO_ERROR: Final = re.compile(r"\b(?:WARNING|INFO|DEBUG) \d\d-\d\d ")


def last_error(log: str) -> str:
    """The last line of a log that names an error, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _NO_ERROR.search(line)]
    causes = [line for line in errors if "Engine core initialization failed" not in line]
    chosen = causes or errors or lines
    # matches: "(EngineCore pid=7) ValueError: no"
    return re.sub(r"^\(.*?\)\s*", "", chosen[-1])[:400] if chosen else "an empty log"
