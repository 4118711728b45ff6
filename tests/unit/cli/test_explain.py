"""`wstrace explain`, `wstrace completion`, where a code's page is, what --help loads."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.commands import wstrace
from tests.unit.report_html import runs
from wstrace.cli.app import COMMANDS, main
from wstrace.errors import with_stop
from wstrace.findings.codes import TITLES
from wstrace.report import pages
from wstrace.report.html import render

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "findings"
SITE = "https://docs.example.org/wstrace"


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["wstrace", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture(autouse=True)
def no_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pages.VARIABLE, raising=False)


# What has no page yet is told by tests/unit/findings/test_codes.py, once.
@pytest.mark.parametrize("code", [c for c in TITLES if (PAGES / f"{c}.md").exists()])
def test_every_code_is_explained_by_its_page(code: str) -> None:
    text = pages.page_text(code)
    assert text.startswith(f"# {code}")
    assert "<!--" not in text


def test_explain_shows_the_page_and_its_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = said(capsys, monkeypatch, "explain", "ws107")
    assert code == 0
    assert out == pages.page_text("WS107").rstrip() + "\n"
    monkeypatch.setenv(pages.VARIABLE, f"{SITE}/")
    _, out, _ = said(capsys, monkeypatch, "explain", "WS107")
    assert out.splitlines()[-1] == f"{SITE}/findings/WS107.html"


def test_several_codes_are_explained_in_their_order_each_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = said(capsys, monkeypatch, "explain", "ws107", "WS101", "WS107")
    heads = [line for line in out.splitlines() if line.startswith("# ")]
    assert (code, [head[2:7] for head in heads]) == (0, ["WS107", "WS101"])
    code, out, _ = said(capsys, monkeypatch, "explain", "WS101", "WS1")
    assert (code, out) == (2, "")


@pytest.mark.parametrize("code", TITLES)
def test_no_page_leads_to_a_file_that_is_not_installed(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links lie between pages of docs/ and out of it; only a site has the first."""
    links = re.compile(r"\]\(([^)]+)\)")
    assert all(link.startswith("https://") for link in links.findall(pages.page_text(code)))
    monkeypatch.setenv(pages.VARIABLE, SITE)
    for link in links.findall(pages.page_text(code)):
        if link.startswith(SITE):
            page = link.removeprefix(f"{SITE}/").partition("#")[0]
            assert (PAGES.parent / page.replace(".html", ".md")).is_file()
        else:
            assert link.startswith("https://")


def test_a_link_keeps_its_words_and_its_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "[the trace]" not in pages.page_text("WS101")
    assert "the trace" in pages.page_text("WS101")
    monkeypatch.setenv(pages.VARIABLE, SITE)
    assert f"[WS102]({SITE}/findings/WS102.html)" in pages.page_text("WS101")


def test_explain_alone_lists_the_codes_and_a_wrong_code_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = said(capsys, monkeypatch, "explain")
    assert [line.split()[0] for line in out.splitlines()] == list(TITLES)
    code, _, err = said(capsys, monkeypatch, "explain", "WS1O7")
    assert code == 2
    assert "Did you mean WS107?" in err


def test_the_page_links_a_finding_only_where_a_site_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = render([runs.crashed()])
    assert "<code>wstrace explain WS101</code>" in page
    monkeypatch.setenv(pages.VARIABLE, SITE)
    page = render([runs.crashed()])
    assert f'<a href="{SITE}/findings/WS101.html" rel="noreferrer">About WS101</a>' in page


@pytest.mark.parametrize("command", ["report", "gate"])
def test_what_a_terminal_shows_links_a_finding_where_a_site_is_set(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = str(ROOT / "tests" / "data" / "docs" / "crash")
    _, out, _ = said(capsys, monkeypatch, command, crash)
    assert "see:" not in out
    monkeypatch.setenv(pages.VARIABLE, SITE)
    _, out, _ = said(capsys, monkeypatch, command, crash)
    assert f"see: {SITE}/findings/WS101.html" in [line.strip() for line in out.splitlines()]


def test_the_wheel_carries_the_pages() -> None:
    assert '"docs/findings" = "wstrace/docs/findings"' in (ROOT / "pyproject.toml").read_text()


def test_completion_completes_commands_and_options() -> None:
    script = wstrace("completion", "bash").stdout
    assert "complete -o default -F _wstrace_completion wstrace" in script

    def completed(words: str, cursor: str) -> list[str]:
        asked = wstrace(_WSTRACE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=cursor)
        return asked.stdout.split()

    assert completed("wstrace gate --fai", "2") == ["--fail-on"]
    assert completed("wstrace re", "1") == ["report", "reserve"]
    assert completed("wstrace explain WS30", "2") == ["WS301", "WS302", "WS303", "WS304"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    done = wstrace("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_WSTRACE_COMPLETE" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_shown_whole_on_80_columns(name: str) -> None:
    """The list of commands cuts a longer one: 80 columns, less the names and the margins."""
    summary = (import_module(f"wstrace.cli.commands.{name}").command.__doc__ or "").split("\n")[
        0
    ]
    assert len(summary) <= 78 - 6 - max(map(len, COMMANDS))
    assert "..." not in summary


def test_help_loads_neither_rich_nor_what_only_a_command_needs() -> None:
    code = (
        "import sys; from wstrace.cli import app; sys.argv[1:] = ['--help']\n"
        "try: app.main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'pandas', 'plotly', 'jinja2', 'yaml', 'wstrace.recorder.install'}\n"
        "heavy |= {'msgspec', 'importlib.metadata'}\n"
        "print('LOADED', *heavy & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]
    assert "..." not in done.stdout.replace("[ARGS]...", "")


def test_a_sentence_ends_with_one_full_stop() -> None:
    assert [with_stop(text) for text in ("no lock", "refused.", "is it?")] == [
        "no lock.",
        "refused.",
        "is it?",
    ]
