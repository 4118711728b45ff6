"""What this process writes, and what it must not forget: one `TraceOutput` a process.

Every record goes through it. API servers leave no file, so what is not a worker's own waits
for a worker; and a new file (after a fork, or where the first is gone) repeats what a reader
needs.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec

import wstrace
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.writer import TraceWriter, UnwritableError, to_stderr
from wstrace.safe_texts.redact import redact_argv
from wstrace.trace.records import (
    FORMAT,
    Header,
    Lock,
    Manager,
    Note,
    PhaseChange,
    Record,
    Site,
    Truncated,
    WorkerInit,
)
from wstrace.versions import installed_vllm, package_version

STANDING = (WorkerInit, Manager, Lock, PhaseChange)  # what holds until the next of its kind
MOST_COMPLAINTS = 50


class TraceOutput:
    """The records of this process: written, waiting for a worker, or said once already."""

    def __init__(self, settings: Settings) -> None:
        self.writer = TraceWriter(settings.directory, settings.run, self._header)
        self.writer.on_open.append(self._after_open)
        self.truncated: set[str] = set()
        self._settings = settings
        self._has_worker = False
        self._waiting: list[Record] = []
        self._standing: dict[type[Record], Record] = {}
        self._sites: dict[tuple[str, str], Site] = {}
        self._complaints: set[str] = set()

    def write(self, record: Record) -> None:
        """Append a record to this process's file; where that fails the writer says so."""
        try:
            self.writer.write(record)
        except UnwritableError as error:
            self.complain(f"a {type(record).__name__.lower()} record", error)
        except Exception as error:
            self.writer.stand_down(error, record)
        if isinstance(record, STANDING):
            self._standing[type(record)] = record

    def write_for_worker(self, record: Record) -> None:
        """Append a record, after the worker's own."""
        if self._has_worker:
            self.write(record)
        else:
            self._waiting.append(record)

    def write_worker(self, record: WorkerInit) -> None:
        """Append the worker record, then what has waited for it."""
        self.write(record)
        self._has_worker = True
        self.write_waiting()

    def write_waiting(self) -> None:
        """Append what has waited for a worker, also where none will be seen."""
        for waiting in self._waiting:
            self.write(waiting)
        self._waiting.clear()

    def site(self, file: str, function: str, line: int, caller: str) -> Site:
        """The site of a function; written when it is first seen in this process."""
        found = self._sites.get((file, function))
        if found is not None:
            return found
        number = len(self._sites) + 1
        site = Site(id=number, file=file, function=function, line=line, caller=caller)
        self._sites[file, function] = site
        self.write(site)
        return site

    def truncate(self, what: str) -> None:
        """Say once that a cap was reached."""
        if what not in self.truncated:
            self.truncated.add(what)
            self.write(Truncated(what=what, limit=self._settings.max_keys))

    def complain(self, what: str, error: Exception) -> None:
        """An error of the recorder's own: noted once a kind, never raised into vLLM.

        On stderr where it cannot be noted.
        """
        text = f"recorder: {what}: {type(error).__name__}: {error}"[:400]
        if text in self._complaints or len(self._complaints) >= MOST_COMPLAINTS:
            return
        self._complaints.add(text)
        try:
            self.write_for_worker(Note(text=text, piece=what))
        except Exception:
            to_stderr(text)

    def _header(self) -> Header:
        settings = self._settings
        return Header(
            format=FORMAT,
            run=settings.run,
            wstrace=wstrace.__version__,
            vllm=installed_vllm(),
            torch=package_version("torch"),
            python=sys.version.split()[0],
            host=os.uname().nodename,
            pid=os.getpid(),
            role=_process_role(),
            wall_ns=time.time_ns(),
            argv=redact_argv(sys.argv),
            on_growth=settings.on_growth,
            reserve=os.path.basename(settings.reserve) if settings.reserve else None,
        )

    def _after_open(self) -> None:
        for record in (self._standing[k] for k in STANDING if k in self._standing):
            self.writer.write(msgspec.structs.replace(record))
        for site in self._sites.values():
            self.writer.write(site)


def _process_role() -> str:
    """vLLM's name of this process (EngineCore, VllmWorker-0, ApiServer_0) or `main`."""
    import multiprocessing

    name = multiprocessing.current_process().name
    return "main" if name == "MainProcess" else name
