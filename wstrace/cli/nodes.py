"""The checks of `wstrace doctor --ray`: every node of the cluster, asked on the node itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import wstrace
from wstrace.cli.checkup import Check, folder_check, plugin_check
from wstrace.gather.ray_cluster import connected, gone, nodes, on_node
from wstrace.versions import installed_vllm


class Facts(TypedDict):
    """What a node says of itself; `wrong` are its plugin's and its folder's failures."""

    host: str
    wstrace: str
    vllm: str
    wrong: list[str]


def facts(folder: str) -> Facts:
    """This node's versions, and what would keep a run from being recorded in `folder`."""
    checks = (plugin_check(), folder_check(Path(folder)))
    return {
        "host": os.uname().nodename,
        "wstrace": wstrace.__version__,
        "vllm": installed_vllm() or "",
        "wrong": [f"{check.name}: {check.detail}" for check in checks if check.state == "bad"],
    }


def run_all(folder: Path) -> Iterator[Check]:
    """A check a node: wstrace installed, of the version here, vLLM's, the folder writable.

    Raises WstraceError where there is no Ray or no cluster.
    """
    ray = connected()
    here = facts(str(folder.absolute()))
    for host in gone(ray):
        advice = "Start it again, if a launch is to use it: `ray start --address=...` there."
        yield Check(f"Ray node {host}", "warn", "is gone from the cluster", advice)
    for node, host in nodes(ray):
        name = f"Ray node {host} ({node[:8]})"
        try:
            there: Facts = on_node(ray, node, facts, str(folder.absolute()))
        except OSError as error:
            advice = "Install wstrace there: pip install wstrace, in the Python that Ray runs."
            yield Check(name, "bad", str(error), advice)
            continue
        yield judged(name, there, here)


def judged(name: str, there: Facts, here: Facts) -> Check:
    """One node against this one."""
    for package, advice in (
        ("wstrace", "Install the same version on every node: traces are read by one."),
        ("vllm", "Run one vLLM on every node: findings are told by its version."),
    ):
        mine, its = str(here[package]), str(there[package])  # type: ignore[literal-required]
        if mine != its:
            told = (f"{package} {its or 'none'}, here {mine or 'none'}", *there["wrong"])
            return Check(name, "bad", "; ".join(told), advice)
    if there["wrong"]:
        return Check(name, "bad", "; ".join(there["wrong"]), "Give another folder with -o.")
    return Check(
        name,
        "ok",
        f"wstrace {there['wstrace']}, vLLM {there['vllm']}, the folder can be written",
    )
