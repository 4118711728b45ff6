"""An audit's serving requests without a reservation as SARIF 2.1.0, for code scanning.

A result's fingerprint is its file, its function and its number among the function's requests,
so that it stays the same when lines move.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import wstrace
from wstrace.audit.upgrade import UNRESERVED
from wstrace.audit.whole import Audit, AuditedSite
from wstrace.report.audited import TOLD
from wstrace.report.ci.sarif import SCHEMA, location
from wstrace.report.pages import docs_url, site_url

LEVELS: Final = {"none": "error", "partial": "warning", "incidental": "note"}
Json = dict[str, Any]


def render(audit: Audit) -> str:
    """One SARIF run."""
    found = [site for site in audit.serving if site.match in UNRESERVED]
    rules = sorted({f"audit/{site.match}" for site in found})
    site = site_url()
    driver: Json = {
        "name": "wstrace",
        "version": wstrace.__version__,
        **({"informationUri": site} if site else {}),
        "rules": [_rule(rule) for rule in rules],
    }
    run: Json = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"wstrace-audit/{audit.version or 'unknown'}"},
        "columnKind": "unicodeCodePoints",
        **({"invocations": [_not_whole(audit.unread)]} if audit.unread else {}),
        "results": [
            _result(site, rules, [s.name for s in found[:number]].count(site.name))
            for number, site in enumerate(found)
        ],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _not_whole(unread: Sequence[str]) -> Json:
    """The files whose requests are not known, as the tool's own failure."""
    return {
        "executionSuccessful": False,
        "toolExecutionNotifications": [
            {
                "level": "error",
                "message": {"text": f"{file} cannot be parsed: its requests are not known"},
                "locations": [location(file, "", 1)],
            }
            for file in unread
        ],
    }


def _rule(rule: str) -> Json:
    text = TOLD[rule.removeprefix("audit/")]
    told = {"text": "See docs/audit.md of wstrace."}
    url = docs_url("audit")
    return {
        "id": rule,
        "shortDescription": {"text": text[0].upper() + text[1:]},
        "help": told,
        **({"helpUri": url} if url else {}),
    }


def _result(site: AuditedSite, rules: list[str], number: int) -> Json:
    rule = f"audit/{site.match}"
    related = [place.rpartition(":") for place in site.matched_by]
    result: Json = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "kind": "fail",
        "level": LEVELS[site.match],
        "message": {"text": f"{site.enclosing}: {site.reason}"},
        "locations": [location(site.file, site.enclosing, site.line)],
        "partialFingerprints": {
            "wstraceAudit/v1": sha256(f"{site.name}#{number}".encode()).hexdigest()[:16]
        },
        "properties": {"drivers": list(site.drivers), "unreached": list(site.unreached)},
    }
    if related:
        result["relatedLocations"] = [
            location(file, "", int(line)) for file, _, line in related
        ]
    return result
