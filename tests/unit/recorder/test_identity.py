"""Which classes asked, and the sizes that layers keep: read from live objects."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.vllm_state.config_limits import limits_now, read_limits
from wstrace.recorder.vllm_state.experts import expert_limits
from wstrace.recorder.vllm_state.identity import classes_of, names_of


class Modular:
    pass


class FlashInferExperts(Modular):
    num_dispatchers = 16


class TritonExperts(Modular):
    def workspace_shapes(self) -> tuple[int, int]:
        return (2, 1)


class Renamed(TritonExperts):
    pass


class Wider(TritonExperts):
    def workspace_shapes(self) -> tuple[int, int]:
        return (4, 1)


class DeepEPPrepare:
    pass


class Kernel:
    def __init__(self) -> None:
        self.fused_experts = FlashInferExperts()
        self.prepare_finalize = DeepEPPrepare()

    def _allocate_buffers(self) -> dict[str, list[str]]:
        return classes_of(sys._getframe())

    @property
    def quant_method(self) -> Any:
        raise AssertionError("no property may run")


def test_a_request_names_its_experts_and_their_bases() -> None:
    assert Kernel()._allocate_buffers() == {
        "caller": ["Kernel"],
        "fused_experts": ["FlashInferExperts", "Modular"],
        "prepare_finalize": ["DeepEPPrepare"],
    }


def test_experts_that_say_other_shapes_are_not_their_base() -> None:
    """A rule for TritonExperts holds for a class that only renames it, not for one with shapes
    of its own."""
    assert names_of(Renamed()) == ["Renamed", "TritonExperts"]
    assert names_of(Wider()) == ["Wider"]


def test_a_function_has_no_classes() -> None:
    assert classes_of(sys._getframe()) == {}


class Layer:
    def __init__(self, hidden: int, width: int) -> None:
        self.moe_config = SimpleNamespace(
            hidden_dim=hidden,
            intermediate_size_per_partition=width,
            num_local_experts=8,
            max_num_tokens=256,
        )
        impl = SimpleNamespace(fused_experts=FlashInferExperts())
        self.quant_method = SimpleNamespace(moe_kernel=SimpleNamespace(impl=impl))


class Dense:
    pass


def worker(*layers: Any) -> Any:
    model = SimpleNamespace(modules=lambda: iter(layers))
    config = SimpleNamespace(model_config=SimpleNamespace(), parallel_config=SimpleNamespace())
    return SimpleNamespace(
        model_runner=SimpleNamespace(model=model, max_encoder_len=1500), vllm_config=config
    )


def test_the_largest_padded_size_of_any_layer_counts() -> None:
    assert expert_limits(worker(Dense(), Layer(3072, 1472), Layer(2880, 2944))) == {
        "moe_hidden_dim": 3072,
        "moe_intermediate_dim": 2944,
        "num_local_experts": 8,
        "moe_max_num_tokens": 256,
        "num_dispatchers": 16,
    }


def test_a_model_without_experts_has_no_such_limit() -> None:
    assert expert_limits(worker(Dense())) == {}
    assert expert_limits(SimpleNamespace()) == {}


def test_limits_of_config_runner_and_layers_come_together() -> None:
    limits = limits_now(worker(Layer(3072, 2944)))
    assert (limits["moe_hidden_dim"], limits["max_encoder_len"]) == (3072, 1500)


@pytest.mark.parametrize(("splits", "ranks"), [(True, 8), (False, 1)])
def test_vllm_says_itself_whether_tp_ranks_split_a_step(splits: bool, ranks: int) -> None:
    parallel = SimpleNamespace(use_sequence_parallel_moe=splits, tensor_parallel_size=8)
    config = SimpleNamespace(model_config=SimpleNamespace(), parallel_config=parallel)
    assert read_limits(config)["sequence_parallel_size"] == ranks
