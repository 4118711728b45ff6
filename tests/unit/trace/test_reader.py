"""Reading traces: cut lines, several runs, foreign files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from wstrace.errors import WstraceError
from wstrace.file_names import PACKED, SUFFIX
from wstrace.trace.process_file import read_file
from wstrace.trace.reader import load_trace
from wstrace.trace.records import (
    FORMAT,
    AnyRecord,
    Header,
    Leaf,
    Note,
    Provenance,
    Ranks,
    Record,
    Request,
    Slot,
    WorkerInit,
)

SAMPLES = Path(__file__).parents[3] / "sample_traces"


def encode(*records: Record) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def header(run: str = "run1", wall_ns: int = 1) -> Header:
    return Header(format=FORMAT, run=run, wall_ns=wall_ns, wstrace="0.1.0")


def trace_file(folder: Path, name: str = "a", *records: Record, run: str = "run1") -> Path:
    path = folder / f"{name}.wst.jsonl"
    path.write_bytes(encode(header(run, len(name)), *records))
    return path


def test_cut_at_every_byte_of_the_last_record_keeps_all_before_it(tmp_path: Path) -> None:
    request = Request(site=1, slot=Slot(), bytes=512, arena=0, phase="serving")
    whole = encode(header(), Note(text="kept"), request)
    last = len(encode(request))
    path = tmp_path / "a.wst.jsonl"
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        process = read_file(path)
        assert isinstance(process.records[0], Note)
        assert process.cut == (cut != 1)
        assert len(process.records) == (2 if cut == 1 else 1)


def test_of_several_runs_the_newest_is_read_and_that_is_said(tmp_path: Path) -> None:
    trace_file(tmp_path, "a", Note(text="old"), run="old")
    trace_file(tmp_path, "bb", Note(text="new"), run="new")
    trace = load_trace(tmp_path)
    assert trace.run == "new"
    assert "2 runs" in trace.notes[0]
    assert load_trace(tmp_path, "ol").run == "old"


def test_a_run_is_picked_by_its_whole_id_where_another_begins_with_it(tmp_path: Path) -> None:
    trace_file(tmp_path, "a", run="run-1")
    trace_file(tmp_path, "bb", run="run-12")
    assert load_trace(tmp_path, "run-1").run == "run-1"
    with pytest.raises(WstraceError, match="names 2 runs"):
        load_trace(tmp_path, "run-")


@pytest.mark.parametrize("packed", PACKED)
def test_compressed_records_are_told(packed: str, tmp_path: Path) -> None:
    trace_file(tmp_path, "a")
    other = tmp_path / f"b{SUFFIX}{packed}"
    other.write_bytes(b"\x1f\x8b packed")
    told = f"{other.name} is compressed: what it holds was not read"
    assert load_trace(tmp_path).doubts == [told]
    with pytest.raises(WstraceError, match="compressed") as error:
        load_trace(other)
    assert "Unpack" in error.value.hint
    alone = tmp_path / "alone"
    alone.mkdir()
    other.rename(alone / other.name)
    assert load_trace(alone).doubts == [told]


def test_compressed_records_beside_themselves_lack_nothing(tmp_path: Path) -> None:
    plain = trace_file(tmp_path, "a")
    (tmp_path / f"{plain.name}.gz").write_bytes(b"\x1f\x8b packed")
    assert load_trace(tmp_path).doubts == []


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    trace_file(tmp_path, "a", run="old")
    with pytest.raises(WstraceError, match="names 0 runs") as error:
        load_trace(tmp_path, "xyz")
    assert "old" in error.value.hint


def test_a_record_of_a_later_version_is_counted_not_fatal(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"t":"hologram","ns":1}\n' + encode(Note(text="after", ns=2)))
    process = read_file(path)
    assert process.unknown == 1
    assert len(process.records) == 1


def test_a_later_field_is_ignored(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"t":"note","text":"x","colour":"red"}\n')
    assert read_file(path).records == [Note(text="x")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"hello\n", "not a wstrace trace"),
        (b'{"a": 1}\n', "not a wstrace trace"),
        (b"\xff\xfe\x00\x01\n", "not a wstrace trace"),
        (encode(Note(text="no header")), "not a wstrace trace"),
        (encode(Header(format=99, run="r", wstrace="9.9")), "trace format 99"),
    ],
)
def test_a_file_that_is_no_trace_gets_a_word_and_a_hint(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "x.wst.jsonl"
    path.write_bytes(content)
    with pytest.raises(WstraceError, match=message) as error:
        load_trace(path)
    assert error.value.hint
    assert error.value.exit_code == 2


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"t":"note","text"\n' + encode(Note(text="after")))
    with pytest.raises(WstraceError, match="line 2"):
        read_file(path)


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"lock","event":"lock","slots":[{}],"sizes":[],"phase":"capture"}',
        b'{"t":"capture","slots":[{}],"generations":[1,2]}',
    ],
)
def test_a_record_that_contradicts_itself_is_an_error(tmp_path: Path, line: bytes) -> None:
    path = trace_file(tmp_path)
    with path.open("ab") as file:
        file.write(line + b"\n" + encode(Note(text="after")))
    with pytest.raises(WstraceError, match=r"line 2: .* slots and "):
        read_file(path)


def test_a_missing_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(WstraceError, match="No such trace"):
        load_trace(tmp_path / "nothing")


def test_an_empty_folder_is_a_trace_in_which_nothing_attached(tmp_path: Path) -> None:
    assert load_trace(tmp_path).processes == []


def test_a_file_killed_before_its_header_is_a_doubt_beside_the_others(tmp_path: Path) -> None:
    trace_file(tmp_path, "a")
    (tmp_path / "b.wst.jsonl").write_bytes(b'{"t":"hea')
    trace = load_trace(tmp_path)
    assert len(trace.processes) == 1
    assert trace.doubts == [
        "b.wst.jsonl has no whole record (its process was killed, or the disk was full): "
        "what it did is in no record"
    ]


def test_a_worker_is_found_by_its_record(tmp_path: Path) -> None:
    worker = WorkerInit(ranks=Ranks(tp=1), world=Ranks(tp=2), limits={"block_size": 16})
    process = read_file(trace_file(tmp_path, "a", worker))
    assert process.worker == worker


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*/*.wst.jsonl")), ids=lambda p: p.name)
def test_every_record_is_what_a_plain_decoder_reads(sample: Path) -> None:
    plain = [msgspec.json.decode(x, type=AnyRecord) for x in sample.read_bytes().splitlines()]
    read = read_file(sample).records
    assert read == plain[1:]
    assert [type(record) for record in read] == [type(record) for record in plain[1:]]


def test_equal_parts_of_requests_are_kept_once(tmp_path: Path) -> None:
    made = Provenance(formula="n", leaves=[Leaf("n", "constant", 4)], statements=["a.py:1: n"])
    other = Provenance(formula="n", leaves=[Leaf("n", "constant", 4)], stopped="later")
    requests = [
        Request(
            site=1,
            slot=Slot(),
            bytes=n,
            arena=0,
            phase="serving",
            stack=["a.py:1:f"],
            provenance=p,
        )
        for n, p in ((1, made), (2, made), (3, other))
    ]
    one, two, three = (r for r in read_file(trace_file(tmp_path, "a", *requests)).records)
    assert isinstance(one, Request)
    assert isinstance(two, Request)
    assert isinstance(three, Request)
    assert one.stack is two.stack is three.stack
    assert one.provenance is two.provenance
    assert three.provenance == other
    assert three.provenance.leaves[0] is made_leaf(one)


def made_leaf(request: Request) -> Leaf:
    assert request.provenance is not None
    return request.provenance.leaves[0]


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    path = trace_file(tmp_path, "a", Note(text="one"), Note(text="two"))
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n \n\n"))
    assert [r.text for r in read_file(path).records if isinstance(r, Note)] == ["one", "two"]


@pytest.mark.parametrize("leads_to", ["gone", "b.wst.jsonl", "n" * 300])
def test_a_link_to_nothing_is_an_error_of_two_lines(leads_to: str, tmp_path: Path) -> None:
    trace_file(tmp_path, "a", Note(text="one"))
    (tmp_path / "b.wst.jsonl").symlink_to(tmp_path / leads_to)
    with pytest.raises(WstraceError, match=r"Cannot read .*b\.wst\.jsonl"):
        load_trace(tmp_path)


def test_a_folder_of_files_that_cannot_be_read_says_what_is_there(tmp_path: Path) -> None:
    from tools.fleet.planted import Plan, write_run
    from wstrace.findings.analysed_run import load_run

    for file in write_run(Plan(run="a", ranks=2), tmp_path).files.values():
        file.write_bytes(file.read_bytes()[:30])
    folder = tmp_path / "node0"
    (folder / "run.a.json").rename(folder / "run.json")
    said = load_run(folder).inconclusive
    assert said[0] == "the folder holds 2 trace files, and none can be read"
    assert not any("never attached" in why for why in said)
    assert sum("has no whole record" in why for why in said) == 2


@pytest.mark.parametrize("ranks", [1, 5])
def test_such_a_folder_without_its_end_says_it_in_an_error(ranks: int, tmp_path: Path) -> None:
    from tools.fleet.planted import Plan, write_run

    files = write_run(Plan(run="a", ranks=ranks), tmp_path).files
    for file in files.values():
        file.write_bytes(file.read_bytes()[:30])
    (tmp_path / "node0" / "run.a.json").unlink()
    with pytest.raises(WstraceError) as told:
        load_trace(tmp_path / "node0")
    said = told.value.message
    many = "1 trace file" if ranks == 1 else "5 trace files"
    assert said.startswith(f"Of {many} in {tmp_path / 'node0'} none can be read: ")
    assert said.count("has no whole record") == min(ranks, 3)
    assert said.endswith("; and 2 more.") == (ranks == 5)
    assert min(files.values()).name in said
