"""Whatever a line is, reading it in halves says what a plain decoder says of the whole."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tools.fuzz.mutate import KINDS, WORDS, damaged
from wstrace.trace.cleaning import cleaned
from wstrace.trace.records import AnyRecord, Request
from wstrace.trace.shared_parts import UNDECODABLE, SharedParts

SAMPLES = Path(__file__).parents[3] / "sample_traces"
_decode = msgspec.json.Decoder(AnyRecord).decode


def plainly(line: bytes) -> object:
    """The record, or that there is none."""
    try:
        return cleaned(_decode(line))
    except UNDECODABLE:
        return None


def shared(parts: SharedParts, line: bytes) -> object:
    try:
        return parts.record(line)
    except UNDECODABLE:
        return None


def requests(name: str) -> list[bytes]:
    (path, *_) = sorted((SAMPLES / name).glob("*.wst.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    return [line for line in lines if line.startswith(b'{"t":"request"')]


def request(first: str, rest: str, end: str = "}\n") -> bytes:
    return (
        f'{{"t":"request","ns":5,"site":1,"slot":{{}},"bytes":7,"arena":9,"phase":"serving"{first}'
        f',"generation":2{rest},"stack":["a.py:1:f"],"provenance":{{"formula":"n",'
        f'"statements":["a.py:1: n"]}},"manager":3{end}'
    ).encode()


PLAIN = request("", "")
ODD = {
    "a field twice, in both halves": request("", ',"bytes":8'),
    "a later half's field in the first": request(',"manager":4', ""),
    "its list of callers first": request(',"stack":["b.py:2:g"]', ""),
    "its source first": request(',"provenance":null', ""),
    "an unknown field": request("", ',"later":[1,{"stack":["x"]}]'),
    "an unknown field first": request(',"later":{"generation":7}', ""),
    "the cut in a text": request("", r',"layer":"x,\"generation\":4,"'),
    "the cut in a text of the first half": request(r',"later":",\"generation\":4"', ""),
    "the cut in a step": request(',"step":{"index":4,"generation":1}', ""),
    "the cut in an open step": request(',"step":{"index":4', "}"),
    "another kind": request("", "").replace(b'"request"', b'"growth"'),
    "a kind in both halves": request("", ',"t":"growth"'),
    "no kind": PLAIN.replace(b'"t":"request",', b""),
    "the kind in the second half": PLAIN.replace(b'"t":"request",', b"").replace(
        b',"generation"', b',"t":"request","generation"'
    ),
    "an escape in a text": request("", r',"layer":"\u001b[31m\u202e token=hunter2x"'),
    "a surrogate": request("", r',"layer":"\ud800"'),
    "no UTF-8": request("", ',"layer":"#"').replace(b"#", b"\xff"),
    "no UTF-8 in a stack": PLAIN.replace(b"a.py:1:f", b"\xed\xa0\x80"),
    "a number too large": request("", ',"address":18446744073709551616'),
    "words behind it": request("", "", "} {}\n"),
    "a brace too many": request("", "", "}}\n"),
    "cut": request("", "", ""),
    "no newline": request("", "", "}"),
    "blanks": request(" ", " ").replace(b":", b" : "),
    "a phase that is none": PLAIN.replace(b'"serving"', b'"resting"'),
    "no site": PLAIN.replace(b'"site":1,', b""),
    "statements of another list": request("", ',"specs":[],"statements":["x"]'),
    "only an end that was seen": b',"generation":2' + PLAIN[PLAIN.index(b',"stack"') :],
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_line_is_read_as_by_a_plain_decoder(name: str) -> None:
    parts = SharedParts()
    for line in (PLAIN, ODD[name], PLAIN, ODD[name]):
        assert shared(parts, line) == plainly(line)


def test_a_plain_line_is_read_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here would be tried."""
    read: list[bytes] = []
    monkeypatch.setattr("wstrace.trace.shared_parts._decode", read.append)
    parts = SharedParts()
    for line in (PLAIN, *requests("demo-crash"), *requests("h100-vllm-0.21.0-turboquant-grow")):
        assert isinstance(parts.record(line), Request)
    assert read == []


def test_an_end_that_reaches_before_the_cut_is_another_one() -> None:
    """The text of one line's second half may be the end of another line's."""
    parts = SharedParts()
    whole = PLAIN[PLAIN.index(b',"generation"') :]
    nested = PLAIN.replace(b'"manager":3', b'"manager":3' + whole[:-2].replace(b"3", b"4", 1))
    for line in (PLAIN, nested, PLAIN[:-2] + whole, PLAIN):
        assert shared(parts, line) == plainly(line)


@pytest.mark.parametrize("name", ["demo-crash", "h100-vllm-0.21.0-turboquant-grow"])
def test_a_damaged_line_is_read_as_by_a_plain_decoder(name: str) -> None:
    chance = random.Random(name)
    parts, lines = SharedParts(), requests(name)
    read = 0
    for _ in range(300):
        line = chance.choice(lines)
        edit = (chance.choice(KINDS), chance.randrange(len(line)), chance.randrange(40))
        if chance.random() < 0.5:  # where the line is cut, by the words that it is cut at
            edit = (edit[0], line.index(b',"generation":') + chance.randrange(20), edit[2])
        words = (*WORDS, b',"generation":', b',"stack":[', b'"statements":[', b'"bytes":1,')
        changed = damaged(line, [(*edit, chance.choice(words))])
        for text in (line, changed):
            expected = plainly(text)
            assert shared(parts, text) == expected, text
        read += expected is not None
    assert read > 20  # some still are records
