"""What all scenarios share: servers in turn, wstrace's commands, problems written down."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tools.gpu import models
from tools.gpu.clock import Clock
from tools.gpu.host import Host
from tools.gpu.prompts import AtOnce, Prompts
from tools.gpu.servers import GpuServer
from wstrace.errors import WstraceError

Job = tuple[GpuServer, Callable[[], None]]
CRASH_SECONDS: Final = 20.0


@dataclass
class Runner:
    """One scenario in `folder`, a new one. `share` is a server's part of the GPU's memory."""

    host: Host
    clock: Clock
    folder: Path
    share: float = 0.2
    servers: list[GpuServer] = field(default_factory=list)
    problems: list[dict[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def setting(self, **values: Any) -> None:
        """Write scenario.json: what the claims are computed from, beside the traces."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "scenario.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | values, indent=1) + "\n")

    def problem(self, who: str, error: BaseException) -> None:
        """Write down what went wrong, and go on with the rest."""
        said, hint = getattr(error, "message", str(error)), getattr(error, "hint", "")
        row = {"who": who, "what": f"{type(error).__name__}: {said}"[:400], "hint": hint[:400]}
        with self._lock:
            self.problems.append(row)
            (self.folder / "problems.json").write_text(json.dumps(self.problems, indent=1))
        print(f"[{self.clock.now():5.0f} s] {who}: {row['what']} {hint}", flush=True)

    def say(self, text: str) -> None:
        """A line of progress, with the seconds since the start."""
        print(f"[{self.clock.now():5.0f} s] {self.folder.name}: {text}", flush=True)

    def server(
        self, name: str, model: str, arguments: Sequence[str], *recorder: str
    ) -> GpuServer:
        """A server that will write into `folder/name`; nothing is started."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        memory = ["--gpu-memory-utilization", str(self.share)]
        witness = ["--worker-extension-cls", "tools.gpu.extension.Extension"]
        made = GpuServer(
            models.make(self.host.caches / "models", model),
            folder / "server.log",
            [*memory, *witness, *arguments],
            env=self.host.env(),
            host=self.host,
            clock=self.clock,
            folder=folder,
            recorder=recorder,
        )
        self.servers.append(made)
        return made

    def together(self, *jobs: Job, quiet: bool = False) -> None:
        """Launch all servers, admit them in this order, run each one's job once it is sized.

        `quiet`: no job starts before the last server is sized, so that nothing disturbs
        its memory readings. A server that fails costs only its own job.
        """
        launched = [job for job in jobs if self._launch(job[0])]
        running = []
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            admitted = []
            for server, job in launched:
                if self._admit(server):
                    admitted.append((server, job))
                    if not quiet:
                        running.append((server, pool.submit(job)))
            if quiet:
                running = [(server, pool.submit(job)) for server, job in admitted]
            for server, future in running:
                self.attempt(server.name, future.result)

    def _launch(self, server: GpuServer) -> bool:
        self.say(f"launching {server.name}")
        return self.attempt(server.name, server.launch)

    def _admit(self, server: GpuServer) -> bool:
        done = self.attempt(server.name, server.admit)
        self.say(f"{server.name} {'sized' if done else 'failed'}")
        if not done:
            server.kill()
        return done

    def attempt(self, who: str, action: Callable[[], Any]) -> bool:
        """Do it; False, and the problem written down, where it fails."""
        try:
            action()
        except Exception as error:
            self.problem(who, error)
            return False
        return True

    def stop(self) -> None:
        """End every server of this scenario, all at once."""
        with ThreadPoolExecutor(max(1, len(self.servers))) as pool:
            list(pool.map(GpuServer.end, self.servers))

    def judge_all(self, *gate: str) -> None:
        """Judge every server, two at a time; `gate` are further options of the gate."""
        with ThreadPoolExecutor(2) as pool:
            for server in self.servers:
                pool.submit(
                    self.attempt,
                    f"judging {server.name}",
                    partial(self.judge, server, *gate),
                )

    def judge(self, server: GpuServer, *gate: str) -> None:
        """gate.json with its exit code, report.json and report.md of a server's trace."""
        trace = str(server.folder / "trace")
        code = self.wstrace(
            server.folder, "gate", trace, *gate, "--format", f"json:{server.folder}/gate.json"
        )
        (server.folder / "gate.exit").write_text(f"{code}\n")
        for name in ("report.json", "report.md"):
            self.wstrace(server.folder, "report", trace, "-o", str(server.folder / name))

    def reserved(self, source: GpuServer, like: Sequence[str], model: str) -> list[GpuServer]:
        """A server `reserved-SOURCE` with the reserve from a trace; none where that failed."""
        made: list[Path] = []
        name = f"reserved-{source.name}"
        if not self.attempt(
            f"reserve from {source.name}", lambda: made.append(self.plan(source))
        ):
            return []
        made_of = self.server(name, model, like, "--reserve", str(made[0]))
        if source.host is not None:
            made_of.use(source.host)
        return [made_of]

    def plan(self, server: GpuServer) -> Path:
        """reserve.yaml and reserve.json from a trace, unless made already; the YAML's path."""
        trace, made = str(server.folder / "trace"), server.folder / "reserve.yaml"
        if made.exists():
            return made
        self.wstrace(server.folder, "reserve", trace, "-o", str(made))
        self.wstrace(
            server.folder,
            *("reserve", trace, "--format", "json"),
            *("-o", str(server.folder / "reserve.json")),
        )
        if not made.exists():
            raise WstraceError(f"no reserve from {server.name}", "See wstrace.log there.")
        return made

    def wstrace(self, folder: Path, *arguments: str) -> int:
        """Run a wstrace command as a user would; its output goes to wstrace.log."""
        done = subprocess.run(
            self.host.wstrace(*arguments),
            env=self.host.env(),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        with (folder / "wstrace.log").open("a") as log:
            log.write(f"$ wstrace {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")
        return done.returncode


def until_death(server: GpuServer, sent: Prompts) -> None:
    """Ask, then let the engine end by itself, so that run.json gets its exit code."""
    server.ready()
    _send(server, sent)
    end = time.monotonic() + CRASH_SECONDS
    while server.exit_code is None and time.monotonic() < end:
        time.sleep(0.2)
    server.note("end", exit_code=server.exit_code)


def asks(server: GpuServer, prompts: Prompts) -> Job:
    """The job of a server that waits until it is ready and answers `prompts` in turn."""

    def job() -> None:
        server.ready()
        _send(server, prompts)

    return server, job


def _send(server: GpuServer, prompts: Prompts) -> None:
    for prompt in prompts:
        server.ask(*(prompt.lengths if isinstance(prompt, AtOnce) else (prompt,)))
