"""Scenario g: the patch that removes a reservation, and the size that its claims expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.gpu.deepseek_v4 import LENGTH, LONG, gather_bytes
from tools.gpu.unreserved import reservation_in, without_reservation
from wstrace.errors import WstraceError

FILE = "vllm/attention.py"
# The shape of vLLM's code, not its text: a warm-up branch that asks and returns.
SOURCE = """\
class Impl:
    def forward(self, q, metadata):
        if metadata is None:
            rows = self.rows
            manager().get_simultaneous(
                ((4, rows), dtype),
            )
            return
        kv = manager().get_simultaneous(((4, self.rows), dtype))[0]
        return kv
"""


def engine(folder: Path, source: str = SOURCE) -> Path:
    target = folder / "engine" / FILE
    target.parent.mkdir(parents=True)
    target.write_text(source)
    (folder / "site").mkdir()
    return folder


def test_the_reservation_goes_and_the_serving_request_stays(tmp_path: Path) -> None:
    root = engine(tmp_path / "as-released")
    removed = without_reservation(root, tmp_path / "bare", FILE, "forward")
    assert (removed.first, removed.last) == (5, 7)
    text = (tmp_path / "bare" / "engine" / FILE).read_text()
    assert text.count("get_simultaneous") == 1
    compile(text, FILE, "exec")
    assert (root / "engine" / FILE).read_text() == SOURCE


@pytest.mark.parametrize(
    "source",
    [
        "def forward(self): pass\n",
        SOURCE.replace("            return\n        kv", "        kv"),
        SOURCE.replace("def forward", "def another"),
        SOURCE + SOURCE,
    ],
    ids=["no request", "no branch that returns", "another function", "two of them"],
)
def test_another_engine_is_refused(tmp_path: Path, source: str) -> None:
    root = engine(tmp_path / "as-released", source)
    assert reservation_in(source, "forward") is None
    with pytest.raises(WstraceError, match="no single reservation"):
        without_reservation(root, tmp_path / "bare", FILE, "forward")


def test_the_gather_buffer_of_the_field_run() -> None:
    """24.50 MiB was vLLM's own number on an H200; 72.5 by hand for four times the length:
    4 * (65536 / 4 + 128 + 2048) * 512 * 2."""
    assert gather_bytes(LENGTH) == 25_690_112
    assert gather_bytes(LONG) == 4 * (16384 + 128 + 2048) * 512 * 2
