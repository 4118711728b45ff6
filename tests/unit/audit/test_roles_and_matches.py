"""What a request is there for, and what was reserved for it: told from what the code does."""

from __future__ import annotations

import pytest

from tests.unit.audit.conftest import Audited
from wstrace.audit.whole import AuditedSite

LAYER = """
class Impl:
    def __init__(self, scheduler_config, width):
        self.max_num_batched_tokens = scheduler_config.max_num_batched_tokens
        self.width = width
        {constructed}

    def forward(self, layer, query, attn_metadata):
        if attn_metadata is None:
            {profiled}
            return
        self.decode(query, attn_metadata)

    def decode(self, query, attn_metadata):
        return current_workspace_manager().get_simultaneous({asked})
"""
MOST = "((self.max_num_batched_tokens, self.width), torch.float32)"
STEP = "((query.shape[0], self.width), torch.float32)"
FIXED = "((4096,), torch.uint8)"


def request(spec: str) -> str:
    return f"current_workspace_manager().get_simultaneous({spec})"


def layer(asked: str, *, constructed: str = "pass", profiled: str = "pass") -> str:
    return LAYER.format(asked=asked, constructed=constructed, profiled=profiled)


def serving(sites: tuple[AuditedSite, ...]) -> AuditedSite:
    (site,) = [s for s in sites if s.role == "serving"]
    return site


@pytest.mark.parametrize("where", ["constructed", "profiled"])
def test_a_reservation_of_the_largest_step_is_full(audited: Audited, where: str) -> None:
    found = audited(layer=layer(MOST, **{where: request(MOST)})).sites
    site = serving(found)
    (reserved,) = [s for s in found if s.role == "reservation"]
    assert site.match == "full"
    assert site.matched_by == (reserved.at,)


def test_a_step_that_follows_its_tokens_has_none(audited: Audited) -> None:
    site = serving(audited(layer=layer("((attn_metadata.n, 8), torch.uint8)")).sites)
    assert site.match == "none"


def test_a_smaller_reservation_is_not_full(audited: Audited) -> None:
    less = MOST.replace("self.width", "self.width // 2")
    site = serving(audited(layer=layer(MOST, constructed=request(less))).sites)
    assert site.match == "partial"
    assert "reserved" in site.reason
    assert "max_num_batched_tokens" in site.example


def test_a_reservation_of_another_shape_was_not_made_for_it(audited: Audited) -> None:
    small = request("((16,), torch.uint8)")
    site = serving(audited(layer=layer(MOST, constructed=small)).sites)
    assert site.match in ("none", "incidental")
    assert site.matched_by == ()


def test_the_order_of_magnitude_alone_decides_nothing(audited: Audited) -> None:
    """One byte less than the largest request is not full."""
    big = request("((4095,), torch.uint8)")
    other = request("((4096 - 257,), torch.uint8)")
    full = serving(audited(layer=layer(FIXED, constructed=big)).sites)
    short = serving(audited(layer=layer(FIXED, constructed=other)).sites)
    assert (full.match, short.match) == ("full", "partial")  # 4095 is rounded up to 4096


GATED = """
class Builder:
    def __init__(self, vllm_config):
        self.scheduler_config = vllm_config.scheduler_config
        self._reserve_workspace(vllm_config)

    def _reserve_workspace(self, vllm_config):
        wanted = (
            self.scheduler_config.enable_chunked_prefill
            and self.scheduler_config.max_num_batched_tokens > 128
        )
        if not wanted:
            return
        current_workspace_manager().get_simultaneous(
            ((vllm_config.model_config.max_model_len, 64), torch.float16)
        )

class Backend:
    @staticmethod
    def get_impl_cls():
        return Impl
    @staticmethod
    def get_builder_cls():
        return Builder

class Impl:
    def __init__(self, vllm_config):
        self.max_model_len = vllm_config.model_config.max_model_len
    def forward(self, layer, query, attn_metadata):
        (k,) = current_workspace_manager().get_simultaneous(
            ((self.max_model_len, 64), torch.float16)
        )
        return k
"""


def test_a_reservation_behind_a_setting_is_partial_with_that_setting(audited: Audited) -> None:
    site = serving(audited(layer=GATED).sites)
    assert site.match == "partial"
    assert "enable_chunked_prefill" in site.condition


def test_the_same_setting_on_the_way_to_the_request_is_no_gap(audited: Audited) -> None:
    asked = "        (k,) = current"
    guard = (
        "        if not (SELF.enable_chunked_prefill and SELF.max_num_batched_tokens > 128):"
    )
    guard = guard.replace("SELF", "self.scheduler_config")
    text = GATED.replace(asked, f"{guard}\n            return None\n{asked}")
    assert serving(audited(layer=text).sites).match == "full"


def test_a_result_that_nobody_takes_is_a_reservation_anywhere(audited: Audited) -> None:
    text = f"""
    class Kernel:
        def _prepare_kernels(self, x, metadata):
            current_workspace_manager().get_simultaneous({FIXED})
    class Layer:
        def forward(self, x, metadata):
            Kernel()._prepare_kernels(x, metadata)
    """
    (site,) = audited(layer=text).sites
    assert site.role == "reservation"


def test_a_reservation_that_skips_a_locked_workspace(audited: Audited) -> None:
    text = f"""
    class Impl:
        def forward(self, layer, query, attn_metadata):
            if not current_workspace_manager().is_locked():
                scratch = current_workspace_manager().get_simultaneous({FIXED})
    """
    (site,) = audited(layer=text).sites
    assert site.role == "reservation"


def test_a_reservation_that_nothing_makes_covers_nothing(audited: Audited) -> None:
    text = f"""
    class Impl:
        def _reserve_unused(self):
            current_workspace_manager().get_simultaneous({FIXED})
        def forward(self, layer, query, attn_metadata):
            return current_workspace_manager().get_simultaneous({FIXED})
    """
    found = audited(layer=text).sites
    assert [s.role for s in found] == ["reservation", "serving"]
    assert "nothing" in found[0].reason
    assert serving(found).match == "none"


def test_a_request_without_metadata_is_made_by_the_profile_run_itself(audited: Audited) -> None:
    text = """
    class Experts:
        def apply(self, hidden_states):
            return current_workspace_manager().get_simultaneous(
                ((hidden_states.shape[0], 64), torch.float16)
            )
    """
    assert serving(audited(layer=text).sites).match == "self"


WARMUP = """
def warmup_kernels(worker):
    worker.execute_model(None)
class VllmConfig:
    def use_v2_model_runner(self):
        return True
"""


def test_fixed_bytes_are_incidental_only_where_real_steps_warm_up(audited: Audited) -> None:
    text = layer(FIXED)
    assert serving(audited(layer=text).sites).match == "none"
    assert serving(audited(layer=text, warmup=WARMUP).sites).match == "incidental"


def test_a_list_of_models_warms_nobody_else_up(audited: Audited) -> None:
    listed = (
        WARMUP
        + """
    def _is_default_v2_model_runner_model(self):
        return any(a in NAMES for a in self.architectures)
"""
    )
    beyond = listed.replace("self.architectures)", "self.architectures) or not self.is_moe")
    text = layer(FIXED)
    assert serving(audited(layer=text, warmup=listed).sites).match == "none"
    assert serving(audited(layer=text, warmup=beyond).sites).match == "incidental"


def test_two_audits_of_one_source_are_the_same(audited: Audited) -> None:
    files = {"layer": GATED, "warmup": WARMUP}
    assert audited(**files) == audited(**files)
