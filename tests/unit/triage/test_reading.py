"""Input that is no log, or an odd one: a clear word, and bounded work."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.triage.generator import Failure, expected, facts, log_lines, log_of, read
from wstrace.errors import WstraceError
from wstrace.triage import report
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.extract import collect
from wstrace.triage.ingest import archives, opening
from wstrace.triage.ingest.prefilter import Prefilter

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = "\n".join(log_lines(Failure().traceback(), "Worker_TP1 pid=5")).encode()


def _refused(path: Path) -> WstraceError:
    with pytest.raises(WstraceError) as refused:
        report.read([str(path)], Given())
    assert refused.value.exit_code == 2
    assert refused.value.hint
    return refused.value


@pytest.mark.parametrize(
    ("name", "data", "word"),
    [
        ("empty.log", b"", "is empty"),
        ("blank.log", b" \n\n\r\n", "is empty"),
        ("zeros.log", bytes(5000), "is empty"),
        ("cut.gz", gzip.compress(LOG)[:-9], "cannot be read as an archive"),
        ("log.zst", b"\x28\xb5\x2f\xfd" + LOG, "zstd"),
        ("log.zip", b"PK\x03\x04" + LOG, "zip"),
        ("log.png", b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(9000), "binary"),
        ("core", b"\x7fELF" + random.Random(2).randbytes(9000), "binary"),
    ],
)
def test_not_a_log(tmp_path: Path, name: str, data: bytes, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert word in _refused(path).message


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("inside", [True, False])
def test_a_compressed_log(tmp_path: Path, pack: Callable[[bytes], bytes], inside: bool) -> None:
    """Rotated logs are compressed: alone and in a folder they are read as they are."""
    path = tmp_path / "server.log.1.packed"
    path.write_bytes(pack(LOG))
    (finding,) = report.read([str(tmp_path if inside else path)], Given()).findings
    assert finding.function == Failure().function


def test_a_compressed_log_of_more_than_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "BYTES", 1 << 20)
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(LOG + bytes(1 << 22)))
    told = report.read([str(path)], Given())
    assert len(told.findings) == 1
    assert told.notes == ("server.log.gz holds more than 1.00 MiB: the rest is left",)


def test_missing_and_directory(tmp_path: Path) -> None:
    assert "does not exist" in _refused(tmp_path / "none").message
    assert "directory" in _refused(tmp_path).message


def test_nothing_is_read_when_one_path_is_wrong(tmp_path: Path) -> None:
    good = tmp_path / "good.log"
    good.write_bytes(LOG)
    with pytest.raises(WstraceError):
        report.read([str(good), str(tmp_path / "none")], Given())


def test_invalid_utf8_is_read_and_said() -> None:
    found = read(b"caf\xe9 \xff\xfe\n" + LOG)
    assert facts(found) == {expected(Failure())}
    assert any("not UTF-8" in note for note in found.notes)


def test_holes_of_a_rotated_log() -> None:
    assert facts(read(bytes(3000) + LOG)) == {expected(Failure())}


def test_other_encodings_of_prose_around_it() -> None:
    assert facts(read("显存不足，引擎崩溃\n".encode("gbk") * 20 + LOG)) == {expected(Failure())}


@pytest.mark.parametrize("filler", [b"x", b" ", b"\\", b"'", b"a.py:", b"{", b"- ", b"&#"])
def test_one_enormous_line_is_bounded(filler: bytes) -> None:
    """Quadratic work on 2 MB would run into the test's time limit."""
    line = filler * (1_000_000 // len(filler))
    found = read(line + b" " + Failure().message.encode() + b" " + line)
    assert (expected(Failure()) in facts(found)) or filler in (b"'", b"\\")


@pytest.mark.parametrize("size", [200, 777, 4096])
def test_any_block_size_gives_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = b"(APIServer pid=1) INFO 05-05 14:00:00 [loggers.py:1] Running: 0 reqs\n"
    text = noise * 40 + LOG + b"\n" + noise * 40
    whole = read(text).findings
    monkeypatch.setattr(opening.blocks, "__defaults__", (size,))
    cut = read(text).findings
    assert cut == whole


def test_line_numbers_survive_skipped_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.blocks, "__defaults__", (5000,))
    noise = b"(APIServer pid=1) INFO 05-05 14:00:00 [loggers.py:1] Running: 0 reqs\n"
    (finding,) = read(noise * 2000 + LOG + noise * 2000).findings
    assert log_of(finding).at == 2009


def test_repeated_failures_are_read_once_and_new_ones_still_found() -> None:
    block = LOG + b"\n"
    later = "\n".join(log_lines(Failure(required=99.0).traceback(), "Worker_TP1 pid=5"))
    stream = BytesIO(block * 400 + later.encode())
    prefilter = Prefilter(budget=20_000)
    kept = list(prefilter.kept(opening.blocks(stream, "x", 10_000)))
    assert prefilter.repeated > 20
    assert any(b"99.00 MB" in kept_block.data for kept_block, _ in kept)


def test_a_restart_is_nothing_new_past_some() -> None:
    """A crash loop: each restart has a pid of its own, and the same to say."""
    loop = (
        "\n".join(log_lines(Failure().traceback(), f"EngineCore pid={pid}"))
        for pid in range(4000)
    )
    stream = BytesIO("\n".join(loop).encode())
    prefilter = Prefilter(budget=0)
    kept = [block for block, _ in prefilter.kept(opening.blocks(stream, "x", 10_000))]
    assert prefilter.repeated > 10 * len(kept)


def test_many_different_failures_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST", 40)
    lines = (Failure(line=n, required=n + 2.0).message for n in range(60))
    found = read("\n\n".join(lines))
    assert len(found.findings) == 40
    assert any("40 different" in note for note in found.notes)
