"""`wstrace watch --metrics`: a run's metrics over HTTP while it happens.

The run is analysed again when its files have changed, at most every `interval` seconds and a
tenth of the time: a scrape only reads what was made last. Started before the run, it waits
for it; started once for a folder, it follows the newest run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from wstrace.errors import WstraceError
from wstrace.file_names import trace_file_kind
from wstrace.findings.analysed_run import load_run
from wstrace.plain_files import read_plain
from wstrace.recorder.state.guard_file import files_of_ranks
from wstrace.report.export.prometheus import Families, families
from wstrace.units import count_of

SHARE: Final = 10
"""The part of the time that goes into analysing: one in so many."""
_LARGEST: Final = 1 << 20
Seen = frozenset[tuple[Path, int, int]]


def address_of(text: str) -> tuple[str, int]:
    """(host, port) of `:9464` (all addresses), `127.0.0.1:9464`, `[::1]:9464`.

    Raises WstraceError for anything else.
    """
    host, colon, port = text.rpartition(":")
    number = count_of(port)
    if not colon or number is None or number >= 1 << 16:
        raise WstraceError(
            f"Not an address to serve metrics at: {text!r}.",
            "Write it as :9464 or 127.0.0.1:9464.",
        )
    return host.strip("[]") or "0.0.0.0", number


class MetricsServer:
    """The metrics of `folder` (None: no trace) and of the guard's counters, at an address.

    `guard_file` is what WSTRACE_GUARD_FILE named. Raises WstraceError where the address
    cannot be had.
    """

    def __init__(
        self, folder: Path | None, run: str | None, guard_file: Path | None, address: str
    ) -> None:
        self.folder, self.run, self.guard_file = folder, run, guard_file
        self.shown = Families()
        self.doubt = ""
        self._read: Seen = frozenset()
        self._of_run: list[Family] = []
        registry = CollectorRegistry()
        registry.register(self.shown)
        host, port = address_of(address)
        try:
            self.server, self.thread = start_http_server(port, host, registry)
        except OSError as error:
            raise WstraceError(
                f"Cannot serve metrics at {address}: {error.strerror or error}.",
                "Give another address with --metrics, such as :9465.",
            ) from error

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def follow(self, interval: float, stop: threading.Event | None = None) -> Iterator[str]:
        """Refresh until `stop`; a line where what it cannot read has changed."""
        stop = stop or threading.Event()
        while not stop.is_set():
            began, before = time.monotonic(), self.doubt
            self.refresh()
            if self.doubt and self.doubt != before:
                yield self.doubt
            stop.wait(max(interval, SHARE * (time.monotonic() - began)))

    def refresh(self) -> None:
        """Make the metrics anew, those of the run only where its files have changed."""
        self.doubt = ""
        seen = frozenset(_files(self.folder)) if self.folder else frozenset()
        if self.folder is not None and (not seen or seen != self._read):
            self._of_run, self._read = self._analysed(self.folder), seen
        self.shown.made = tuple(merged([*self._of_run, *self._guard()]))

    def _analysed(self, folder: Path) -> list[Family]:
        """The last metrics stay where the trace cannot be read just now."""
        try:
            found = families(load_run(folder, self.run))
        except (WstraceError, OSError) as error:
            self.doubt = f"waiting for a run in {folder}: {error}".splitlines()[0]
            return self._of_run
        return found

    def _guard(self) -> Iterator[Family]:
        """What each rank of a guarded server wrote beside WSTRACE_GUARD_FILE's name."""
        if self.guard_file is None:
            return
        for path in files_of_ranks(self.guard_file):
            try:
                text = read_plain(path, _LARGEST).decode("utf-8")
                for family in text_string_to_metric_families(text):
                    # counters have no time of their own; one beyond all bounds ends a scrape
                    family.samples = [s._replace(timestamp=None) for s in family.samples]
                    yield family
            except (OSError, ValueError, ArithmeticError) as error:
                self.doubt = f"cannot read {path}: {error}"


def _files(folder: Path) -> Iterator[tuple[Path, int, int]]:
    for path in folder.glob("*"):
        if trace_file_kind(path.name):
            try:
                found = path.stat()
            except OSError:
                continue
            yield path, found.st_size, found.st_mtime_ns


def merged(found: Iterable[Family]) -> Iterator[Family]:
    """One family a name: a trace and several ranks' files may have the same."""
    by_name: dict[str, Family] = {}
    for family in found:
        one = by_name.setdefault(family.name, family)
        if one is not family:
            one.samples = [*one.samples, *family.samples]
    yield from by_name.values()
