"""The pytest plugin: `--wstrace[=DIR]`, the fixture `wstrace_recorder`, the marker `wstrace`.

Every vLLM engine that a test starts is recorded into a folder of that test, in this process
or in a spawned one; a marked test fails when its trace does not pass the gate. Only hooks
live here, and nothing but pytest and the standard library is imported until a test records.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from wstrace.errors import WstraceError
from wstrace.file_names import SUFFIX
from wstrace.pytest_marker import Marker, read_marker

if TYPE_CHECKING:
    from wstrace.findings.analysed_run import AnalysedRun
    from wstrace.gate.judge import Judgement
    from wstrace.trace.records import Header

DEFAULT_FOLDER: Final = "wstrace-pytest"
FIXTURE: Final = "wstrace_recorder"
MARKER_LINE: Final = (
    'wstrace(max_arena="64MiB", fail_on="escapes", allow_unlocked=False, min_exercise=None, '
    'on_growth="raise", reserve=None): record the engines of this test and judge the trace'
)
SHOWN: Final = 20


class Recorder:
    """A test's recording: `folder` holds the trace, `analysed()` analyses it so far."""

    def __init__(self, folder: Path, run: str, marker: Marker | None) -> None:
        self.folder = folder
        self.run = run
        self.marker = marker

    @property
    def attached(self) -> bool:
        """True when some process of an engine has written a trace."""
        return any(self.folder.glob(f"*{SUFFIX}"))

    def analysed(self, *, allow_unlocked: bool = False) -> AnalysedRun:
        """The analysed trace so far: an engine that still runs may go on. Raises WstraceError
        when it cannot be read."""
        from wstrace.findings.analysed_run import analyse
        from wstrace.recorder.install import current
        from wstrace.trace.reader import load_trace

        live = current()
        if live is not None:
            live.flush_counts()
        trace = load_trace(self.folder, self.run if self.attached else None)
        trace.alive = frozenset(p.header.pid for p in trace.processes if _lives(p.header))
        return analyse(trace, allow_unlocked=allow_unlocked)

    def judge(self) -> Judgement:
        """The gate's judgement by the test's marker (without one: by the default policy)."""
        from datetime import date

        from wstrace.gate.judge import judge

        marker = self.marker or Marker()
        run = self.analysed(allow_unlocked=marker.allow_unlocked)
        return judge([run], marker.policy(), date.min)


def _lives(header: Header) -> bool:
    """Whether a process of this host runs, as far as a signal reaches it."""
    if header.host != os.uname().nodename or header.pid <= 0:
        return False
    try:
        os.kill(header.pid, 0)
    except OSError:
        return False
    return True


RECORDER: Final = pytest.StashKey[Recorder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--wstrace[=DIR]`."""
    parser.getgroup("wstrace").addoption(
        "--wstrace",
        nargs="?",
        const=DEFAULT_FOLDER,
        default=None,
        metavar="DIR",
        help=f"record the vLLM engines of every test and keep the traces (./{DEFAULT_FOLDER})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; catch `--wstrace tests`, which would make tests the DIR."""
    config.addinivalue_line("markers", MARKER_LINE)
    named = config.getoption("--wstrace")
    if named is None:
        return
    folder = config.invocation_params.dir / named.partition("::")[0]
    if folder.is_file() or any(folder.glob("test_*.py")) or (folder / "conftest.py").exists():
        raise pytest.UsageError(
            f"--wstrace {named}: that is where tests are; write --wstrace=DIR, or put "
            "--wstrace last"
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marked tests, and with `--wstrace` all of them, use the fixture, before any other."""
    names = getattr(item, "fixturenames", None)
    wanted = item.get_closest_marker("wstrace") or item.config.getoption("--wstrace")
    if names is not None and wanted and FIXTURE not in names:
        names.insert(0, FIXTURE)


@pytest.fixture
def wstrace_recorder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorder]:
    """Record the vLLM engines that this test starts; gives `folder` and `analysed()`."""
    import wstrace

    try:
        marker = _marker(request.node)
        settings = marker or Marker()
        recording = wstrace.record(
            _folder(request, tmp_path_factory),
            on_growth=settings.on_growth,
            reserve=settings.reserve,
        )
        with recording as folder:
            recorder = Recorder(folder, os.environ["WSTRACE_RUN"], marker)
            request.node.stash[RECORDER] = recorder
            yield recorder
    except WstraceError as error:
        pytest.fail(f"wstrace: {error.message}\n{error.hint}", pytrace=False)
    with suppress(OSError):
        folder.rmdir()


def _marker(item: pytest.Item) -> Marker | None:
    mark = item.get_closest_marker("wstrace")
    return None if mark is None else read_marker(mark.args, mark.kwargs)


def _folder(request: pytest.FixtureRequest, temporary: pytest.TempPathFactory) -> Path:
    """This test's own folder: below DIR and the xdist worker's name, or a temporary one."""
    named = request.config.getoption("--wstrace")
    base = (
        temporary.mktemp("wstrace")
        if named is None
        else request.config.invocation_params.dir / named
    )
    nodeid = request.node.nodeid
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    # becomes tests-test_a.py-test_b-x-y
    # matches: "tests/test_a.py::test_b[x y]"
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid)[-80:].strip("-.")
    return base / os.environ.get("PYTEST_XDIST_WORKER", "main") / f"{name}-{digest}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Judge the trace when the test has run; a marked test fails with what was found."""
    try:
        result = yield
    except (Exception, pytest.fail.Exception):
        if text := _conclude(item):
            item.add_report_section("call", "wstrace", text)
        raise
    text = _conclude(item)
    if text is not None and item.stash[RECORDER].marker is not None:
        pytest.fail(text, pytrace=False)
    return result


def _conclude(item: pytest.Item) -> str | None:
    """Judge and note the properties; what to tell of a trace that does not pass."""
    recorder = item.stash.get(RECORDER, None)
    if recorder is None or (recorder.marker is None and not recorder.attached):
        return None
    try:
        judgement = recorder.judge()
    except WstraceError as error:
        item.user_properties.append(("wstrace.verdict", "unreadable"))
        return f"wstrace: {error.message}"
    item.user_properties += _properties(judgement, recorder)
    if judgement.verdict == "clean":
        return None
    return "\n".join(_failure(judgement, recorder))


def _properties(judgement: Judgement, recorder: Recorder) -> list[tuple[str, object]]:
    """What JUnit and the terminal summary show of a test."""
    from wstrace.gate.limits import largest_arenas

    (run,) = judgement.runs
    arena = max(largest_arenas(run.analysed.workers).values(), default=0)
    found = [f"{j.finding.code} {j.finding.site}".rstrip() for j in run.failing]
    return [
        ("wstrace.verdict", judgement.verdict),
        ("wstrace.arena_bytes", arena),
        ("wstrace.findings", "; ".join(found + [v.rule for v in run.violations])),
        ("wstrace.trace", str(recorder.folder)),
    ]


def _failure(judgement: Judgement, recorder: Recorder) -> list[str]:
    """What fails, the worst first, what that rests on, and where the trace is."""
    from wstrace.report.ci.gate_lines import (
        explain,
        grounds,
        headline,
        numbers,
        violation_line,
        where,
    )

    (run,) = judgement.runs
    lines = [f"wstrace: {headline(judgement).partition(' (exit')[0]}"]
    for judged in run.failing[:3]:
        lines.append(f"  {judged.finding.code} {where(judged)}: {explain(judged)}")
        lines += [f"    {numbers(judged)}"] if numbers(judged) else []
    if len(run.failing) > 3:
        lines.append(f"  and {len(run.failing) - 3} more")
    lines += [f"  {violation_line(violation)}" for violation in run.violations[:2]]
    lines += [f"  inconclusive: {reason}" for reason in run.reasons[1:4]]
    lines += [f"  rests on: {line}" for line in grounds(run)]
    if not recorder.attached:
        lines.append("  start the engine inside the test, or in a fixture of its scope")
    return [*lines, f"  trace: {recorder.folder}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A section with a line for each test whose trace is not clean, and a count."""
    rows = [row for row in map(_row, _reports(terminalreporter)) if row is not None]
    if not rows:
        return
    terminalreporter.section("wstrace")
    told = [line for verdict, line in rows if verdict != "clean"]
    for line in told[:SHOWN]:
        terminalreporter.write_line(line)
    if len(told) > SHOWN:
        terminalreporter.write_line(f"and {len(told) - SHOWN} more")
    clean = len(rows) - len(told)
    terminalreporter.write_line(f"{len(rows)} tests judged by wstrace, {clean} clean")


def _reports(terminalreporter: pytest.TerminalReporter) -> Iterator[pytest.TestReport]:
    """The call phase of every test, once; under xdist they come from the workers."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                yield report


def _row(report: pytest.TestReport) -> tuple[str, str] | None:
    found = dict(report.user_properties)
    verdict = found.get("wstrace.verdict")
    if verdict is None:
        return None
    from wstrace.units import human

    arena = found.get("wstrace.arena_bytes")
    size = f", arena {human(arena)}" if isinstance(arena, int) else ""
    what = f": {found['wstrace.findings']}" if found.get("wstrace.findings") else ""
    return str(verdict), f"{report.nodeid}: {verdict}{size}{what}"
