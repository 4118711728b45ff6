"""Folders, archives, several files, and what has no end."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.triage.generator import Failure, log_lines, log_of
from wstrace.errors import WstraceError
from wstrace.file_names import SUFFIX
from wstrace.report.finding_json import triage_json
from wstrace.report.triage import render_text
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.diagnose.what_worked import what_worked
from wstrace.triage.ingest import archives, opening
from wstrace.triage.ingest.thread import Post
from wstrace.triage.report import Report, read


def _log(label: str, required: float = 16.0, version: str = "0.21.0") -> bytes:
    head = f"Initializing a V1 LLM engine (v{version}) with config: model='m', seed=0"
    lines = [head, *Failure(required=required).traceback()]
    return "\n".join(log_lines(lines, label)).encode()


def _read(*paths: Path) -> Report:
    return read([str(path) for path in paths], Given())


def _logs(folder: Path) -> Path:
    for rank in range(4):
        (folder / f"worker{rank}.log").write_bytes(_log(f"Worker_TP{rank} pid={rank + 1}"))
    (folder / "api.log").write_bytes(_log("APIServer pid=9"))
    return folder


def test_a_log_a_worker_is_one_incident(tmp_path: Path) -> None:
    report = _read(_logs(tmp_path))
    (incident,) = report.incidents
    assert sorted(rank.tp or 0 for rank in incident.ranks) == [0, 1, 2, 3]
    assert len(report.findings) == 5
    assert "1 finding" in render_text(report)


def test_crashes_of_several_servers_are_incidents_of_their_own(tmp_path: Path) -> None:
    for day in range(3):
        (tmp_path / f"day{day}.log").write_bytes(_log("EngineCore pid=1", 16.0 + day))
    (tmp_path / "other.log").write_bytes(_log("EngineCore pid=1", version="0.22.1"))
    (tmp_path / "same.log").write_bytes(_log("APIServer pid=1"))
    report = _read(tmp_path)
    assert len(report.incidents) == 4
    assert len(triage_json(report)["incidents"]) == len(report.incidents)


def _packed(folder: Path, kind: str) -> Path:
    target = folder.parent / f"logs.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(target, "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"logs/{path.name}")
        return target
    mode = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[kind]
    with tarfile.open(target, mode) as tape:  # type: ignore[call-overload]
        tape.add(folder, "logs")
    return target


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_an_archive_is_read_as_its_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    archive = _packed(_logs(folder), kind)
    inside = tmp_path / "inside"
    inside.mkdir()
    archive.rename(inside / archive.name)
    for path in (inside / archive.name, inside):
        report = _read(path)
        (incident,) = report.incidents
        assert len(incident.ranks) == 4
        assert log_of(incident).part.startswith("logs/")
        assert log_of(incident).path == str(inside / archive.name)
        assert render_text(report).startswith(f"{archive.name}: 1 finding\n")


def test_no_member_is_ever_written(tmp_path: Path) -> None:
    target = tmp_path / "evil.tar"
    with tarfile.open(target, "w") as tape:
        for name in ("../../evil.log", "/tmp/evil.log"):
            info = tarfile.TarInfo(name)
            data = _log("EngineCore pid=1")
            info.size = len(data)
            tape.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tape.addfile(link)
    before = {*tmp_path.parent.rglob("*")}
    report = _read(target)
    assert len(report.findings) == 2
    assert {*tmp_path.parent.rglob("*")} == before


def test_an_archive_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "BYTES", 3 << 20)
    target = tmp_path / "bomb.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", _log("EngineCore pid=1"))
        archive.writestr("b.log", b" " * (8 << 20))
        archive.writestr("c.log", _log("EngineCore pid=1"))
    report = _read(target)
    assert len(report.findings) == 1
    assert any("3.00 MiB unpacked" in note for note in report.notes)


def test_a_name_without_end_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "bomb.tar"
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tape:
        tape.addfile(tarfile.TarInfo("a" * (2 << 20)))
    with pytest.raises(WstraceError, match="a header of 2,097,153 bytes"):
        _read(target)


@pytest.mark.parametrize("cut", [200, 700])
def test_a_damaged_archive_is_two_lines(tmp_path: Path, cut: int) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    archive = _packed(_logs(folder), "tar.gz")
    data = archive.read_bytes()
    archive.write_bytes(data[: len(data) - cut])
    with pytest.raises(WstraceError, match="archive") as refused:
        _read(archive)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "tar.xz", "tar.bz2"])
def test_damage_anywhere_is_no_traceback(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    archive = _packed(_logs(folder), kind)
    whole = archive.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        archive.write_bytes(whole[:at] + b"\xff\x00\x7f" + whole[at + 3 :])
        with suppress(WstraceError):
            assert _read(archive).findings


def test_what_is_no_text_is_left_out_and_said(tmp_path: Path) -> None:
    _logs(tmp_path)
    (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(range(256)) * 20)
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(_log("EngineCore pid=1", 99.0))
    report = _read(tmp_path)
    assert len(report.incidents) == 1
    assert f"{tmp_path / 'core'} is a binary file, not a log: left out" in report.notes
    assert len([note for note in report.notes if "binary" in note or "empty" in note]) == 2


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_trace_folder_is_for_report(packed: str, tmp_path: Path) -> None:
    (tmp_path / "worker.wstrace.jsonl").write_text("{}")
    (tmp_path / f"worker{SUFFIX}{packed}").write_text("{}")
    with pytest.raises(WstraceError, match="trace folder"):
        _read(tmp_path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_a_device_is_refused(path: str) -> None:
    with pytest.raises(WstraceError, match="is a device, not a file") as refused:
        _read(Path(path))
    assert "wstrace triage -" in str(refused.value.hint)


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(WstraceError, match="is a FIFO, not a file"):
        _read(path)
    _logs(tmp_path)
    assert any("fifo is no regular file" in note for note in _read(tmp_path).notes)


def test_a_shells_substitution_is_read() -> None:
    """`wstrace triage <(COMMAND)` gives /dev/fd/N."""
    out, into = os.pipe()
    writer = threading.Thread(
        target=lambda: (os.write(into, _log("EngineCore pid=1")), os.close(into))
    )
    writer.start()
    report = _read(Path(f"/dev/fd/{out}"))
    writer.join()
    os.close(out)
    assert len(report.findings) == 1


def test_zeros_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "NOTHING", 1 << 20)
    refused = pytest.raises(WstraceError, match="nothing but zero bytes")
    with Path("/dev/zero").open("rb") as stream, refused:
        list(opening.blocks(stream, "-"))


def test_a_file_that_grows_ends(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(_log("EngineCore pid=1"))
    with opening.opened(str(path)) as stream:
        blocks = opening.blocks(stream, str(path), 100)
        for seen, _ in enumerate(blocks):
            with path.open("ab") as more:
                more.write(b"another line of the server\n" * 50)
            assert seen < 200


BODY = f"vLLM 0.21.0\n\n```\nvllm serve m --max-model-len 32768\n```\n\n{Failure().message}"
COMMENTS = (
    ("Same here: " + Failure(required=12.0).message, "https://x.test/1"),
    ("Did you try --max-num-seqs 8? It did not help me.", ""),
    ("Running with `--enforce-eager` works for us.", "https://x.test/3"),
    ("> works for us\n\nThanks! I still get it on 0.22.1.", ""),
)


def _thread(path: Path, form: str) -> Path:
    if form in ("json", "pretty"):
        comments = [{"body": body, "url": url} for body, url in COMMENTS]
        record = {"title": "Engine dies", "body": BODY, "comments": comments}
        pretty = form == "pretty"
        path.write_text(json.dumps(record, indent=2 if pretty else None, sort_keys=pretty))
        return path
    head = {
        "gh": "author:\tb\nassociation:\tnone\nedited:\tfalse\nstatus:\tnone\n--\n",
        "names": "\n**user-{n}** commented on May {n}\n",
        "headings": "\n## Comment {n}\n",
    }[form]
    text = f"# Engine dies\n\n{BODY}\n"
    if form == "gh":
        text = f"title:\tEngine dies\nstate:\tOPEN\nauthor:\ta\nnumber:\t7\n--\n{BODY}\n"
    for number, (body, _) in enumerate(COMMENTS, 1):
        text += f"{head.format(n=number)}\n{body}\n"
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", ["json", "pretty", "gh", "names", "headings"])
def test_a_thread_is_one_finding_and_what_worked(tmp_path: Path, form: str) -> None:
    report = _read(_thread(tmp_path / "issue.md", form))
    (finding,) = report.findings
    log = log_of(finding)
    assert (log.required_text, log.version, log.part) == ("16.00 MB", "0.21.0", "")
    assert log.times == 2
    assert report.config["max_model_len"] == 32768
    assert "enforce_eager" not in report.config
    (worked,) = report.worked
    assert (worked.part, worked.settings) == ("comment 3", ("--enforce-eager",))
    assert worked.url == ("https://x.test/3" if form in ("json", "pretty") else "")
    assert "comment 3" in render_text(report)
    assert triage_json(report)["worked"][0]["settings"] == ("--enforce-eager",)


def test_a_failure_in_a_comment_has_the_issues_version(tmp_path: Path) -> None:
    path = tmp_path / "issue.json"
    path.write_text(
        json.dumps(
            {
                "title": "It dies",
                "body": "vLLM 0.21.0, `vllm serve m --max-model-len 4096`. Log below.",
                "comments": [{"body": "The log:\n" + "\n".join(Failure().traceback())}],
            }
        )
    )
    (finding,) = _read(path).findings
    log = log_of(finding)
    assert (log.part, log.version) == ("comment 1", "0.21.0")
    assert log.numbers["max_model_len"] == 4096


def test_another_site_in_a_thread_is_a_note(tmp_path: Path) -> None:
    other = Failure("mla.py", 7, "forward", 3.0, 1.0)
    path = tmp_path / "issue.json"
    thread = {"title": "a", "body": Failure().message, "comments": [{"body": other.message}]}
    path.write_text(json.dumps(thread))
    report = _read(path)
    assert len(report.findings) == 1
    assert any("comment 1 shows" in note and "mla.py:forward" in note for note in report.notes)


@pytest.mark.parametrize(
    "said",
    [
        "Upgrading to 0.24.0 fixed it for me.",
        "Solved by max_num_seqs=8",
        "VLLM_USE_V2_MODEL_RUNNER=0 works.",
        "No longer crashes with #44053 applied.",
        "--enforce-eager did not help, but --max-num-batched-tokens 4096 did the trick.",
    ],
)
def test_what_worked_in_other_words(tmp_path: Path, said: str) -> None:
    path = tmp_path / "issue.json"
    thread = {"title": "a", "body": Failure().message, "comments": [{"body": said}]}
    path.write_text(json.dumps(thread))
    (worked,) = _read(path).worked
    assert worked.settings
    assert "--enforce-eager" not in worked.settings


@pytest.mark.parametrize(
    "said",
    [
        "--enforce-eager did not work.",
        "Maybe --enforce-eager helps?",
        "It works, but still crashes with --max-num-seqs 8",
        "Any news?",
    ],
)
def test_what_did_not_work(tmp_path: Path, said: str) -> None:
    path = tmp_path / "issue.json"
    thread = {"title": "a", "body": Failure().message, "comments": [{"body": said}]}
    path.write_text(json.dumps(thread))
    assert _read(path).worked == ()


def test_a_log_of_json_lines_is_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl"
    lines = [json.dumps({"body": line, "level": "error"}) for line in Failure().traceback()]
    path.write_text("\n".join(lines))
    (finding,) = _read(path).findings
    assert log_of(finding).part == ""


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("It works with --max-num-seqs 8 but I don't know why", ("--max-num-seqs 8",)),
        ("It works with --max-num-seqs 8, but it still crashes after an hour", None),
        ("Switching to --attention-backend FLASHINFER fixed the crash",
         ("--attention-backend FLASHINFER",)),
        ("solved: use --kv-cache-dtype auto", ("--kv-cache-dtype auto",)),
        ("--enforce-eager prevents the error for me", ("--enforce-eager",)),
        ("Same here. Works until a long prompt arrives.", None),
        ("--max-num-seqs 8 did nothing for me", None),
    ],
)  # fmt: skip
def test_how_it_went_in_the_last_word(said: str, settings: tuple[str, ...] | None) -> None:
    worked = what_worked([Post("", "It dies"), Post("comment 1", said)])
    assert (worked.settings if worked else None) == settings
