"""The demo: a real `vllm serve` dies of a locked workspace, is diagnosed, and `fix` cures it.

Everything is real but two things: the model has dummy weights, and the CPU engine's testbed
plugin makes the requests that GPU layers would make (see docs/testbed.md).
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from wstrace.cli.fixing.loop import GROWN, RESERVE, VERIFIED
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.report.verdict import verdict_lines
from wstrace.testbed.engine import Server, engine_env
from wstrace.testbed.model import build_model

SHORT, LONG = 100, 1500
PATTERNS = "decode_scratch,continuation"
WSTRACE = (sys.executable, "-m", "wstrace.cli.app")
EXCERPT = {
    "slots": ("ubatch", "lane", "bytes"),
    "sites": ("site", "grade", "bytes", "formula"),
}
# vLLM 0.13.0 to 0.33.0: the refusal of WorkspaceManager._ensure_workspace_size
# matches: "ERROR AssertionError: Workspace is locked but allocation from ..."
LOCKED = re.compile(r"AssertionError: (Workspace is locked but .*)")


@dataclass
class Demo:
    """One demo in `folder`: logs, traces and reserve.yaml stay there to be looked at."""

    folder: Path
    console: Console
    started: float = field(default_factory=time.monotonic)
    failed: list[str] = field(default_factory=list)

    def say(self, text: str, style: str = "") -> None:
        """A step, with the seconds since the start."""
        seconds = time.monotonic() - self.started
        clock = (f"[{seconds:5.1f} s]", "bold")
        self.console.print(Text.assemble(clock, " ", (text, style)))

    def show(self, text: str) -> None:
        """Output of a command, indented."""
        for line in text.rstrip().splitlines():
            self.console.print(f"    {line}", soft_wrap=True)

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Check a step of the demo; a surprise makes the demo exit 1 at its end."""
        if found == wanted:
            self.say(f"{what}: {found}")
        else:
            self.failed.append(f"{what}: {found}, expected {wanted}")
            self.say(f"{what}: {found}, expected {wanted}", "red")


def require_engine() -> None:
    """WstraceError where this environment has no vLLM."""
    if shutil.which("vllm", path=str(Path(sys.prefix) / "bin")) is None:
        raise WstraceError(
            "The demo needs vLLM's CPU engine in this environment.",
            "Run ./scripts/demo of a source checkout, which builds one.",
        )


def run_demo(folder: Path, console: Console) -> list[str]:
    """Run the whole demo; returns what did not go as expected (empty: all well).

    Raises WstraceError when a server does not start.
    """
    demo = Demo(folder, console)
    demo.say("Building a tiny model (dummy weights, nothing is downloaded)")
    model = build_model(folder / "model")
    with ExitStack() as ends:
        fixing = _start_fix(demo, model)
        ends.callback(_end_fix, fixing)
        _crash(demo, model)
        _diagnose(demo, load_run(folder / "crash"))
        _follow_fix(demo, fixing)
    return demo.failed


def _start_fix(demo: Demo, model: Path) -> subprocess.Popen[str]:
    """Beside the first server, because a start keeps only one core busy, and only with what
    that one leaves. What it says waits in its pipe."""
    demo.say("$ wstrace fix -- vllm serve MODEL   (beside the first server; shown below)")
    server = Server(model, demo.folder / "fix.log")
    words = (*WSTRACE, "fix", "-o", str(demo.folder / "fix"), "--", *server.command)
    return subprocess.Popen(
        ["nice", "-n", "19", *words],
        env=engine_env(PATTERNS),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _end_fix(fixing: subprocess.Popen[str]) -> None:
    """Ctrl-C for it: it ends its server, then itself."""
    if fixing.poll() is None:
        fixing.send_signal(signal.SIGINT)
    fixing.communicate()


def _crash(demo: Demo, model: Path) -> None:
    demo.say("$ wstrace run -- vllm serve MODEL")
    server = Server(
        model,
        demo.folder / "crash.log",
        before=[*WSTRACE, "run", "-q", "-o", str(demo.folder / "crash"), "--"],
        env=engine_env(PATTERNS),
        on_wait=lambda seconds: demo.say("... the engine is starting (crash.log)"),
    )
    with server:
        demo.say("server ready; TurboQuant's continuation prefill is active")
        demo.expect(f"prompt of {SHORT} tokens", server.complete(SHORT).status, 200)
        demo.expect(f"prompt of {LONG} tokens", server.complete(LONG).status, 500)
    match = LOCKED.search(server.log.read_text(errors="replace"))
    demo.expect("the engine died of vLLM's own error", match is not None, True)
    if match is not None:
        demo.show(match[0])


def _diagnose(demo: Demo, run: AnalysedRun) -> None:
    demo.say("What wstrace saw:")
    demo.show("\n".join(verdict_lines(run, run.trace.path)))


def _follow_fix(demo: Demo, fixing: subprocess.Popen[str]) -> None:
    """What fix said and says, and what it left."""
    demo.say("$ wstrace fix -- vllm serve MODEL   (the same server, which started meanwhile)")
    assert fixing.stdout is not None
    for line in fixing.stdout:
        demo.show(line)
    demo.expect("fix's exit code", fixing.wait(), 0)
    folder = demo.folder / "fix"
    if not (folder / RESERVE).exists():
        demo.failed.append(f"fix wrote no {RESERVE}")
        return
    demo.say("What the reserve says, of the site that decides it:")
    demo.show(excerpt((folder / RESERVE).read_text()))
    demo.say(f"The whole file, with its reasons: {folder / RESERVE}")
    found = len(load_run(folder / GROWN).escapes)
    demo.expect("escapes found with growth allowed, one of them behind the crash", found, 2)
    code = _wstrace(demo, "gate", str(folder / VERIFIED), lines=1)
    demo.expect("the gate's exit code with the reserve", code, 0)


def _wstrace(demo: Demo, *arguments: str, lines: int = 12) -> int:
    """Run a wstrace command as a user would, and show the first lines of its output."""
    demo.say(f"$ wstrace {shlex.join(arguments)}")
    done = subprocess.run(
        [*WSTRACE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    told = (done.stdout + done.stderr).splitlines()
    demo.show("\n".join(told[:lines]))
    if len(told) > lines:
        demo.show(f"(and {len(told) - lines} more lines)")
    return done.returncode


def excerpt(text: str) -> str:
    """The lines of a reserve config that matter first: slots, and the first site's need.

    Sites are sorted by bytes, so the first one decides what a slot gets.
    """
    kept: list[str] = []
    section, sites = "", 0
    for line in text.splitlines():
        key = line.strip().removeprefix("- ").partition(":")[0]
        section = key if line[:1].isalpha() else section
        sites += section == "sites" and key == "site"
        if section in EXCERPT and key in (section, *EXCERPT[section]) and sites < 2:
            kept.append(line)
    return "\n".join(kept)
