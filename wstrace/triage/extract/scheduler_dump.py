"""The scheduler's last step, from vLLM's dump of it. Request ids are matched and dropped."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract.facts import StepDump, origin_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.triage.ingest.squeeze import Squeezed

REACH: Final = 1 << 19
# vLLM 0.13.0 to 0.33.0: v1/engine dumps the step when the engine dies (Dumping scheduler
# output)
# matches: 'SchedulerOutput(scheduled_new_reqs=[]'
_START: Final = re.compile(r"SchedulerOutput\(scheduled_new_reqs=")
# matches: 'total_num_scheduled_tokens=4816'
_TOTAL: Final = re.compile(r"total_num_scheduled_tokens=(\d+)")
# matches: 'num_scheduled_tokens={a:4,b:900}'
_SCHEDULED: Final = re.compile(r"(?<!total_)num_scheduled_tokens=\{([^}]{0,100000})\}")
# matches: 'a:4'
_ENTRY: Final = re.compile(r"'?([^,{}']+?)'?:(\d+)(?=,|$)")
# matches: 'NewRequestData(req_id=a,'
_NEW: Final = re.compile(r"NewRequestData\(req_id='?([^,']+)'?,")
# matches: 'num_computed_tokens=5088,'
_COMPUTED: Final = re.compile(r"num_computed_tokens=(\d+)[,)]")
# matches: "CachedRequestData(req_ids=['a','b']"
_CACHED: Final = re.compile(r"CachedRequestData\(req_ids=\[([^\]]{0,100000})\]")
# matches: 'num_computed_tokens=[5088,77]'
_CACHED_COMPUTED: Final = re.compile(r"num_computed_tokens=\[([\d,]{0,100000})\]")
# matches: 'scheduled_spec_decode_tokens={a:[1,2]}'
_DRAFTS: Final = re.compile(r"scheduled_spec_decode_tokens=\{([^}]{0,100000})\}")
# matches: '[1,2]'
_DRAFT_LIST: Final = re.compile(r"\[([-\d,]*)\]")


def steps_of(squeezed: Squeezed, stream: str) -> Iterator[tuple[int, StepDump]]:
    """Every dump in the text with its position, in order."""
    text = squeezed.text
    starts = [match.start() for match in _START.finditer(text)]
    for start, end in pairwise([*starts, len(text)]):
        body = text[start : min(end, start + REACH)]
        scheduled = _SCHEDULED.search(body)
        total = _TOTAL.search(body)
        if scheduled is None and total is None:
            continue
        computed = _computed(body)
        entries = _ENTRY.findall(scheduled[1]) if scheduled else []
        dump = StepDump(
            origin_at(squeezed, start, stream),
            total_tokens=int(total[1]) if total else None,
            scheduled=tuple(int(tokens) for _, tokens in entries),
            computed=tuple(computed.get(key, 0) for key, _ in entries),
            draft_tokens=_drafts(body),
        )
        yield start, dump


def _computed(body: str) -> dict[str, int]:
    """Request id to tokens computed before this step."""
    found: dict[str, int] = {}
    news = list(_NEW.finditer(body))
    ends = [match.start() for match in news[1:]] + [len(body)]
    for match, end in zip(news, ends, strict=False):
        tokens = _COMPUTED.search(body, match.end(), end)
        if tokens:
            found[match[1]] = int(tokens[1])
    ids, tokens = _CACHED.search(body), _CACHED_COMPUTED.search(body)
    if ids and tokens:
        names = [name.strip("'") for name in ids[1].split(",")]
        numbers = [int(number) for number in tokens[1].split(",") if number]
        found.update(zip(names, numbers, strict=False))
    return found


def _drafts(body: str) -> int:
    drafts = _DRAFTS.search(body)
    if drafts is None:
        return 0
    lists = _DRAFT_LIST.findall(drafts[1])
    return sum(len([token for token in tokens.split(",") if token]) for tokens in lists)
