"""The testbed on a real `vllm serve`; its crash is in test_main_job.py."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from wstrace.testbed.engine import plugin_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstrace.testbed.engine import Server

pytestmark = pytest.mark.engine

THIRD_PARTY = '''
import os

class Counter:
    """Writes a line a forward pass: which layer's object, profile run or not."""

    def __init__(self, impl, vllm_config):
        self.number = id(self)

    def forward(self, query, attn_metadata):
        kind = "profile" if attn_metadata is None else str(attn_metadata.num_actual_tokens)
        with open(os.environ["COUNTER_FILE"], "a") as lines:
            lines.write(f"{self.number} {kind}\\n")
'''


def test_a_layer_that_reserves_its_worst_case_survives(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Also: attention runs in Python, once a layer and step, though the model is compiled."""
    (tmp_path / "third_party.py").write_text(THIRD_PARTY)
    counted = tmp_path / "counted"
    env = {"PYTHONPATH": plugin_path(tmp_path), "COUNTER_FILE": str(counted)}
    server = serve("clean,third_party:Counter", env=env)
    counted.write_text("")

    assert server.complete(400).status == 200
    assert server.complete(2044).status == 200  # max_model_len 2048 with the 4 answers

    assert "Workspace is locked" not in server.log.read_text()
    assert server.exit_code is None
    lines = Counter(line.split()[0] for line in counted.read_text().splitlines())
    steps = (2 + 3) + (8 + 3)  # chunks of 256 tokens, then one step for each further token
    assert list(lines.values()) == [steps] * 4
