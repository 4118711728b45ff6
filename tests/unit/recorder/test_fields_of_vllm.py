"""Every field of vLLM's that the recorder reads has a row, and the pinned engine has it.

tests/matrix/test_fields.py asks the same of the releases.
"""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.unit.recorder.fields_of_vllm import FIELDS, LAST, Field
from wstrace.recorder import vllm_state
from wstrace.versions import package_version
from wstrace.vllm.limits import NUMBERS
from wstrace.vllm.number import DP, TP

READERS = {
    file.stem: file
    for file in Path(vllm_state.__path__[0]).glob("*.py")
    if file.stem != "__init__"
}
PYTHON = {
    "__code__", "__dict__", "__getattribute__", "__module__", "__mro__", "__name__",
    "__str__", "append", "basename", "co_filename", "co_name", "co_names", "co_qualname",
    "endswith", "f_back", "f_code", "f_globals", "f_lineno", "f_locals", "get",
    "get_ident", "isdecimal", "items", "join", "modules", "name", "path", "pop",
    "recorder", "removeprefix", "replace", "reset", "rpartition", "rsplit", "self", "sep",
    "set", "split", "rstrip", "startswith", "update", "wstrace", "WorkspaceManager",
}  # fmt: skip
TORCH = {
    "_modules", "cuda", "current_device", "device", "dtype", "get_device_properties",
    "is_initialized", "itemsize", "mem_get_info", "multi_processor_count", "type",
    "torch", "available", "total", "virtual_memory",
}  # fmt: skip
# The recorder's own words: its records, limits and kinds, and what a row of a number has.
OWN = {
    "config_limits": {
        "compress_ratio", "config", "dtype_size", "env", "expert_parallel_size",
        "expert_ranks", "expert_width", "head_size", "kernel_block_size",
        "moe_intermediate_size", "num_attention_heads", "num_experts", "num_kv_heads",
        "num_sms", "plain_numbers", "recorded", "sequence_parallel_size",
    },
    "experts": {"moe_hidden_dim", "moe_intermediate_dim", "moe_max_num_tokens", "modules"},
    "identity": {"caller"},
    "kv_cache": {"cpu", "gpu", "other"},
    "scheduler_output": {
        "computed", "draft", "draft_tokens", "num_reqs", "requests", "scheduled",
        "total_tokens", "_warmup_", "_v2_mixed_warmup",
    },
    "workspace": {"lane", "ubatch"},
}  # fmt: skip


def words_of(file: Path) -> set[str]:
    """Attributes and texts that can name one, of a module's code without its docstrings."""
    tree = ast.parse(file.read_text())
    said = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            dotted = re.fullmatch(r"\w+(\.\w+)*", node.value) and id(node) not in said
            if dotted and not node.value.startswith("vllm."):
                words |= set(node.value.split("."))
    return words


@pytest.mark.parametrize("reader", READERS)
def test_each_name_that_is_read_has_a_row(reader: str) -> None:
    words = words_of(READERS[reader])
    rows = {name for f in FIELDS if f.reader == reader for name in f.names.split()}
    numbers = {DP, TP, *NUMBERS}
    ours = PYTHON | TORCH | OWN.get(reader, set())
    assert words - rows - numbers - ours == set(), "a row in fields_of_vllm.py"
    assert rows - words == set(), "no longer read"
    assert OWN.get(reader, set()) - words == set(), "no longer said"


def test_every_row_has_a_reader() -> None:
    assert {f.reader for f in FIELDS} == set(READERS)


def test_a_renamed_field_is_missed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "class Old:\n    kept: int\n    def __init__(self, given):\n        self.made = given\n"
    )
    row = Field("workspace", "a.py:Old", "kept made")
    assert row.missing(tmp_path) == []
    assert Field("workspace", "a.py:Old.__init__", "given").missing(tmp_path) == []
    (tmp_path / "b.py").write_text("class Old:\n    kept: int\n")
    assert Field("workspace", "b.py:Old", "kept made").missing(tmp_path) == ["made"]
    assert Field("workspace", "c.py:Old", "kept").missing(tmp_path) == ["kept"]


def test_the_pinned_engine_has_every_field_of_today() -> None:
    spec = find_spec("vllm")
    version = str(package_version("vllm"))
    if spec is None or spec.origin is None or not version.startswith("0.32."):
        pytest.skip("needs the pinned engine, vLLM 0.32")
    root = Path(spec.origin).parent
    today = [field for field in FIELDS if field.until == LAST]
    gone = [f"{f.place}: {name}" for f in today for name in f.missing(root)]
    assert gone == []
