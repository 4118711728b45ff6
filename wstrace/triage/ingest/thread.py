"""A GitHub issue with its comments, saved as JSON or Markdown, as its parts."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from wstrace.triage.ingest.opening import unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 32 << 20  # bytes; a longer text is a log
_HEAD: Final = 1 << 16
# matches: b'{"body": "It dies", "comments": []'
_JSON: Final = re.compile(
    rb"\s*(?:\[\s*)?[\[{]\s*\"(?:assignees|author|body|closed|comments|createdAt|html_url|id"
    rb"|issue_url|labels|node_id|number|repository_url|state|title|url|user)\"\s*:"
)
# gh issue view N --comments: a head, '--', the body, and the same for each comment
# matches: 'author:\talice\nassociation:\tmember\nstatus:\tnone\n--\n'
_GH_COMMENT: Final = re.compile(
    r"^author:\t.*\nassociation:\t.*\n(?:[a-z]+:\t.*\n)*--\n", re.MULTILINE
)
# matches: 'title:\tThe server dies\nstate:\tOPEN\n--\n'
_GH_ISSUE: Final = re.compile(r"title:\t(?P<title>.*)\n(?:[a-z]+:\t.*\n)*?--\n")
# matches: '**alice** commented on May 5'
_COMMENTED: Final = re.compile(
    r"^(?:\W{0,6}@?[\w.\[\]-]{1,40}\W{0,4}(?:\([\w ]{1,20}\) )?commented(?! out)\b.{0,60}"
    r"|\#{1,6} +(?:Comment|Reply|Answer)\b.{0,60})$",
    re.MULTILINE,
)

# matches: 'issue 7, comment 1'
_ISSUE: Final = re.compile(r"issue \d+(?:, comment \d+)?$")


@dataclass(frozen=True)
class Post:
    """The issue itself (`name` is empty) or one of its comments, with its address if known.

    `thread` says which issue it is, where a text holds several.
    """

    name: str
    text: str
    url: str = ""
    thread: str = ""

    @property
    def label(self) -> str:
        """Which part of the text this is; "" for the only issue itself."""
        return ", ".join(filter(None, (self.thread, self.name)))


def is_issue(part: str) -> bool:
    """Whether `part`, a label, is of one issue of several."""
    return bool(_ISSUE.match(part))


def threads_of(stream: BinaryIO, path: str) -> tuple[list[list[Post]], BinaryIO]:
    """The parts of each thread, none where the text is no thread; and the text, to be read
    from its start. WstraceError: `path` cannot be read."""
    try:
        head = stream.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    again = cast("BinaryIO", _Again(head, stream))
    markdown = head.startswith(b"title:\t") or b"commented" in head or b"# Comment" in head
    if not (_JSON.match(head) or markdown):
        return [], again
    data = head + stream.read(MOST + 1 - len(head))
    if len(data) <= MOST:
        text = data.decode("utf-8", "replace")
        found = _threads(text) if _JSON.match(head) else [[*_of_markdown(text)]]
        if any(found):
            return found, io.BytesIO(data)
    return [], cast("BinaryIO", _Again(data, stream))


class _Again:
    """A stream whose first bytes were read already."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end only."""
        return self._head.read(size) or self._rest.read(size)

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._rest.fileno()


def _threads(text: str) -> list[list[Post]]:
    """One issue, a list of comments of one, or a list of issues: one thread each."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return [[*_of_json(found)]]
    if not any(isinstance(item, dict) and "title" in item for item in found):
        return [[*_of_json({"comments": found})]]
    threads = [(index, [*_of_json(item)]) for index, item in enumerate(found, 1)]
    return [_named(parts, found[index - 1], index) for index, parts in threads if parts]


def _named(parts: list[Post], issue: dict[str, Any], index: int) -> list[Post]:
    number = issue.get("number")
    name = f"issue {number if isinstance(number, int) else index}"
    return [replace(part, thread=name) for part in parts]


def _of_json(found: object) -> Iterator[Post]:
    """`gh issue view --json title,body,comments`, or what GitHub's own interface gives: there
    `comments` is their number."""
    if not isinstance(found, dict) or not ({"body", "comments"} & found.keys()):
        return
    comments = found.get("comments") or []
    if isinstance(comments, int):
        comments = []
    if isinstance(comments, dict):
        comments = comments.get("nodes") or []
    if not isinstance(comments, list) or not all(isinstance(c, dict) for c in comments):
        return
    if "body" not in found and not any("body" in comment for comment in comments):
        return
    yield Post("", f"{_said(found, 'title')}\n\n{_said(found, 'body')}", _said(found, "url"))
    for number, comment in enumerate(comments, 1):
        address = _said(comment, "html_url") or _said(comment, "url")
        yield Post(f"comment {number}", _said(comment, "body"), address)


def _said(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def _of_markdown(text: str) -> Iterator[Post]:
    """Cut at each comment's head; none where there is no comment and no head of gh."""
    text = text.replace("\r\n", "\n")
    issue = _GH_ISSUE.match(text)
    heads = list((_GH_COMMENT if issue else _COMMENTED).finditer(text))
    if not heads and issue is None:
        return
    begin = issue.end() if issue else 0
    ends = [head.start() for head in heads] + [len(text)]
    title = f"{issue['title']}\n\n" if issue else ""
    yield Post("", title + text[begin : ends[0]])
    for number, (head, end) in enumerate(zip(heads, ends[1:], strict=True), 1):
        yield Post(f"comment {number}", text[head.end() : end])
