"""The real WorkspaceManager of each version: growth, slots, lock, errors, grow, reserve.

All on CPU tensors. The capturing flag is set by the test.
"""

from __future__ import annotations

import pytest

from tests.matrix.runs import Run
from wstrace.trace.records import (
    Failure,
    Growth,
    Hook,
    Lock,
    Manager,
    Persistent,
    Request,
    Slot,
)

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
MIB = 1 << 20
FIRST_WITH = {
    "unlock": (0, 18),
    "get_persistent_resource": (0, 31),
}


@shows("hooks: all set, and taken off again")
def test_every_hook_that_this_version_has_is_set(run: Run) -> None:
    facts = run.facts("hooks")
    assert set(facts["states"].values()) == {""}
    for name, since in FIRST_WITH.items():
        assert (f"WorkspaceManager.{name}" in facts["states"]) == (run.version >= since)
    assert facts["restored"]
    for hook in run.records("hooks", Hook):
        assert hook.set, hook


@shows("event: growth, with bytes, addresses and generations")
def test_growths_carry_the_arenas_own_numbers(run: Run) -> None:
    seen = run.facts("two_growths")["seen"]
    first, second = run.records("two_growths", Growth)[:2]
    assert (first.before, first.after, first.generation) == (0, MIB, 1)
    assert (second.before, second.after, second.generation) == (MIB, 3 * MIB, 2)
    assert [first.address, second.address] == [seen[0][1], seen[1][1]]
    assert second.old_address == first.address
    assert seen[2] == seen[1]


@shows("event: request, with shapes, arena and generation")
def test_a_request_that_fits_is_recorded_and_grows_nothing(run: Run) -> None:
    asked = [a for a in run.records("two_growths", Request) if a.phase == "profile"]
    assert [(a.bytes, a.arena, a.generation) for a in asked] == [
        (MIB, 0, 1),
        (3 * MIB, MIB, 2),
        (2 * MIB, 3 * MIB, 2),
    ]
    assert asked[0].specs[0].shape == [MIB]
    assert asked[0].specs[0].dtype == "uint8"


@shows("growth resizes every ubatch", until="0.18.1")
def test_up_to_0_18_1_a_growth_resizes_every_ubatch(run: Run) -> None:
    assert run.facts("ubatches")["sizes"] == [MIB, MIB]
    grown = run.records("ubatches", Growth)
    assert [(g.slot, g.after) for g in grown] == [(Slot(0, 0), MIB), (Slot(1, 0), MIB)]


@shows("growth resizes the slot that asked", since="0.20")
def test_from_0_20_a_growth_resizes_its_own_slot(run: Run) -> None:
    assert run.facts("ubatches")["sizes"] == [0, MIB]
    assert [(g.slot, g.after) for g in run.records("ubatches", Growth)] == [(Slot(1, 0), MIB)]


@shows("lanes", since="0.28")
def test_a_lane_is_a_slot_of_its_own(run: Run) -> None:
    facts = run.facts("lanes")
    assert facts["supported"]
    assert facts["sizes"] == [MIB, 0]
    (lock,) = run.records("lanes", Lock)
    assert dict(zip(lock.slots, lock.sizes, strict=True)) == {Slot(0, 0): MIB, Slot(0, 1): 0}
    assert run.records("lanes", Failure)[0].slot == Slot(0, 1)


@shows("event: lock, with the arenas' sizes")
def test_the_lock_is_recorded_with_sizes(run: Run) -> None:
    (lock,) = run.records("escapes", Lock)
    assert (lock.event, lock.slots, lock.sizes) == ("lock", [Slot()], [MIB])
    assert lock.phase == "capture"


@shows("event: unlock and relock", since="0.18")
def test_unlock_and_relock_are_recorded(run: Run) -> None:
    locks = run.records("relock", Lock)
    assert [lock.event for lock in locks] == ["lock", "unlock", "lock", "lock"]
    assert locks[0].sizes == [MIB]
    assert locks[-1].sizes == [4 * MIB]


@shows("event: manager made and reset")
def test_a_reset_manager_is_recorded(run: Run) -> None:
    assert run.facts("life")["manager_gone"]
    assert [m.event for m in run.records("life", Manager)] == ["init", "reset"]


@shows("vLLM's error text is unchanged")
def test_the_error_is_the_same_to_the_byte_with_and_without_the_recorder(run: Run) -> None:
    facts = run.facts("error_text")
    plain, wrapped = facts["texts"]
    assert f"'harness.py:{facts['line']}:ask'" in plain
    assert wrapped == plain


@shows("grow: a larger arena, the captured one kept alive")
def test_grow_keeps_the_captured_generation(run: Run) -> None:
    facts = run.facts("grow")
    every = run.version < (0, 20)
    assert facts["before"] == [MIB, MIB]
    assert facts["after"] == [2 * MIB, 2 * MIB if every else MIB]
    assert facts["moved"]
    assert facts["kept"] == (2 * MIB if every else MIB)  # all that was there at the capture
    forced = [g for g in run.records("grow", Growth) if g.forced]
    assert [g.after for g in forced] == [2 * MIB] * (2 if every else 1)
    assert not [f for f in run.analysed("grow").findings if f.code == "WS301"]


@shows("grow: no memory leaves vLLM's own error and the old arena")
def test_grow_without_memory_changes_nothing(run: Run) -> None:
    facts = run.facts("grow")
    assert facts["text"].startswith("Workspace is locked but allocation from 'harness.py:")
    assert "requires 8.00 MB, current size is 2.00 MB" in facts["text"]
    assert facts["left"] == facts["after"]


@shows("persistent resources: WS105, and grow makes them", since="0.31")
def test_a_missing_persistent_resource_is_an_escape(run: Run) -> None:
    facts = run.facts("persistent")
    assert facts["texts"]["wrapped"] == facts["texts"]["plain"] != ""
    assert facts["grown"] == [4]
    for folder, survived in (("persistent/raise", False), ("persistent/grow", True)):
        session = run.load(folder)
        (finding,) = [f for f in session.findings if f.code == "WS105"]
        assert (finding.file, finding.function) == (
            "tests/matrix/scenes_manager.py",
            "persistent.<locals>.resource",
        )
        (failure,) = session.workers[0].failures
        assert (failure.kind, failure.survived) == ("persistent", survived)
        assert isinstance(session.workers[0].persistent[0], Persistent)


@shows("MoEPermuteScratch: WS106, and grow lets it grow", since="0.32")
def test_a_layers_own_scratch_is_an_escape(run: Run) -> None:
    facts = run.facts("scratch")
    assert facts["texts"]["wrapped"] == facts["texts"]["plain"] != ""
    assert facts["grown"] == 32
    assert facts["locked"]
    for folder, survived in (("scratch/raise", False), ("scratch/grow", True)):
        session = run.load(folder)
        assert "WS106" in [f.code for f in session.findings]
        (failure,) = session.workers[0].failures
        assert (failure.key, failure.survived) == ("MoEPermuteScratch rows 8 -> 32", survived)


@shows("reserve: in every slot, before profiling")
def test_a_reserve_is_there_when_profiling_starts(run: Run) -> None:
    facts = run.facts("reserve")
    slots = 4 if run.version >= (0, 28) else 2
    assert facts["at_profile"] == [5 * MIB] * slots
    assert facts["ubatch_threads"] == 0
    grown = [g for g in run.records("reserve", Growth) if g.reserve]
    assert {g.phase for g in grown} == {"profile"}
    assert {g.window for g in grown} == {"counted"}
    assert sum(g.after for g in grown) == slots * 5 * MIB
