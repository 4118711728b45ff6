"""Where in its life the engine was, from the lines that it logs as it goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract.facts import Stage, origin_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.trace.records import Phase
    from wstrace.triage.ingest.squeeze import Squeezed

# Read in vLLM 0.32.0: what each line ends, or begins. The last two are uvicorn's.
_LINES: Final[tuple[tuple[Phase, re.Pattern[str]], ...]] = (
    # matches: 'Startingtoloadmodelexample/m...'
    ("load", re.compile(r"Startingtoloadmodel|Loadingmodelfromscratch")),
    # matches: 'Modelloadingtook16.5GiBmemory'
    ("profile", re.compile(r"Modelloadingtook[\d.]")),
    # matches: 'AvailableKVcachememory:38.58GiB'
    ("kv-init", re.compile(r"AvailableKVcachememory:")),
    # matches: 'CapturingCUDAgraphs(decode,FULL):'
    ("capture", re.compile(r"CapturingCUDAgraphs")),
    # matches: 'initengine(profile,createkvcache,warmupmodel)took12.3'
    ("serving", re.compile(r"initengine\(profile,createkvcache,warmupmodel\)took")),
    # matches: 'Applicationstartupcomplete.'
    ("serving", re.compile(r"Applicationstartupcomplete|Uvicornrunningon")),
)
# vLLM 0.13.0 to 0.33.0: the end of capture_model, before or after the lock
# matches: 'Graphcapturingfinishedin20secs'
CAPTURED: Final = re.compile(r"Graphcapturingfinished")


def stages_of(squeezed: Squeezed, stream: str) -> Iterator[tuple[int, Stage]]:
    """Each line that says where the engine is; after the captures an excerpt may leave out
    everything up to serving, so that phase is unknown."""
    text = squeezed.text
    for phase, pattern in _LINES:
        for match in pattern.finditer(text):
            yield match.start(), Stage(origin_at(squeezed, match.start(), stream), phase)
    for match in CAPTURED.finditer(text):
        yield match.start(), Stage(origin_at(squeezed, match.start(), stream), None)
