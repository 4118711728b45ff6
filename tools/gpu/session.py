"""One command on the GPU host: its scenarios one after the other, its results as they come."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.gpu import rehearsal
from tools.gpu.claims import table_of
from tools.gpu.clock import Clock
from tools.gpu.host import FACTS, Host
from tools.gpu.packing import pack, pack_caches, unpack_caches
from tools.gpu.runner import Runner
from tools.gpu.scenarios import CONTINUES, SCENARIOS
from tools.gpu.table import Claim, markdown, write
from wstrace.errors import WstraceError

CACHE_SECONDS: Final = 12.0
LAST_SECONDS: Final = 8.0
Scenario = Callable[[Runner], None]


@dataclass
class Session:
    """Everything that one `scripts/gpu run` keeps; sizes of `share` are parts of the GPU."""

    host: Host
    clock: Clock
    work: Path
    out: Path
    share: float
    claims: list[Claim] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    runner: Runner | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def run(self, name: str, scenario: Scenario) -> None:
        """Run a scenario; whatever happens to it, its files are checked and packed."""
        if self.clock.left() <= 0:
            self.not_run.append(f"{name}: the deadline came before it was started")
            return
        folder = self.work / CONTINUES.get(name, name)
        if name not in CONTINUES:
            shutil.rmtree(folder, ignore_errors=True)
        self.runner = Runner(self.host, self.clock, folder, self.share)
        self.runner.setting(scenario=folder.name)
        self.runner.attempt(f"scenario {name}", lambda: scenario(_of(self)))
        self.runner.attempt("stopping", self.runner.stop)
        self.finish(folder)

    def finish(self, folder: Path) -> None:
        """Pack a scenario's folder, check it, write the tables so far."""
        pack(folder, self.out / f"{folder.name}.tar.gz")
        try:
            claims, told = table_of(folder)
        except Exception as error:
            claims, told = [], [f"{folder.name}: its files could not be checked: {error!r}"]
        with self._lock:
            self.claims += claims
            self.not_run += told
            setting = json.loads((folder / "scenario.json").read_text())
            self.facts |= {n: setting[n] for n in FACTS if n in setting}
            write(self.claims, self.not_run, self.facts, self.out)

    def watch(self) -> None:
        """Ends servers when their time is up, and the process just before the deadline."""
        while self.clock.left() > 0:
            time.sleep(0.5)
        if self.runner is not None:
            self.runner.problem("deadline", TimeoutError("the time for servers is up"))
            self.runner.stop()
        time.sleep(max(0.0, self.clock.deadline - LAST_SECONDS - self.clock.now()))
        with self._lock:
            self.not_run.append(
                "stopped at the deadline; scripts/gpu run --check makes the table anew"
            )
            self._save()
            os._exit(3)

    def _save(self) -> None:
        """What there is, whatever state it is in."""
        write(self.claims, self.not_run, self.facts, self.out)
        print(markdown(self.claims, self.not_run), flush=True)
        if self.runner is not None:
            folder = self.runner.folder
            self.runner.attempt(
                "packing", lambda: pack(folder, self.out / f"{folder.name}.tar.gz")
            )


def _of(session: Session) -> Runner:
    assert session.runner is not None
    return session.runner


def run_session(options: argparse.Namespace) -> int:
    """All scenarios of the command line; the exit code is `verdict`'s."""
    scenarios = rehearsal.SCENARIOS if options.cpu_rehearsal else SCENARIOS
    names = _checked(options, scenarios)
    options.out.mkdir(parents=True, exist_ok=True)
    clock = Clock(options.deadline)
    caches = options.work / "caches"
    if options.caches is not None:
        unpack_caches(options.caches, caches)
    extra = rehearsal.environment() if options.cpu_rehearsal else {}
    host = Host(options.engine, options.wstrace, caches, extra=extra)
    session = Session(host, clock, options.work, options.out, options.share)
    threading.Thread(target=session.watch, daemon=True).start()
    for name in names:
        session.run(name, scenarios[name])
    return _conclude(session, options.pack_caches)


def _checked(options: argparse.Namespace, scenarios: Mapping[str, Scenario]) -> list[str]:
    """The scenarios' names. Raises WstraceError before anything is started."""
    names = [name.strip() for name in options.scenario.split(",")]
    for name in names:
        if name not in scenarios:
            raise WstraceError(f"No scenario {name!r}.", f"There are {', '.join(scenarios)}.")
    if options.deadline <= Clock.margin:
        hint = f"Give more than the {Clock.margin:.0f} that are kept for checks and packing."
        raise WstraceError(f"A deadline of {options.deadline:.0f} s is too short.", hint)
    if not 0 < options.share <= 1:
        raise WstraceError(f"A share of {options.share} is not one.", "Above 0, at most 1.")
    if options.caches is not None and not options.caches.is_file():
        raise WstraceError(f"{options.caches} is not there.", "Leave --caches out.")
    return names


def _conclude(session: Session, caches: bool) -> int:
    if caches and session.clock.deadline - session.clock.now() > CACHE_SECONDS:
        version = session.facts.get("vllm") or "unknown"
        target = session.out / f"caches-{version}.tar.xz"
        print(pack_caches(session.host.caches, target), flush=True)
    write(session.claims, session.not_run, session.facts, session.out)
    print(markdown(session.claims, session.not_run), flush=True)
    print(f"{session.clock.now():.0f} s", flush=True)
    return verdict(session.claims)


def verdict(claims: Sequence[Claim]) -> int:
    """0 when every claim that was reached held, 1 when one failed, 3 when none was reached."""
    marks = {claim.ok for claim in claims}
    return 1 if False in marks else 0 if True in marks else 3


def check_again(folder: Path) -> int:
    """The table of an unpacked result, made anew from its files."""
    claims, told = table_of(folder)
    sys.stdout.write(markdown(claims, told))
    return verdict(claims)
