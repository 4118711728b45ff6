"""What a deployment loads, and what becomes of it under its flags."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.audit.test_roles_and_matches import layer, request
from wstrace.audit.deployment import deployment
from wstrace.audit.prediction import Predicted, Prediction, needed_by, predict
from wstrace.audit.whole import reading
from wstrace.errors import WstraceError

Package = Callable[..., Path]
FLAGS = "vllm serve m --max-model-len 4096 --max-num-batched-tokens 1024 --max-num-seqs 16"
MODEL = {
    "architectures": ["SmallForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 512,
}
REGISTRY = """
_MODELS = {
    "SmallForCausalLM": ("small", "SmallForCausalLM"),
    "OtherForCausalLM": ("other", "OtherForCausalLM"),
}
"""
SPEC = "((self.max_num_batched_tokens, 64), torch.float32)"
FOLDER = "model_executor/models"


def ask(spec: str, **where: str) -> str:
    text = layer(spec, **where)
    width = "        self.width = width\n"
    more = "        self.max_model_len = scheduler_config.max_model_len\n"
    return text.replace(width, width + more)


@pytest.fixture
def predicted(package: Package, tmp_path: Path) -> Callable[..., Prediction]:
    def made(
        flags: str = FLAGS, model: dict[str, object] | None = None, **files: str
    ) -> Prediction:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(MODEL | (model or {})))
        named = {f"{FOLDER}/{name}": text for name, text in files.items()}
        root = package(**{f"{FOLDER}/registry": REGISTRY}, **named)
        return predict(reading(root, ""), deployment(flags, config))

    return made


def test_the_arena_is_the_largest_reservation_and_who_asks_for_more_escapes(
    predicted: Callable[..., Prediction],
) -> None:
    whole = "((self.max_model_len, 256), torch.float32)"
    found = predicted(
        small=ask(SPEC, profiled=request(SPEC)) + ask(whole).replace("Impl", "Second")
    )
    assert found.least == found.most == 1024 * 64 * 4
    outcomes = {p.site.enclosing: (p.outcome, p.needed.bytes) for p in found.sites}
    assert outcomes["Impl.decode"] == ("fits", 1024 * 64 * 4)
    assert outcomes["Second.decode"] == ("escapes", 4096 * 256 * 4)


def test_a_number_is_read_as_vllm_reads_it(predicted: Callable[..., Prediction]) -> None:
    flags = f"{FLAGS} --max-num-batched-tokens 25.6k"
    assert predicted(flags, small=ask(SPEC, profiled=request(SPEC))).least == 25_600 * 64 * 4


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--max-num-batched-tokens 25.6K", "--max-num-batched-tokens 25.6K is not read"),
        ("--max_num_seqs=-8", "--max_num_seqs -8 is not read"),
        ('--max-num-seqs "$SEQS"', r"--max-num-seqs \$SEQS is not read"),
        ("--max-num-seqs", "--max-num-seqs is not read"),
        ("--kv-cache-dtype", "--kv-cache-dtype is not read"),
        ("-tp two", "-tp two is not read"),
    ],
)
def test_a_flag_that_cannot_be_read_is_named(
    predicted: Callable[..., Prediction], more: str, told: str
) -> None:
    with pytest.raises(WstraceError, match=told):
        predicted(f"{FLAGS} {more}", small="")


@pytest.mark.parametrize("more", ["--max-model-len auto", "--kv-cache-dtype auto -tp=2 -dp2"])
def test_a_flag_may_leave_the_choice_to_vllm(
    predicted: Callable[..., Prediction], more: str
) -> None:
    assert predicted(f"{FLAGS} {more}", small="").sites == ()


def test_a_larger_neighbour_hides_it(predicted: Callable[..., Prediction]) -> None:
    less = "((self.max_model_len, 4), torch.float32)"
    text = ask(SPEC, profiled=request(SPEC)) + ask(less).replace("Impl", "Second")
    found = predicted(small=text)
    (second,) = [p for p in found.sites if p.site.enclosing == "Second.decode"]
    assert (second.outcome, second.needed.bytes) == ("hidden", 4096 * 4 * 4)


def test_code_of_another_model_is_not_loaded(predicted: Callable[..., Prediction]) -> None:
    found = predicted(small="", other=ask(SPEC))
    assert [p.outcome for p in found.sites] == ["not loaded"]
    found = predicted(small="", other=ask(SPEC), model={"architectures": ["OtherForCausalLM"]})
    assert [p.outcome for p in found.sites] == ["escapes"]


def test_what_the_models_module_imports_is_loaded(predicted: Callable[..., Prediction]) -> None:
    imports = f"from vllm.{FOLDER.replace('/', '.')}.other import Impl\n"
    found = predicted(small=imports, other=ask(SPEC))
    assert [p.outcome for p in found.sites] == ["escapes"]


def test_a_condition_on_the_flags_decides(predicted: Callable[..., Prediction]) -> None:
    text = ask(SPEC).replace(
        "        self.decode(query",
        "        if self.dcp_world_size > 1:\n            self.decode(query",
    )
    assert [p.outcome for p in predicted(small=text).sites] == ["not loaded"]
    more = f"{FLAGS} --decode-context-parallel-size 2 --tensor-parallel-size 2"
    assert [p.outcome for p in predicted(more, small=text).sites] == ["escapes"]


def test_a_number_that_is_missing_is_named(predicted: Callable[..., Prediction]) -> None:
    found = predicted("vllm serve m --max-model-len 4096", small=ask(SPEC))
    (only,) = found.sites
    assert (only.outcome, only.needed.needs) == ("unknown", ("max_num_batched_tokens",))
    assert "max_num_batched_tokens" in only.why


BLOCKS = """
class Backend:
    @staticmethod
    def get_supported_kernel_block_sizes():
        return {sizes}
    @staticmethod
    def get_impl_cls():
        return Impl
    @staticmethod
    def get_builder_cls():
        return Impl
"""


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [("[16, 32]", 16), ("[64, MultipleOf(128)]", 64), ("[MultipleOf(8)]", 16), ("ask()", None)],
)
def test_the_block_size_is_the_releases_own_where_nobody_sets_one(
    package: Package, tmp_path: Path, sizes: str, taken: int | None
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL))
    spec = "((self.max_num_batched_tokens, self.block_size), torch.float32)"
    width = "        self.width = width\n"
    block = "        self.block_size = scheduler_config.cache_config.block_size\n"
    text = ask(spec).replace(width, width + block) + BLOCKS.format(sizes=sizes)
    cache = "class CacheConfig:\n    DEFAULT_BLOCK_SIZE: int = 16\n"
    root = package(backend=text, **{"config/cache": cache})

    def only(flags: str) -> Predicted:
        (found,) = predict(reading(root, ""), deployment(flags, config)).sites
        return found

    found = only(FLAGS).needed
    assert found.bytes == (None if taken is None else 1024 * taken * 4)
    assert (f"block_size {taken}, as vLLM sets it for Backend" in found.by) == bool(taken)
    said = only(f"{FLAGS} --block-size 128").needed
    assert said.bytes == 1024 * 128 * 4
    assert "as vLLM sets it" not in said.by


GRAPHS = """
class Impl:
    def __init__(self, scheduler_config):
        self.max_num_seqs = scheduler_config.max_num_seqs
    def forward(self, layer, query, attn_metadata: StepMetadata):
        rows = attn_metadata.num_decode_tokens
        return current_workspace_manager().get_simultaneous(((rows, 64), torch.float32))
"""


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ("", "fits"),
        ('--compilation-config {"cudagraph_mode":"PIECEWISE"}', "escapes"),
        ("--enforce-eager", "escapes"),
        ("--max-cudagraph-capture-size 8", "escapes"),
    ],
)
def test_full_decode_graphs_ask_for_a_step_of_decodes(
    predicted: Callable[..., Prediction], flags: str, outcome: str
) -> None:
    text = "from vllm.meta import StepMetadata\n" + GRAPHS
    found = predicted(f"{FLAGS} {flags}", small=text)
    assert [p.outcome for p in found.sites] == [outcome]


BACKENDS = """
class Backend:
    supported_kv_cache_dtypes: list[str] = ["small_4bit"]
    @staticmethod
    def get_name():
        return "SMALL"
    @staticmethod
    def get_impl_cls():
        return Impl
    @staticmethod
    def get_builder_cls():
        return Impl
"""


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ("", "not loaded"),
        ("--kv-cache-dtype small_4bit", "escapes"),
        ("--attention-backend SMALL", "escapes"),
        ("--attention-backend=OTHER --kv-cache-dtype small_4bit", "not loaded"),
    ],
)
def test_the_caches_dtype_and_the_backends_name_choose_a_backend(
    package: Package, tmp_path: Path, flags: str, outcome: str
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL))
    root = package(backend=ask(SPEC) + BACKENDS)
    found = predict(reading(root, ""), deployment(f"{FLAGS} {flags}", config))
    assert [p.outcome for p in found.sites] == [outcome]


MOE = """
class FusedMoEKernelModularImpl:
    def _allocate_buffers(self, rows):
        return current_workspace_manager().get_simultaneous(((rows, 64), torch.float32))
"""
EXPERTS = {"num_experts": 64, "num_experts_per_tok": 1, "moe_intermediate_size": 256}
WIDE = f"{FLAGS} --data-parallel-size 2 --tensor-parallel-size 2 --enable-expert-parallel"


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ("", 2 * 1024),
        ("--all2all-backend deepep_high_throughput", 2 * 1024),
        ("--all2all-backend flashinfer_all2allv", 4 * 1024),
        ("--all2all-backend mori", None),
        ("--all2all-backend=moonep", None),
    ],
)
def test_rows_of_experts_are_those_of_the_all2all(
    package: Package, tmp_path: Path, more: str, tokens: int | None
) -> None:
    """Of the kinds of experts those whose output alone is asked for need least: a row of 512
    columns of two bytes a token that reaches the rank."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL | EXPERTS))
    root = package(**{"model_executor/layers/fused_moe/modular_kernel": MOE})
    read = reading(root, "")
    (placed,) = read.placed
    needed = needed_by(placed.site, read, deployment(f"{WIDE} {more}", config))
    if tokens is None:
        assert (needed.bytes, needed.needs) == (None, ())
        assert "holds only without DeepEP v2" in needed.by
    else:
        assert needed.least == tokens * 512 * 2
