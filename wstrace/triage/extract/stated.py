"""Which lines of a text state the settings of the run that failed.

A log's own lines do, and a command line. Of a person's sentences only those that say how the
server was started: what was tried, helped, or may help is of another run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wstrace.triage.ingest.prefixes import Line

_FEW: Final = 3  # words beside flags: a list, not a sentence
_LEAD: Final = 2  # words before a command: a sentence
_NEAR: Final = 3  # lines: what introduces a command stands right above it
# matches: 'vllm serve m'
_COMMAND: Final = re.compile(
    r"\bvllm serve\b|\bapi_server\b|\bdocker run\b|--model[ =]|\bpython3? -m vllm|\bExecStart="
    r"|^\s*\$ |\bLLM\(|\\\s*$|\bvllm/vllm-[\w-]+:v?\d"
)
# matches: '--max-num-seqs 8'
_FLAG: Final = re.compile(
    r"(?<![\w-])--?[a-zA-Z][\w-]*(?:[= ][\"'`]?[\w{\[./][^\s\"'`,]*)?", re.ASCII
)
# matches: 'word'
_WORD: Final = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]|[^\W\d_]{2,}")
# matches: 'works fine with'
_CURE: Final = re.compile(
    r"(?i)\b(?:(?:fix(?:es|ed)?|cure[sd]?|solve[sd]?|avoids?|avoided|prevents?|prevented"
    r"|resolv\w+|stops|stopped)(?: (?:the|this|these|my|our))? (?:crash(?:es|ing)?|errors?"
    r"|failures?|problems?|issues?)"
    r"|works?|worked|working|fine|ok(?:ay)?|helps?|helped|workarounds?|fix(?:es|ed)?"
    r"|cure[sd]?|solve[sd]?|solution|avoids?|avoided|instead|disappear(?:s|ed)?|go(?:es)? away"
    r"|went away|gone|no (?:longer|more)(?: (?:crash|fail|die|happen|break)\w*)?"
    r"|no crash(?:es)?|no error|never crash(?:es|ed)?|stable"
    r"|survives?|survived|(?:did|does) the trick|mitigat\w+|resolv\w+"
    r"|(?:does|did|do)(?: not|n't) (?:crash|happen|fail|occur|die|reproduce)"
    r"|without (?:a )?(?:crash|error|problem|issue)s?)\b"
)
# matches: 'I suspect'
_DOUBT: Final = re.compile(
    r"(?i)\b(?:tried|try|tries|trying|tested with|suspect|maybe|perhaps|would|could|should"
    r"|might|may|if you|temporar\w+|for now|until then|suggest\w*|recommend\w*|advis\w+"
    r"|consider|lower(?:ing)?|reduc\w+|increas\w+|rais(?:e|ing)|chang(?:e|ing)"
    r"|switch(?:ed|ing)? to|bump\w*|drop(?:ped|ping)?|disabl\w+|unless|other than|e\.g"
    r"|for example)\b|\?"
)
# matches: 'Last week I used'
_EARLIER: Final = re.compile(
    r"(?i)\b(?:before|previously|earlier|formerly|yesterday|used to|in the past|back then|until"
    r"|last (?:week|month|year|time|night)|(?:days?|weeks?|months?) ago)\b"
)
# matches: 'fine. Without'
_SENTENCE_END: Final = re.compile(r"[.!?]\s+(?=[A-Z])")
# matches: 'it did not help'
_FAILS: Final = re.compile(
    r"(?i)\b(?:crash(?:es|ed)?|fails?|failed|dies?|died|breaks?|broke|not|never|still|nor|neither"
    r"|no luck|until)\b|n't\b"
)
# matches: 'started with'
_STATES: Final = re.compile(
    r"(?i)\b(?:start\w*|launch\w*|runs?|ran|running|serv(?:e|ed|er|ing)|command|flags?|arg(?:s|uments)"
    r"?|settings?|config\w*|options?|parameters?|deploy\w*|with|using|uses?|set to)\b"
)


def of_the_run(lines: Sequence[Line]) -> list[Line]:
    """The lines that may state a setting of the failing run, in order."""
    return [line for index, line in enumerate(lines) if _states(lines, index)]


def _states(lines: Sequence[Line], index: int) -> bool:
    line = lines[index]
    if line.label or line.error or not ("--" in line.text or "max" in line.text):
        return True
    if _COMMAND.search(line.text):
        return not _of_another_run(line.text) and not _introduced(lines, index)
    sentence = " ".join(_sentence(lines, index))
    if _CURE.search(sentence) or _DOUBT.search(sentence) or _introduced(lines, index):
        return False
    few = len(_WORD.findall(_FLAG.sub(" ", line.text))) <= _FEW
    return few or "--" not in line.text or bool(_STATES.search(sentence))


def _of_another_run(text: str) -> bool:
    """True for a command in a sentence that says it worked, or of an earlier run that it does
    not say failed. A command that begins the line is judged by no words after it."""
    if says_it_worked(text.partition("--")[0]):
        return True
    begins = _COMMAND.search(text).start()  # type: ignore[union-attr]
    lead = text[:begins]
    if len(_WORD.findall(lead)) < _LEAD:
        return False
    said = _FLAG.sub(" ", lead + _SENTENCE_END.split(text[begins:])[0])
    earlier = _EARLIER.search(lead) and not _FAILS.search(_CURE.sub("", said))
    return bool(earlier) or says_it_worked(said)


def says_it_worked(text: str) -> bool:
    """True for words of a run that did not fail, and none of one that did."""
    return bool(_CURE.search(text)) and not _FAILS.search(_CURE.sub("", text))


def says_it_failed(text: str) -> bool:
    """True for words of a run that failed."""
    return bool(_FAILS.search(_CURE.sub("", text)))


def _introduced(lines: Sequence[Line], index: int) -> bool:
    """True where the line above says that what follows worked."""
    at = lines[index].number
    for line in reversed(lines[max(0, index - _NEAR) : index]):
        if line.label or at - line.number > _NEAR:
            return False
        if line.text.strip():
            above = line.text.strip()
            return above.endswith((":", "：")) and says_it_worked(above)
    return False


def _sentence(lines: Sequence[Line], index: int) -> Iterator[str]:
    """The line, with the line before and after it where the sentence goes on there."""
    text, number = lines[index].text, lines[index].number
    before = lines[index - 1] if index else None
    if before and not before.label and number - before.number == 1 and _open(before.text):
        yield before.text
    yield text
    after = lines[index + 1] if index + 1 < len(lines) else None
    if after and not after.label and after.number - number == 1 and _open(text):
        yield after.text


def _open(text: str) -> bool:
    return not text.rstrip().endswith((".", "!", "?", "|"))
