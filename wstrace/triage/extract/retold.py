"""A refusal in a person's own words: a place, what was asked for, what the locked arena had."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from wstrace.known_sites import known
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import Refusal, origin_at, printed_size
from wstrace.triage.extract.lookalikes import grows_by_hand
from wstrace.triage.ingest.quoted import is_talk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from wstrace.triage.ingest.prefixes import Line
    from wstrace.triage.ingest.squeeze import Squeezed

_SIZE: Final = r"(\d[\d,]*(?:\.\d+)? ?(?:[KMGT]i?B|bytes)\b)"
_BELOW: Final = 5  # lines of a list of facts
_TITLES: Final = 12  # rows above a row of a table
_LONGEST: Final = 1 << 16  # characters: nobody's own words are longer
_SHORT: Final = 160  # characters of a line in it
_ABOVE: Final = 500  # characters of the lines above it
# matches: 'the locked workspace'
_ABOUT: Final = re.compile(r"(?i)workspace|\barena\b")
# matches: 'is locked'
_LOCKED: Final = re.compile(r"(?i)\block(?:ed|ing)?\b")
# matches: 'needs 16.00 MB'
_ASKED: Final = re.compile(
    rf"(?i:\b(?:requires?|required|needs?|needed|ask(?:s|ed)?(?: for)?|wants?|wanted|requested)"
    rf"(?:[ _]size)?)(?:[ :]+(?:at least|about|only|a|of))*[ :=]+{_SIZE}"
)
# matches: '16.00 MB were required'
_WANTED: Final = re.compile(
    rf"{_SIZE}(?i: (?:is |are |was |were )?(?:required|needed|requested|asked for|wanted)\b)"
)
# matches: 'has only 1.02 MB'
_HAD: Final = re.compile(
    r"(?i:\b(?:current(?:ly)?(?:[ _]size)?(?: is| was| of)?"
    r"|lock(?:ed)?(?:[ _]size| at| to| with)+|ha[sd]|have|available"
    r"|(?:arena|workspace)(?:[ _]size)?(?: is| of| has)?))"
    rf"(?:[ :]+(?:only|just|of))*[ :=]+{_SIZE}"
)
# matches: 'current size of the arena: 2.05 MB'
_SIZE_OF: Final = re.compile(
    rf"(?i:\bsize of the (?:locked )?(?:arena|workspace)(?: is| was)?)[ :=]+{_SIZE}"
)
# matches: 'only 2.05 MB available'
_LEFT: Final = re.compile(rf"{_SIZE}(?i: (?:is |are |was |were )?(?:available|left|there)\b)")
# matches: '1.02 MB -> 16.00 MB'
_ARROW: Final = re.compile(rf"{_SIZE} ?(?:-+>|=+>|→) ?{_SIZE}")
# matches: '9.94 MB vs. 2.05 MB'
_VERSUS: Final = re.compile(rf"{_SIZE} ?(?:(?i:vs\.?|versus|against)|>) ?{_SIZE}")
# how other languages say that it is locked; what was asked is the larger size then
# matches: 'le workspace verrouillé fait 2.05 MB'
_LOCKED_THERE: Final = re.compile(
    r"(?i)verrouill|gesperrt|bloquead|bloqueo|bloccat|travad|zablokowan|заблокир|vergrendeld"
    r"|kilit|锁|鎖|ロック|잠(?:겨|긴|김|금)"
)
# what stands between a name and its size in a table, a list or a record
_MARKS: Final = str.maketrans(dict.fromkeys("|*`\"'", " "))
# matches: 'required_mb: 9.94'
_KEYED: Final = re.compile(
    r"(?i)\b(required|requested|needed|asked|current|had|locked|available)(?:_size)?_"
    r"(mb|mib|gb|gib|kb|kib|bytes)[\"']?\s*[:=]\s*(\d[\d,]*(?:\.\d+)?)"
)
# matches: '9.94 MB'
_ALONE: Final = re.compile(_SIZE)
# matches: 'required'
_ASKED_TITLE: Final = re.compile(
    r"(?i)\b(?:required?|requires|needed|needs|asked|wanted|requested)\b"
)
# matches: 'current size'
_HAD_TITLE: Final = re.compile(r"(?i)\b(?:current|had|has|locked|available|arena)\b")
# matches: 'turboquant_attn.py line 747 (_continuation_prefill)'
_CALLER: Final = re.compile(
    r"(?P<file>[\w.\-]+\.pyc?)[`\"']?(?:(?::|#L|,? line )(?P<line>\d+))?[`\"']?"
    r"(?:(?::|,? in | \()[`\"']?(?P<function>[A-Za-z_]\w*))?"
)
# matches: '_continuation_prefill'
FUNCTION_WORD: Final = re.compile(r"\b[A-Za-z_]\w*_\w+\b")


def retold_of(squeezed: Squeezed, stream: str, said: Set[int]) -> Iterator[tuple[int, Refusal]]:
    """Such lines, but for those whose index is in `said`: vLLM's message stands there."""
    for index, line in enumerate(squeezed.lines):
        if index in said or len(line.text) > _LONGEST:
            continue
        if "lock" not in line.text.lower() and ".py:" not in line.text:
            continue
        text = line.text if line.label else _around(squeezed.lines, index, said)
        text = _KEYED.sub(_with_unit, text)
        about = text if line.label else f"{_above(squeezed.lines, index)} {text}"
        if not _is_of_the_arena(about, text):
            continue
        if "allowed" in text or "Resized" in text or _goes_on(squeezed, index, said):
            continue
        if grows_by_hand(text):
            continue
        sizes = _sizes(text.translate(_MARKS)) or _in_table(squeezed.lines, index)
        site = _site(text)
        position = squeezed.starts[index]
        if sizes is None or site is None or is_talk(squeezed, position):
            continue
        asked, had = (printed_size("".join(size.split())) for size in sizes)
        file, number, function = site
        yield (
            position,
            Refusal(
                "arena",
                origin_at(squeezed, position, stream),
                file,
                number,
                function,
                asked,
                had,
                retold=True,
            ),
        )


def _goes_on(squeezed: Squeezed, index: int, said: Set[int]) -> bool:
    """True where vLLM's own message, begun a few lines above, has its sizes in this line."""
    for first in range(index - 1, max(-1, index - _BELOW), -1):
        if first in said:
            before = squeezed.text[squeezed.starts[first] : squeezed.starts[index]].lower()
            return "lockedbutallocation" in before and "requires" not in before
    return False


def _is_of_the_arena(about: str, text: str) -> bool:
    """Whether `about`, with `text` in it, speaks of a locked arena; a known caller may leave
    one of the two words out, in another language both."""
    known_caller = _known_caller(text)
    if _ABOUT.search(about):
        return known_caller or bool(_LOCKED.search(about))
    return known_caller and bool(_LOCKED_THERE.search(about))


def _with_unit(found: re.Match[str]) -> str:
    """`required_mb: 9.94` as `required: 9.94 MB`."""
    unit = found[2].lower()
    return (
        f"{found[1]}: {found[3]} {unit if unit == 'bytes' else unit.upper().replace('I', 'i')}"
    )


def _above(lines: Sequence[Line], index: int) -> str:
    """The few lines above a person's own, which may say what the list below is of."""
    number = lines[index].number
    near = (line for line in lines[max(0, index - _BELOW) : index] if not line.label)
    return " ".join(line.text for line in near if number - line.number <= _BELOW)[-_ABOVE:]


def _in_table(lines: Sequence[Line], index: int) -> tuple[str, str] | None:
    """The two sizes of a table's row, in the order of the titles above it."""
    cells = [cell.strip() for cell in lines[index].text.split("|")]
    sizes = [cell for cell in cells if _ALONE.fullmatch(cell)]
    if len(sizes) != 2:
        return None
    for line in reversed(lines[max(0, index - _TITLES) : index]):
        asked, had = _ASKED_TITLE.search(line.text), _HAD_TITLE.search(line.text)
        if asked and had and not _ALONE.search(line.text) and len(line.text) < _SHORT:
            first, second = sizes
            return (first, second) if asked.start() < had.start() else (second, first)
    return None


def _around(lines: Sequence[Line], index: int, said: Set[int]) -> str:
    """A person's line; where it names a place alone, with the few lines below it, and where
    these have no sizes, above it."""
    line = lines[index]
    if _sizes(line.text) or not any(found["line"] for found in _CALLER.finditer(line.text)):
        return line.text
    found = [line.text]
    for further in range(index + 1, min(len(lines), index + _BELOW)):
        other = lines[further]
        near = other.number - line.number < _BELOW and len(other.text) < _SHORT
        if further in said or other.label or not near:
            break
        found.append(other.text)
    below = " ".join(found)
    above = _above(lines, index)
    own = _ALONE.search(line.text) or any(place["line"] for place in _CALLER.finditer(above))
    return below if own or _sizes(below.translate(_MARKS)) else f"{above} {below}"


def _known_caller(text: str) -> bool:
    """A caller as vLLM's message names it, of a known site: nothing else is written so."""
    found = (m for m in _CALLER.finditer(text) if m["line"] and m["function"])
    return any(tracebacks.base(m["file"]) in files_of(m["function"]) for m in found)


def _sizes(text: str) -> tuple[str, str] | None:
    """What was asked for and what there was; None where the words do not say which is which.

    Of several that there were (`the GPU has 80 GB`) the first that is less than was asked.
    """
    arrow = _ARROW.search(text)
    if arrow:
        return arrow[2], arrow[1]
    versus = _VERSUS.search(text)
    if versus or _LOCKED_THERE.search(text):
        return _by_size(versus.groups() if versus else _ALONE.findall(text))
    asked = _ASKED.search(text) or _WANTED.search(text)
    there = (m for pattern in (_HAD, _SIZE_OF, _LEFT) for m in pattern.finditer(text))
    had = [m[1] for m in there if asked and m.end(1) != asked.end(1)]
    if not asked or not had:
        return None
    smaller = (size for size in had if _bytes(size) < _bytes(asked[1]))
    return asked[1], next(smaller, had[0])


def _by_size(sizes: Sequence[str]) -> tuple[str, str] | None:
    """Of two sizes the larger was asked for: vLLM refuses nothing else."""
    ordered = sorted(sizes, key=_bytes)
    return (ordered[1], ordered[0]) if len(ordered) == 2 else None


def _bytes(size: str) -> int:
    return printed_size("".join(size.split())).bytes or 0


def _site(text: str) -> tuple[str | None, int | None, str | None] | None:
    """File, line and function of a place: a file with a line, or a known site's function."""
    found = next((m for m in _CALLER.finditer(text) if m["line"]), None)
    function = found["function"] if found else None
    if function is None:
        function = next((word for word in FUNCTION_WORD.findall(text) if files_of(word)), None)
    if found:
        return found["file"], int(found["line"]), function
    if function is None:
        return None
    return file_of(function, text), None, function


def file_of(function: str, text: str) -> str | None:
    """The file of a known site's function: the only one, or the one that the text names."""
    files = files_of(function)
    named = [file for file in files if file in text]
    return files[0] if len(files) == 1 else named[0] if len(named) == 1 else None


@cache
def files_of(function: str) -> tuple[str, ...]:
    """The base names of the files in which a known site has this function."""
    return tuple(
        sorted(
            {
                tracebacks.base(file)
                for site in known.known_sites()
                if any(function == name.split(".")[-1] for name in site.functions)
                for file in site.files
            }
        )
    )
