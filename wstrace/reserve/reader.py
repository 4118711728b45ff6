"""Read a reserve config from a file that nobody vouches for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.expr import expression
from wstrace.plain_files import TooLargeError, read_plain
from wstrace.reserve.schema import (
    KIND,
    MAX_BYTES,
    VERSION,
    ReserveConfig,
    SiteReserve,
    layout,
    model_digest,
)
from wstrace.vllm.limits import LIMIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wstrace.trace.records import Limit

MAX_FILE: Final = 1 << 20
MAX_DEPTH: Final = 12
MAX_EVENTS: Final = 50_000
"""Of YAML's parser: a site has some fifty. It takes a second for as many."""
_REMAKE: Final = "Make a new one with `wstrace reserve TRACE -o reserve.yaml`."


def load_reserve(path: str | os.PathLike[str]) -> ReserveConfig:
    """Read and check the config at `path`.

    Raises WstraceError for a path that is no plain file of at most 1 MiB, for YAML with
    anchors, aliases, tags or a key given twice, for a file of another kind or version, for
    unknown fields or names, and for bytes below 0 or above 2**50.
    """
    name = os.fspath(path)
    tree = _tree(_text(name), name)
    _check_kind(tree, name)
    _check_whole(tree, name)
    try:
        config = msgspec.convert(tree, ReserveConfig)
    except (msgspec.ValidationError, OverflowError) as error:
        raise WstraceError(f"{name}: {error}", _REMAKE) from None
    _check(config, name)
    return config


def _check_whole(tree: Any, name: str) -> None:
    """A file that was cut at a line is valid YAML still; its last section then is missing."""
    missing = [key for key in ("slots", "sites", "not_covered") if key not in tree]
    if missing:
        raise WstraceError(f"{name} has no `{missing[0]}:`: was it cut short?", _REMAKE)


def _text(name: str) -> str:
    try:
        return read_plain(name, MAX_FILE).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise WstraceError(f"{name} is not UTF-8 text.", _REMAKE) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise WstraceError(f"Cannot read {name}: {reason}.", "Give a reserve config.") from None
    except TooLargeError as error:
        raise WstraceError(f"{name} is {error}: no reserve config is.", _REMAKE) from None
    except ValueError as error:  # a NUL in the name
        raise WstraceError(f"Cannot read {name}: {error}.", "Check the path.") from None


def _tree(text: str, name: str) -> Any:
    """Parse plain YAML: what a person writes, nothing that expands or builds objects."""
    import yaml

    try:
        refused = _first_refused(yaml.parse(text, Loader=yaml.SafeLoader))
        if refused:
            raise WstraceError(f"{name}: {refused}", "Write the value out in full.")
        return _construct(yaml.compose(text, Loader=yaml.SafeLoader), name)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        at = f" (line {where.line + 1})" if where else ""
        raise WstraceError(f"{name} is not valid YAML{at}.", _REMAKE) from None


def _first_refused(events: Iterable[Any]) -> str | None:
    import yaml

    depth = 0
    for number, event in enumerate(events):
        line = event.start_mark.line + 1
        if number >= MAX_EVENTS:
            return f"line {line} is past {MAX_EVENTS:,} values: no reserve config has so many."
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return f"line {line} has a YAML anchor or alias, which is refused."
        if getattr(event, "tag", None):
            return f"line {line} has a YAML tag, which is refused."
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return f"line {line} is nested too deep."
    return None


def _construct(node: Any, name: str) -> Any:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, name) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, name)
    value = yaml.constructor.SafeConstructor().construct_object(node) if node else None
    if isinstance(value, int) and value.bit_length() > 64:
        line = node.start_mark.line + 1
        raise WstraceError(f"{name}: line {line} has a number above 2**64.", _REMAKE)
    return value


def _mapping(node: Any, name: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value in node.value:
        key = _construct(key_node, name)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise WstraceError(f"{name}: line {line}: a key must be a name.", _REMAKE)
        if key in result:
            raise WstraceError(
                f"{name}: line {line}: {key!r} is given twice.", "Keep one of the two."
            )
        result[key] = _construct(value, name)
    return result


def _check_kind(tree: Any, name: str) -> None:
    if not isinstance(tree, dict) or tree.get("kind") != KIND:
        raise WstraceError(f"{name} is not a wstrace reserve config.", _REMAKE)
    if tree.get("version") != VERSION:
        raise WstraceError(
            f"{name} has version {tree.get('version')!r}, this wstrace reads {VERSION}.",
            _REMAKE,
        )


def _check(config: ReserveConfig, name: str) -> None:
    sizes = [(f"slot ({s.ubatch}, {s.lane})", s.bytes) for s in config.slots]
    sizes += [(site.site, site.bytes) for site in config.sites]
    sizes += [(site.site, site.observed) for site in config.sites]
    sizes.append(("cost", config.cost.bytes))
    for what, size in sizes:
        if not 0 <= size <= MAX_BYTES:
            raise WstraceError(
                f"{name}: {what}: {size} bytes is not a size (0 to 2**50).", _REMAKE
            )
    _check_slots(config, name)
    if not any(size for _, size in sizes[:-1]) and not any(map(_follows, config.sites)):
        raise WstraceError(f"{name} reserves nothing: all of its sizes are 0.", _REMAKE)
    _check_model(config, name)
    for site in config.sites:
        _check_site(site, LIMIT_NAMES | config.limits.keys(), name)


def _check_model(config: ReserveConfig, name: str) -> None:
    """Layout, digest and limits say one thing three times: an edit of one of them is found.

    An empty digest (a config made from a log) stands for what the log showed, no more.
    """
    model, limits = config.model, layout(config.limits)
    partial = not model.digest
    for key in sorted(model.layout.keys() | limits.keys()):
        told, meant = model.layout.get(key), limits.get(key)
        if told != meant and not (partial and None in (told, meant)):
            raise WstraceError(
                f"{name}: {key} is {_shown(told)} in the model's layout and {_shown(meant)} in "
                "the limits: one was edited.",
                _REMAKE,
            )
    if not partial and model.digest != model_digest(config.limits):
        raise WstraceError(
            f"{name}: the digest {model.digest} is not that of the file's own layout "
            f"({model_digest(config.limits)}): one was edited.",
            _REMAKE,
        )


def _follows(site: SiteReserve) -> bool:
    return site.follows_limits


def _shown(value: Limit) -> str:
    return "absent" if value is None else str(value)


def _check_slots(config: ReserveConfig, name: str) -> None:
    keys = [(slot.ubatch, slot.lane) for slot in config.slots]
    keys += [(s.ubatch, s.lane) for site in config.sites for s in site.slots]
    if any(not 0 <= number < 1024 for key in keys for number in key):
        raise WstraceError(f"{name}: a slot has a number out of 0 to 1023.", _REMAKE)
    totals = keys[: len(config.slots)]
    if len(set(totals)) != len(totals):
        raise WstraceError(f"{name}: a slot is given twice.", "Keep one of the two.")


def _check_site(site: SiteReserve, limits: frozenset[str], name: str) -> None:
    if site.grade != "observed" and site.cover == "bound" and not site.formula:
        raise WstraceError(f"{name}: {site.site} is {site.grade} but has no formula.", _REMAKE)
    _check_names(site.formula, limits | site.constants.keys() | site.drivers.keys(), site, name)
    for text in site.drivers.values():
        _check_names(text, limits, site, name)
    for text in site.joint:
        _check_names(text, limits | site.constants.keys() | site.drivers.keys(), site, name)


def _check_names(text: str | None, known: frozenset[str], site: SiteReserve, name: str) -> None:
    if text is None:
        return
    try:
        unknown = sorted(set(expression.parse(text).names) - known)
    except WstraceError as error:
        raise WstraceError(f"{name}: {site.site}: {error.message}", error.hint) from None
    if unknown:
        raise WstraceError(
            f"{name}: {site.site}: unknown name {unknown[0]!r} in {text!r}.",
            "Use limit names, or give the number under `constants:`.",
        )
