"""The plugin, in pytest runs of its own. An "engine" here is a process that writes a trace.

Real engines are in tests/integration/test_pytest_plugin.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest_plugins = ("pytester",)
ROOT = Path(__file__).parents[3]
# What an engine does for the recorder: a worker, here or spawned, writes into WSTRACE_DIR.
ENGINE = f"""
import os, subprocess, sys
from pathlib import Path

WORKER = '''
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.unit.gate import traces
def worker(kind, *numbers):
    make = getattr(traces, kind)
    make(Path(os.environ["WSTRACE_DIR"]), *map(int, numbers), run=os.environ["WSTRACE_RUN"])
'''
exec(WORKER)
engine = worker

def spawned_engine(*arguments):
    source = WORKER + "worker(*sys.argv[1:])"
    subprocess.run([sys.executable, "-c", source, *map(str, arguments)], check=True)
"""
CLEAN_ARENA = 4 * 1024 * 1024


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test suite with the module `fake`, whose engine() runs an engine."""
    pytester.makepyfile(fake=ENGINE)
    return pytester


PLUGINS = (
    *("--disable-plugin-autoload", "-p", "wstrace.pytest_plugin", "-p", "no:cacheprovider"),
    # of the modules that this process has imported already
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


def _run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_inprocess(*PLUGINS, *arguments)


def _run_apart(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess(*PLUGINS, "-p", "xdist", *arguments)


def test_marker_passes_and_fails_by_the_trace(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace
        def test_clean():
            engine("clean")

        @pytest.mark.wstrace(fail_on="escapes")
        def test_escape():
            engine("escape")

        @pytest.mark.wstrace(fail_on="none")
        def test_escape_allowed():
            engine("escape")

        @pytest.mark.wstrace
        def test_pointer_is_no_escape():
            engine("pointer")

        @pytest.mark.wstrace(fail_on="error")
        def test_pointer():
            engine("pointer")
    """)
    result = _run(suite, "-v")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_clean PASSED*",
            "*test_escape FAILED*",
            "*test_escape_allowed PASSED*",
            "*test_pointer_is_no_escape PASSED*",
            "*test_pointer FAILED*",
        ]
    )


@pytest.mark.parametrize(("limit", "failed"), [(CLEAN_ARENA, 0), (CLEAN_ARENA - 1, 1)])
def test_max_arena_at_the_byte(suite: pytest.Pytester, limit: int, failed: int) -> None:
    suite.makepyfile(f"""
        import pytest
        from fake import engine

        @pytest.mark.wstrace(max_arena={limit})
        def test_arena():
            engine("clean")
    """)
    result = _run(suite)
    result.assert_outcomes(passed=1 - failed, failed=failed)
    if failed:
        result.stdout.fnmatch_lines(["*limit/arena: the arena is 4,194,304 bytes*"])


def test_a_marked_test_without_an_engine_fails(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace
        def test_nothing():
            pass

        @pytest.mark.wstrace
        def test_eager():
            engine("eager")

        @pytest.mark.wstrace(allow_unlocked=True)
        def test_eager_on_purpose():
            engine("eager")
    """)
    result = _run(suite)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*inconclusive: *recorder never attached*"])


def test_the_failure_is_short_and_says_what_and_where(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace
        def test_escape():
            engine("escape", 2048)
    """)
    result = _run(suite, "--wstrace=kept")
    text = str(result.stdout)
    failure = text[text.index("= FAILURES") : text.index("= wstrace")].splitlines()[2:]
    assert len(failure) <= 12
    joined = "\n".join(failure)
    assert "WS101 vllm/v1/attention/backends/tiny_attn.py:TinyImpl" in joined
    assert "asked 2.00 MiB in a slot locked at 64.00 KiB" in joined
    assert "can need 4.00 MiB (proved)" in joined
    (trace,) = [line.split(": ", 1)[1] for line in failure if line.startswith("  trace: ")]
    assert list(Path(trace).glob("*.wst.jsonl"))


def test_a_test_that_fails_by_itself_shows_the_trace_too(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace
        def test_dies():
            engine("escape")
            raise RuntimeError("EngineDeadError")

        @pytest.mark.wstrace
        def test_skips():
            pytest.skip("no")

        @pytest.mark.xfail(strict=True)
        @pytest.mark.wstrace
        def test_expected():
            engine("escape")
    """)
    result = _run(suite)
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*RuntimeError: EngineDeadError*", "*WS101 *tiny_attn*"])


def test_the_fixture_gives_folder_and_session(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import os
        from fake import engine

        def test_fixture(wstrace_recorder):
            assert wstrace_recorder.analysed().inconclusive
            engine("escape")
            assert wstrace_recorder.analysed().verdict() == "findings"
            assert [f.code for f in wstrace_recorder.analysed().escapes] == ["WS101"]
            assert list(wstrace_recorder.folder.glob("*.wst.jsonl"))
            assert wstrace_recorder.folder.stat().st_mode & 0o777 == 0o700

        def test_after():
            assert "WSTRACE_DIR" not in os.environ
    """)
    _run(suite).assert_outcomes(passed=2)


def test_the_option_records_every_test_and_fails_none(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        from fake import engine

        def test_escape():
            engine("escape")

        def test_clean():
            engine("clean")

        def test_without_an_engine():
            pass
    """)
    result = _run(suite, "--wstrace=kept")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*= wstrace =*",
            "*::test_escape: findings, arena 64.00 KiB: WS101 *_continuation_prefill",
            "2 tests judged by wstrace, 1 clean",
        ]
    )
    folders = sorted(p.parent.name for p in (suite.path / "kept").rglob("*.wst.jsonl"))
    assert len(folders) == 2
    assert all("test_" in name for name in folders)
    assert not list((suite.path / "kept").rglob("*without_an_engine*"))


def test_without_option_and_marker_nothing_is_recorded(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    suite.makepyfile("""
        import os, sys

        def test_plain():
            assert "WSTRACE_DIR" not in os.environ
            heavy = {"pandas", "torch", "vllm", "plotly", "typer", "wstrace.recorder.install"}
            assert not heavy & set(sys.modules)
    """)
    result = _run_apart(suite)
    result.assert_outcomes(passed=1)
    assert "= wstrace" not in str(result.stdout)


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    source = """
import sys
import pytest
before = set(sys.modules)
import wstrace.pytest_plugin
new = {name.partition('.')[0] for name in set(sys.modules) - before}
print(sorted(new - {'wstrace'} - sys.stdlib_module_names))
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_spawned_engine_is_recorded(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import spawned_engine

        @pytest.mark.wstrace
        def test_escape():
            spawned_engine("escape", 1024)
    """)
    result = _run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*asked 1.00 MiB in a slot locked at 64.00 KiB*"])


def test_under_xdist_each_worker_has_its_own_folder(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace
        @pytest.mark.parametrize("number", range(4))
        def test_clean(number):
            engine("clean")

        @pytest.mark.wstrace
        def test_escape():
            engine("escape")
    """)
    result = _run_apart(suite, "-n", "2", "--wstrace=kept", "--junit-xml=out.xml")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        ["*::test_escape: findings*WS101*", "5 tests judged by wstrace, 4 clean"]
    )
    workers = {p.relative_to(suite.path / "kept").parts[0] for p in suite.path.rglob("*.jsonl")}
    assert workers == {"gw0", "gw1"}
    assert len({p.parent for p in suite.path.rglob("*.jsonl")}) == 5
    assert _properties(suite, "test_escape")["wstrace.verdict"] == "findings"


def test_junit_properties(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.mark.wstrace(max_arena="8MiB")
        def test_clean():
            engine("clean")

        @pytest.mark.wstrace
        def test_escape():
            engine("escape")

        def test_plain():
            pass
    """)
    _run(suite, "--junit-xml=out.xml").assert_outcomes(passed=2, failed=1)
    clean = _properties(suite, "test_clean")
    assert (clean["wstrace.verdict"], clean["wstrace.arena_bytes"]) == ("clean", "4194304")
    escape = _properties(suite, "test_escape")
    assert escape["wstrace.findings"].startswith("WS101 vllm/v1/attention")
    assert _properties(suite, "test_plain") == {}


def _properties(suite: pytest.Pytester, name: str) -> dict[str, str]:
    root = ET.parse(suite.path / "out.xml")
    (case,) = [c for c in root.iter("testcase") if c.get("name") == name]
    return {p.get("name", ""): p.get("value", "") for p in case.iter("property")}


@pytest.mark.parametrize("marker", ["(max_arena='big')", "('64MiB')", "(fail_on='WS999')"])
def test_a_wrong_marker_is_an_error_of_that_test(suite: pytest.Pytester, marker: str) -> None:
    suite.makepyfile(f"""
        import pytest

        @pytest.mark.wstrace{marker}
        def test_wrong():
            pass

        def test_other():
            pass
    """)
    result = _run(suite, "--strict-markers")
    result.assert_outcomes(passed=1, errors=1)
    assert "Traceback" not in str(result.stdout)


def test_the_option_does_not_swallow_a_test_path(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_here="def test_it(): pass")
    result = _run(suite, "--wstrace", "test_here.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*write --wstrace=DIR*"])


def test_a_fixture_that_starts_the_engine_is_recorded(suite: pytest.Pytester) -> None:
    """The recorder is set up before the test's other fixtures, whatever their order."""
    suite.makepyfile("""
        import pytest
        from fake import engine

        @pytest.fixture
        def llm():
            engine("clean")

        @pytest.mark.wstrace
        def test_clean(llm):
            pass
    """)
    _run(suite).assert_outcomes(passed=1)


def test_the_entry_point_is_found(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(["*--wstrace=[[]DIR]*"])


def test_an_engine_that_vanished_is_inconclusive_and_one_that_runs_is_not(
    suite: pytest.Pytester,
) -> None:
    """Neither wrote an end; the process of the second is this test's own."""
    suite.makepyfile("""
        import os, pytest
        from fake import traces
        from pathlib import Path

        def engine():
            folder = Path(os.environ["WSTRACE_DIR"])
            return traces.clean(folder, run=os.environ["WSTRACE_RUN"], over=False)

        @pytest.mark.wstrace
        def test_vanished():
            engine()

        @pytest.mark.wstrace
        def test_runs():
            (file,) = engine().glob("*.wst.jsonl")
            ours = f'"host":"{os.uname().nodename}","pid":{os.getpid()}'
            file.write_text(file.read_text().replace('"host":"node0","pid":4000', ours, 1))
    """)
    result = _run(suite)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*no run.json says how this run ended: what rank 0 did after its last record*"]
    )
