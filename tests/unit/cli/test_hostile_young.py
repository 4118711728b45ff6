"""Strings of a trace that are rich's markup or a CI system's command, and errors that quote a
secret: every command that prints, gathers or keeps them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest
from rich.progress import Progress

from tests.commands import wstrace
from tests.unit.report.test_hostile import answer  # noqa: F401
from tools.fleet.planted import Plan, write_run
from wstrace.errors import WstraceError, one_line
from wstrace.expr.expression import parse
from wstrace.findings.analysed_run import load_run
from wstrace.gate.baseline import read_baseline
from wstrace.gather.copies import read_manifest
from wstrace.report.console import plain_console, plain_description
from wstrace.report.fleet_rows import TableCell
from wstrace.report.fleet_text import _table
from wstrace.report.text import render, render_text
from wstrace.reserve.reader import load_reserve
from wstrace.safe_texts.ci_commands import harmless
from wstrace.trace.run_file import read_run

Answer = Callable[..., str]
ROOT: Final = Path(__file__).parents[3]
DEMO: Final = ROOT / "sample_traces/demo-crash"
MARKUP: Final = (
    "x[/red]y",
    "[link=https://evil.example]click[/link]",
    "[bold]b[/bold] :warning: [/]",
)
COMMANDS: Final = (
    "::stop-commands::tok",
    "::error::pwned",
    "::Error file=a.py::pwned",
    "##[error]pwned",
    "##vso[task.setvariable variable=x]pwned",
)
# Source: TryParseV2 and TryParse of GitHub's runner; Azure's agent looks for ##vso[ alone
TAKEN: Final = re.compile(r"(?m)^\s*::[\w-]+(?: [^\n]*?)?::|##\w*\[")
SECRETS: Final = ("PLANTEDSECRET1", "hf_abcdefghijkl")
BROKEN: Final = '{"t":"phase","ns":2,"phase":"x api_key=PLANTEDSECRET1 hf_abcdefghijkl"}'


def with_names(folder: Path, text: str, *, before: str = "") -> Path:
    """demo-crash in which every site's file, function and caller is this text."""
    folder.mkdir(parents=True)
    for file in DEMO.iterdir():
        shutil.copy(file, folder / file.name)
    for file in folder.glob("*.wst.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            named = [line, *line.get("stack", [])] if line["t"] in ("site", "leaf") else []
            for part in [line, *named]:
                for key in ("caller", "file", "function"):
                    if isinstance(part, dict) and key in part:
                        part[key] = before + text
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("text", MARKUP)
def test_markup_of_a_trace_is_text(text: str, tmp_path: Path) -> None:
    run = load_run(with_names(tmp_path / "t", text))
    out = StringIO()
    render(run, plain_console(file=out, width=300, force_terminal=True))
    assert "]8;" not in out.getvalue()  # OSC 8, a link
    assert text in re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert text in render_text(run, 300)


@pytest.mark.parametrize("text", MARKUP)
def test_markup_in_a_fleets_cell_and_in_a_bar_is_text(text: str) -> None:
    out = StringIO()
    console = plain_console(file=out, width=200, force_terminal=True)
    console.print(_table("title", ["a"], [[TableCell(text)]]))
    console.print(text)
    with Progress(plain_description(), console=console) as progress:
        progress.add_task(text, total=1)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue())
    assert "]8;" not in out.getvalue()
    assert shown.count(text) >= 3


def test_there_is_one_console() -> None:
    """Another one would read markup: rich's own default."""
    made = re.compile(r"(?<!plain_)\b(?:Console|TextColumn)\(|rich\.markup|from_markup")
    assert made.search("x = Console(stderr=True)")
    found = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "wstrace").rglob("*.py")
        if made.search(file.read_text())
    }
    assert found == {"wstrace/report/console.py"}


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_of_a_ci_system_is_spelt(text: str) -> None:
    for before in ("", " ", "\u00a0", "a b ", "x" * 30):
        for made in (harmless(before + text), one_line(before + text)):
            for start in range(len(made)):  # a table may fold anywhere
                assert not TAKEN.match(made[start:]), made
            assert harmless(made) == made
    assert "pwned" in harmless(text) or "tok" in harmless(text)


@pytest.mark.parametrize(
    ("file", "function"), [("::error", ":x"), ("", ":error::x"), (":", "error::x"), ("::", "x")]
)
def test_a_file_and_a_function_make_no_command_together(file: str, function: str) -> None:
    assert not TAKEN.search(f"{one_line(file)}:{one_line(function)}")


@pytest.mark.parametrize(
    "name",
    [
        "torch::empty",
        "a::b",
        "std::chrono::steady_clock::now",
        "c10::Error: no memory",
        "what():  at::native::empty_cuda(x)",
        "/opt/vllm/x.py:Class.method",
        "# heading ## more",
        "tensor[0]",
        "http://[::1]:8000",
    ],
)
def test_a_name_of_c_stays_as_it_is(name: str) -> None:
    assert harmless(name) == name


TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "report": ("report", "T"),
    "report md": ("report", "T", "--format", "markdown"),
    "report json": ("report", "T", "--format", "json"),
    "diff": ("diff", "T"),
    "gate": ("gate", "T"),
    "gate md": ("gate", "T", "--format", "markdown"),
    "fleet": ("fleet", "T", "--no-cache", "--jobs", "1"),
    "watch": ("watch", "T", "--once"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_a_command_of_a_ci_system(
    name: str,
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    text = f"{COMMANDS[0]} {COMMANDS[1]} {COMMANDS[3]} {COMMANDS[4]}"
    for place, before in (("a", ""), ("b", "  "), ("c", "word " * 20)):
        trace = with_names(tmp_path / place, text, before=before)
        told = answer(*(trace if word == "T" else word for word in TEXTS[name]))
        assert told
        assert not TAKEN.search(told), told


def test_no_line_of_a_logs_diagnosis_is_one(answer: Answer, tmp_path: Path) -> None:  # noqa: F811
    log = tmp_path / "log.txt"
    for hostile in COMMANDS:
        log.write_text(
            f"vLLM version 0.32.0 {hostile}\n{hostile}\n"
            f"AssertionError: Workspace is locked but allocation from '{hostile}:7:_f' "
            "requires 9.94 MB, current size is 2.05 MB. Workspace growth is not allowed after "
            f"locking. {hostile}\n{hostile}\n"
        )
        for form in ("text", "json", "markdown"):
            assert not TAKEN.search(answer("triage", log, "--format", form))


def no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A trace of three lines, the second of which quotes secrets and is none."""
    source = next(DEMO.glob("*.wst.jsonl")).read_text().splitlines()
    folder = tmp_path / "lk"
    folder.mkdir()
    (folder / "a.wst.jsonl").write_text(f"{source[0]}\n{BROKEN}\n{source[1]}\n")
    (folder / "run.json").write_text('{"run": 7, "x": "api_key=PLANTEDSECRET1"}')
    return folder


@pytest.mark.parametrize("name", ["lk.json", "lk.parquet", "site"])
def test_a_fleet_tells_no_secret_of_a_broken_record(
    name: str,
    broken: Path,
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet") if name == "lk.parquet" else None
    out = tmp_path / name
    write_run(Plan(run="beside"), broken / "t")  # of nothing readable no file is made
    answer("fleet", broken, "-o", out, "--no-cache", "--jobs", 1)
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    if parquet:
        told = parquet.read_schema(out).metadata[b"wstrace.notes"].decode()
        told += str(parquet.read_table(out).to_pydict())
    else:
        told = "".join(path.read_text("utf-8", "replace") for path in files)
    assert "Invalid enum value" in told
    no_secret(told)


def test_the_refusal_of_a_fleet_that_cannot_be_read_tells_none(broken: Path) -> None:
    done = wstrace("fleet", str(broken), "--no-cache", "--jobs", "1")
    assert (done.returncode, "Invalid enum value" in done.stderr) == (2, True)
    no_secret(done.stdout + done.stderr)


def test_a_gathered_manifest_tells_none(
    broken: Path,
    answer: Answer,  # noqa: F811
    tmp_path: Path,
) -> None:
    no_secret(answer("gather", broken, "-o", tmp_path / "all"))
    manifests = list((tmp_path / "all").rglob("gathered.json"))
    assert manifests
    for path in manifests:
        no_secret(path.read_text())


def _formula(path: Path) -> object:
    return parse(f"max_num_seqs * ({path.read_text()})")


READERS: Final[dict[str, tuple[Callable[[Path], Any], str]]] = {
    "trace": (load_run, f"HEADER\n{BROKEN}\nHEADER\n"),
    "run.json": (read_run, '{"run":"r","command":[],"started":{"api_key=PLANTEDSECRET1":1}}'),
    "baseline": (read_baseline, '{"code":"WS102","site":"x","slot":"api_key=PLANTEDSECRET1",'),
    "manifest": (read_manifest, '{"run":"r","version":"api_key=PLANTEDSECRET1"}'),
    "reserve": (load_reserve, "kind: api_key=PLANTEDSECRET1 hf_abcdefghijkl\n"),
    "formula": (_formula, "api_key=PLANTEDSECRET1 hf_abcdefghijkl"),
}


@pytest.mark.parametrize("name", READERS)
def test_an_error_of_a_reader_quotes_no_secret(name: str, tmp_path: Path) -> None:
    reader, text = READERS[name]
    header = next(DEMO.glob("*.wst.jsonl")).read_text().splitlines()[0]
    path = tmp_path / ("a.wst.jsonl" if name == "trace" else "file.json")
    path.write_text(text.replace("HEADER", header))
    with pytest.raises(WstraceError) as raised:
        reader(path)
    no_secret(str(raised.value) + raised.value.message + raised.value.hint)


def test_an_error_is_redacted_where_it_is_made() -> None:
    error = WstraceError("a: Invalid enum value 'hf_abcdefghijkl'", "api_key=PLANTEDSECRET1")
    no_secret(repr(error) + error.message + error.hint)
    assert error.message.startswith("a: Invalid enum value '")
