"""`wstrace audit`: which requests of a vLLM have no reservation, read from its source."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from wstrace.cli import outlet
from wstrace.errors import FOUND, INCONCLUSIVE, WstraceError

if TYPE_CHECKING:
    from wstrace.audit.whole import Audit

AuditFormat = Literal["text", "json", "markdown", "md", "sarif", "html"]
Platform = Literal["cuda", "rocm", "xpu"]


def command(
    trees: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BEFORE AFTER]",
            help="Two vLLMs to compare, each as in --vllm; with --changed, the changed files.",
        ),
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|VERSION",
            help="A vLLM's folder, a wheel, or a release in the cache; the installed one if"
            " absent.",
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the release's wheel with pip.")
    ] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only requests in these files of a checkout.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Exit 1 for a serving request without a reservation: of two vLLMs one that is"
            " new or lost its reservation, else any; 3 where a file cannot be parsed.",
        ),
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FLAGS",
            help="Predict for a deployment: the flags of `vllm serve`, with --model-config.",
        ),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, for --config.")
    ] = None,
    platform: Annotated[
        Platform, typer.Option(help="The deployment's accelerator, for --config.")
    ] = "cuda",
    trace: Annotated[
        Path | None, typer.Option(help="Join with a recorded run of this vLLM.")
    ] = None,
    suggestion: Annotated[
        list[str] | None,
        typer.Option(
            "--suggest",
            metavar="SITE",
            help="A patch that reserves for this request (FILE:LINE or FILE:FUNCTION); several"
            " make one patch.",
        ),
    ] = None,
    form: Annotated[
        AuditFormat | None,
        typer.Option(
            "--format", help="Output format (default: by the extension of -o, else text)."
        ),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write instead of stdout.")
    ] = None,
) -> None:
    """Requests for the workspace that nothing reserves, by source.

    Reads the source alone: vLLM is not imported, no GPU and no network is used.
    """
    output = _format(form, target)
    given = trees or []
    kind = _kind(
        ("a patch", bool(suggestion)),
        ("a prediction", config is not None or model_config is not None),
        ("a run's audit", trace is not None),
        ("a comparison", bool(given) and not changed),
    )
    _refuse_format(output, kind)
    gc.disable()  # syntax trees live to the end: a look through them is a fifth of the time
    shown: list[str] = []
    found: bool | None
    if kind == "a patch":
        found = _suggested(vllm, download, suggestion or [], shown)
    elif kind == "a prediction":
        found = _predicted(vllm, download, (config, model_config, platform), output, shown)
    elif kind == "a run's audit":
        assert trace is not None
        found = _joined(vllm, download, trace, output, shown)
    elif kind == "a comparison":
        found = _compare(given, download, output, shown)
    else:
        files = [Path(name) for name in given if name.endswith(".py")] if changed else None
        named = vllm or (_package(files) if files else None)
        found = _one(named, download, files, output, shown)
    outlet.write("\n".join(shown).rstrip("\n") + "\n", target)
    if check and found is None:
        raise typer.Exit(INCONCLUSIVE)
    if check and found:
        raise typer.Exit(FOUND)


def _format(form: AuditFormat | None, target: Path | None) -> str:
    """One name for each format; `md` is what this command called Markdown at first."""
    from wstrace.report.formats import by_extension

    if form is not None:
        return "markdown" if form == "md" else form
    known = by_extension(target, get_args(AuditFormat)) if target is not None else None
    return known or "text"


FORMATS: dict[str, tuple[str, ...]] = {
    "an audit": ("text", "markdown", "json", "sarif", "html"),
    "a comparison": ("text", "markdown", "json"),
    "a prediction": ("text", "json"),
    "a run's audit": ("text", "json"),
    "a patch": ("text",),
}
"""What each form of the command can be written as; a comparison's text is its Markdown."""


def _kind(*asked: tuple[str, bool]) -> str:
    """Which form of the command the options ask for: the first one, else an audit."""
    return next((name for name, is_asked in asked if is_asked), "an audit")


def _refuse_format(output: str, kind: str) -> None:
    if output not in FORMATS[kind]:
        raise WstraceError(
            f"{kind[0].upper()}{kind[1:]} is not written as {output}.",
            f"Formats of it: {', '.join(FORMATS[kind])}.",
        )


def _package(files: list[Path]) -> str | None:
    """The vllm folder that the files stand in; None where they are of no vLLM."""
    from wstrace.vllm import arena

    for file in files:
        for folder in file.resolve().parents:
            if folder.name == "vllm" and (folder / arena.FILE).is_file():
                return str(folder)
    raise WstraceError(
        f"{files[0]} is in no vLLM.", "Run it in a checkout, or name the package with --vllm."
    )


def _one(
    vllm: str | None,
    download: bool,
    files: list[Path] | None,
    output: str,
    shown: list[str],
) -> bool | None:
    """Show one audit; whether a request of it has no reservation, None where a file's requests
    are not known."""
    from wstrace.audit.upgrade import UNRESERVED
    from wstrace.audit.vllm_tree import vllm_tree
    from wstrace.audit.whole import Audit, audit

    if files == []:
        found = Audit("", ())  # no Python file was changed
        shown.append(_shown(found, output, Path()))
    else:
        with vllm_tree(vllm, download) as tree:
            found = audit(tree.root, tree.version, files)
            shown.append(_shown(found, output, tree.root))
    if any(site.match in UNRESERVED for site in found.serving):
        return True
    return None if found.unread else False


def _shown(found: Audit, output: str, root: Path) -> str:
    """The audit in one format; a page reads its excerpts from `root` now."""
    if output == "html":
        from wstrace.report.html.audit_page import render_audit

        return render_audit(found, root)
    if output == "sarif":
        from wstrace.report.ci.audit_sarif import render

        return render(found)
    from wstrace.report.audited import as_json, as_markdown, as_text

    return {"json": as_json, "markdown": as_markdown, "text": as_text}[output](found)


def _compare(given: list[str], download: bool, output: str, shown: list[str]) -> bool | None:
    """Show what an upgrade changes; whether it brings a request without a reservation, None
    where a file's requests are not known."""
    if len(given) != 2:
        raise WstraceError(
            "A comparison needs two vLLMs.", "`wstrace audit --vllm PATH` audits one."
        )
    before, after = given
    from wstrace.audit.upgrade import upgrade
    from wstrace.audit.vllm_tree import vllm_tree
    from wstrace.audit.whole import audit
    from wstrace.report import upgraded

    with vllm_tree(before, download) as old, vllm_tree(after, download) as new:
        old_audit, new_audit = audit(old.root, old.version), audit(new.root, new.version)
        found = upgrade(old_audit, new_audit)
    unread = (*old_audit.unread, *new_audit.unread)
    if unread:
        outlet.say(f"not read, no Python of today: {', '.join(unread)}")
    shown.append(upgraded.as_json(found) if output == "json" else upgraded.as_markdown(found))
    return True if found.unreserved else None if unread else False


def _predicted(
    vllm: str | None,
    download: bool,
    given: tuple[str | None, Path | None, Platform],
    output: str,
    shown: list[str],
) -> bool:
    """Show what a deployment will do; whether something escapes in it."""
    from wstrace.audit.deployment import deployment
    from wstrace.audit.prediction import predict
    from wstrace.audit.vllm_tree import vllm_tree
    from wstrace.audit.whole import reading
    from wstrace.report import predicted

    config, model_config, platform = given
    if model_config is None:
        raise WstraceError(
            "A prediction needs the model's numbers.", "Give its config.json: --model-config."
        )
    planned = deployment(config or "", model_config, platform)
    with vllm_tree(vllm, download) as tree:
        found = predict(reading(tree.root, tree.version), planned)
        version = tree.version
    told = predicted.as_json if output == "json" else predicted.as_text
    shown.append(told(found, version))
    return bool(found.escapes)


def _joined(
    vllm: str | None, download: bool, trace: Path, output: str, shown: list[str]
) -> bool:
    """Show an audit joined with a run; whether a request of it is at risk or was too large."""
    from wstrace.audit.joined import joined
    from wstrace.audit.vllm_tree import vllm_tree
    from wstrace.audit.whole import reading
    from wstrace.cli.reading import read_runs
    from wstrace.report import predicted

    (analysed,) = read_runs([trace])
    with vllm_tree(vllm, download) as tree:
        found = joined(reading(tree.root, tree.version), analysed.run)
        version = tree.version
    if output == "json":
        shown.append(predicted.joined_json(found, version))
    else:
        shown.append(predicted.joined_text(found))
    return any(j.state in ("too small", "at risk") for j in found)


def _suggested(vllm: str | None, download: bool, wanted: list[str], shown: list[str]) -> bool:
    """Give a patch; what it does goes to stderr, so that `git apply` can read stdout."""
    from wstrace.audit.suggestion import suggest
    from wstrace.audit.vllm_tree import vllm_tree
    from wstrace.audit.whole import reading

    with vllm_tree(vllm, download) as tree:
        made = suggest(reading(tree.root, tree.version), *wanted)
    outlet.say(made.says)
    shown.append(made.patch)
    return False
