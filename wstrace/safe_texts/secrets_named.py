"""Values that stand beside the name of a secret, in whatever way a text spells the two.

`api_key=x`, `{'api_key': ['x']}`, `--api-key x`, `Authorization: Basic x`, JSON within JSON:
the name decides, then the value is read to its end, quotes and brackets included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

REDACTED = "[redacted]"
# Where a secret's name may be: a fast search, `is_secret` then judges the whole word.
# matches: 'API_KEY'
_CORE: Final = re.compile(
    r"(?i)api[-_]?key|(?:access|private|auth|account|signing|encryption|master)[-_]?key|token"
    r"|secret|passw|passphrase|pwd|credential|auth|cookie|bearer|signature"
    r"|--(?<![\w-]--)[a-z]"
)
# matches: 'hf_token'
_LETTER: Final = re.compile(r"[\w-]")
# matches: 'accessToken'
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# matches: 'aws_secret_access_key'
_ALWAYS: Final = re.compile(
    r"api_?key|(?:access|private|auth|account|signing|encryption|master)_?key|secret|passw(?:or)?d"
    r"|passphrase|credential|authorization|bearer|(?:^|_)pwd(?:_|$)|(?:^|_)(?:auth|cookies?)$"
    r"|(?:shared_?access|amz|goog)_?signature$"
)
LONGEST_OPTION: Final = 80  # letters
# argparse takes an option's beginning for the option: how much of its last words says which.
# Shorter ones are those of other options too: `--api-server-count`, `--ssl-keyfile`.
_BEGINNINGS: Final = {
    "api_key": "api_k",
    "hf_token": "hf_t",
    "keyfile_password": "keyfile_",
    "access_token": "access_t",
    "auth_token": "auth_t",
    "access_key": "access_k",
    "private_key": "private_k",
    "password": "passw",
    "passphrase": "passp",
    "secret": "secr",
    "credentials": "cred",
}
# matches: 'hf_token'
_TOKEN: Final = re.compile(
    r"(?:^|_|[a-z])token$|(?:^|_)(?:api|access|auth|hf|session|refresh)_?tokens$"
)
# Tokens of a text, not of a login.
# matches: 'eos_token'
_OF_TEXT: Final = re.compile(
    r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|image|img|audio|video|speech|vision|per|next|stop"
    r"|start|begin|end|first|last|special|prompt|new|draft|sampled|bonus|placeholder|input"
    r"|output|think|one|each|single|query|boi|eoi|num|chat)_token$"
)
# After a name: a closing quote or bracket, `=` or `:`, and what a value may begin with.
# matches: '": '
_SEPARATOR: Final = re.compile(r"\\*[\"']?\]?[ \t]*(?:=>|:=|={1,2}|:)(?!/)\s*")
# Before a quoted name.
# matches: "(b'"
_PAIR: Final = re.compile(r"\(\s*[bBrRuU]?\\*[\"']$")
# After a quoted name, in a pair or in a list of words.
# matches: "', 'x'"
_COMMA: Final = re.compile(r"\\*[\"']\s*,\s*(?=[bBrRuU]?\\*[\"'])")
# matches: ', '
_NEXT: Final = re.compile(r"\s*,\s*")
# An option, as far as a value of a dash and letters can be told from it.
# matches: '-tp'
OPTION: Final = re.compile(r"--|-(?:[A-Za-z]{1,3}\d?)?(?![^\s'\"=.])")
# matches: ' \\\n '
_SPACE: Final = re.compile(r"[ \t]+(?:\\\n[ \t]*)?(?=\S)")
# The words up to the next option: an option of several values.
# matches: ' b c --port'
_MORE_WORDS: Final = re.compile(r"(?:[ \t]+[^\s-]\S*){1,4}(?=[ \t]+--\w)")
# One more value of `--api-key`, which takes several; no word of a sentence or of a shell.
# matches: ' key2'
_KEY: Final = re.compile(
    r"[ \t]+(?:\\\n[ \t]*)?(?!(?:to|is|was|and|or|for|in|on|with|then|from|at|of|as|the)\b"
    r"|\d?[|&;<>]|\\|[\"'\])}])(\S+)"
)
# A variable before its value without a sign: `ENV HF_TOKEN x`, or a value that looks like one.
# matches: 'HF_TOKEN'
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+$")
# matches: 'set -x '
_SETS: Final = re.compile(r"\b(?:ENV|setenv|setx|set(?: -\w{1,3})?)[ \t]+$")
# matches: ' s3cr3ts'
_LIKELY: Final = re.compile(
    r"[ \t]+(?=[^\s=:]{6})(?=[^\s\d]{0,40}\d|[^\s]{0,40}[a-z][A-Z]|[^\s]{20})"
)
# The next key of YAML or JSON has the value of the variable that was named.
# matches: '\n  value: '
_ITS_VALUE: Final = re.compile(
    r"\\*[\"']?[ \t]{0,9}[,\n]\s{0,40}\\*[\"']?value\\*[\"']?[ \t]{0,9}[:=]\s{0,40}"
)
# A YAML text below its key, and the items of a list.
# matches: '|-\n  '
_BLOCK: Final = re.compile(r"[|>][+-]?\d?[ \t]*\n[ \t]*")
# matches: '- a'
_ITEM: Final = re.compile(r"\n?[ \t]*-[ \t]+(?=\S)")
# pydantic: the field on a line, what was given on the next.
# matches: '\n  Input should be a valid boolean [type=bool_parsing, input_value='
_PYDANTIC: Final = re.compile(r"(?:\.[\w-]{1,80}){0,4}\n[ \t]+[^\n]*?input_value=")
# matches: "b'"
_QUOTE: Final = re.compile(r"[bBrRuUfF]?(\\*)(\"\"\"|'''|[\"'])")
# matches: "SecretStr("
_BRACKET: Final = re.compile(r"[\w.]*[\[({]")
# matches: 'Bearer '
_SCHEME: Final = re.compile(r"(?i)(?:bearer|basic|negotiate|token|api-?key|key)[ \t]+")
# matches: 'Digest '
_WHOLE_LINE: Final = re.compile(r"(?i)(?:digest|aws4-[\w-]+|hmac[\w-]*)[ \t]+[^\n]*")
# More than one cookie, up to the end of the quotes around the header.
# matches: 'a=b; c=d'
_COOKIES: Final = re.compile(r"[\w.-]{1,80}=[^\s;,'\"]*(?:; [\w.-]{1,80}=[^\s;,'\"]*)+")
# A comma ends it where another name or word follows.
# matches: 's3cret'
_BARE: Final = re.compile(r"(?:[^\s,;&]|,(?![\s\"'\[{(]|[\w-]+[\"']?[=:]|$))+")
# Values that hide nothing.
# matches: 'None'
_PLAIN: Final = re.compile(r"(?:None|True|False|null|true|false)(?![\w.-])")
# matches: '151645'
_TOKEN_ID: Final = re.compile(r"\d{1,6}(?![\w.-])")
# matches: '_'
_UNDERLINE: Final = re.compile("_")
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}


def is_secret(name: str) -> bool:
    """Whether a parameter, field, header, variable or option of this name holds a secret."""
    plain = _CAMEL.sub("_", name).lower().strip("-_").replace("-", "_").replace(".", "_")
    return bool(_ALWAYS.search(plain) or _is_token(plain))


def is_secret_option(flag: str) -> bool:
    """The same for an option of a command line, which argparse takes cut short too."""
    return is_secret(flag) or _begins(flag, _BEGINNINGS)


def takes_several(flag: str) -> bool:
    """Whether the option is vLLM's `--api-key`, whole or cut short."""
    plain = _plain_option(flag)
    return plain.endswith("api_key") or _begins(flag, ("api_key",))


def _begins(flag: str, names: Iterable[str]) -> bool:
    if not flag.startswith("--") or len(flag) > LONGEST_OPTION:
        return False
    plain = _plain_option(flag)
    tails = [plain, *(plain[at.end() :] for at in _UNDERLINE.finditer(plain))]
    return any(
        tail.startswith(_BEGINNINGS[name]) and name.startswith(tail)
        for tail in tails
        for name in names
    )


def _plain_option(flag: str) -> str:
    return flag.lower().lstrip("-").replace("-", "_")


def _is_token(plain: str) -> bool:
    return bool(_TOKEN.search(plain)) and not _OF_TEXT.search(plain)


def hide_values(text: str) -> str:
    """`text` with `[redacted]` for each value beside a secret's name; its quotes stay."""
    parts: list[str] = []
    done = at = 0
    while (core := _CORE.search(text, at)) is not None:
        start, at = _word(text, core.start(), core.end())
        name = text[start:at]
        if not (is_secret_option(name) if name.startswith("--") else is_secret(name)):
            continue
        for begin, end in _values(text, name, start, at):
            parts += [text[done:begin], REDACTED]
            done = at = end
    return "".join([*parts, text[done:]])


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    while start and _LETTER.match(text[start - 1]):
        start -= 1
    while end < len(text) and _LETTER.match(text[end]):
        end += 1
    return start, end


def _values(text: str, name: str, start: int, end: int) -> list[tuple[int, int]]:
    """The places of the values that belong to the name at `start`."""
    option = name.startswith("-")
    if separator := _SEPARATOR.match(text, end):
        if not option and (item := _ITEM.match(text, separator.end())):
            return _items(text, item, name)
        block = None if option else _BLOCK.match(text, separator.end())
        places = _shown(text, (block or separator).end(), name)
        return _with_more(text, places, name) if option else places
    if other := _PYDANTIC.match(text, end) or _ITS_VALUE.match(text, end):
        return _shown(text, other.end(), name)
    pair = _PAIR.search(text[max(0, start - 6) : start])
    if (comma := _COMMA.match(text, end)) and (option or pair):
        return _listed(text, comma.end(), name, option)
    if option and (space := _SPACE.match(text, end)) and not OPTION.match(text, space.end()):
        places = _shown(text, space.end(), name)
        if places and (more := _MORE_WORDS.match(text, places[-1][1])):
            places = [(places[0][0], more.end())]
        return _with_more(text, places, name)
    if _VARIABLE.match(name) and (word := _LIKELY.match(text, end) or _set(text, start, end)):
        return _shown(text, word.end(), name)
    return []


def _set(text: str, start: int, end: int) -> re.Match[str] | None:
    """The space after a variable that a shell or a Dockerfile sets."""
    return _SPACE.match(text, end) if _SETS.search(text[max(0, start - 12) : start]) else None


def _items(text: str, item: re.Match[str] | None, name: str) -> list[tuple[int, int]]:
    """The items of a YAML list, one a line."""
    places: list[tuple[int, int]] = []
    while item is not None and (found := _shown(text, item.end(), name)):
        places += found
        line_end = text.find("\n", found[-1][1])
        item = _ITEM.match(text, line_end) if line_end >= 0 else None
    return places


def _with_more(text: str, places: list[tuple[int, int]], name: str) -> list[tuple[int, int]]:
    """`places` and the words after them up to the next option, where it takes several."""
    if not places or not takes_several(name):
        return places
    begin, end = places[-1]
    if text.startswith(("'", '"'), end) and not text.startswith(("'", '"'), begin - 1):
        # the quote is around the option too: one word of a list, or the whole command
        comma = _COMMA.match(text, end)
        return [*places, *(_listed(text, comma.end(), name, True) if comma else [])]
    at = end + text.startswith(("'", '"'), end)
    while (key := _KEY.match(text, at)) and not OPTION.match(text, key.start(1)):
        at = key.end()
        end = key.start(1) + len(key[1].rstrip("\"'])},;:."))
        if end < at:  # a quote or a sentence ends here
            break
    return [*places[:-1], (begin, end)]


def _listed(text: str, at: int, name: str, option: bool) -> list[tuple[int, int]]:
    """Quoted words after a quoted name: one, or after an option all up to the next one."""
    places: list[tuple[int, int]] = []
    while (quote := _QUOTE.match(text, at)) is not None:
        if option and OPTION.match(text, quote.end()):
            break
        places += _shown(text, at, name)
        _, _, closed = _quoted(text, quote)
        comma = _NEXT.match(text, closed)
        if not option or comma is None:
            break
        at = comma.end()
    return places


def _shown(text: str, at: int, name: str) -> list[tuple[int, int]]:
    """The place of the value that begins at `at`; none where it is empty or no secret."""
    begin, end = _value(text, at)
    plain = _CAMEL.sub("_", name).lower().replace("-", "_")
    harmless = _PLAIN.match(text, begin) or text.startswith("<|", begin)
    of_text = not _ALWAYS.search(plain) and _TOKEN_ID.match(text, begin)
    return [] if harmless or of_text or begin >= end else [(begin, end)]


def _value(text: str, at: int) -> tuple[int, int]:
    """Where the value at `at` begins and ends: in quotes, in brackets, or a word."""
    if text.startswith(REDACTED, at):
        return at, at + len(REDACTED)
    if quote := _QUOTE.match(text, at):
        begin, end, _ = _quoted(text, quote)
        return begin, end
    if bracket := _BRACKET.match(text, at):
        return at, _balanced(text, bracket.end() - 1)
    if line := _WHOLE_LINE.match(text, at) or _COOKIES.match(text, at):
        return at, line.end()
    scheme = _SCHEME.match(text, at)
    word = _BARE.match(text, scheme.end() if scheme else at)
    if word is None:
        return at, at
    return at, at + len(text[at : word.end()].rstrip(")]}>\"'.\\"))


def _quoted(text: str, quote: re.Match[str]) -> tuple[int, int, int]:
    """Begin and end of what is in the quotes, and the place after them; the text may be cut.

    A quote in a quote has more backslashes before it than the one that opened.
    """
    depth, begin, at = len(quote[1]), quote.end(), quote.end()
    while (place := text.find(quote[2], at)) >= 0:
        slashes = 0
        while place - slashes > begin and text[place - slashes - 1] == "\\":
            slashes += 1
        if slashes <= depth or (not depth and slashes % 2 == 0):
            if slashes == depth or not depth:
                return begin, place - depth, place + len(quote[2])
            return begin, place, place + len(quote[2])
        at = place + 1
    return begin, len(text), len(text)


def _balanced(text: str, at: int) -> int:
    """The place after the bracket that closes the one at `at`; the end of a cut text."""
    open_: list[str] = []
    while at < len(text):
        if quote := _QUOTE.match(text, at):
            at = _quoted(text, quote)[2]
            continue
        letter = text[at]
        if letter in _CLOSING:
            open_.append(_CLOSING[letter])
        elif letter in "])}":
            while letter in open_ and open_.pop() != letter:
                pass
            if not open_:
                return at + 1
        at += 1
    return at
