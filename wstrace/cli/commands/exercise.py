"""`wstrace exercise --url URL`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from wstrace.exercise.send import Outcome

URL = Annotated[str, typer.Option("--url", help="The server, such as http://127.0.0.1:8000.")]
MODEL = Annotated[
    str | None, typer.Option("--model", help="Served model name (default: the first).")
]
REQUESTS = Annotated[int, typer.Option("--max-requests", min=1, max=4096)]
WAIT = Annotated[
    float, typer.Option("--wait", min=0, max=86400, help="Seconds to wait for a ready server.")
]
SECONDS = Annotated[float, typer.Option("--max-seconds", min=1, max=86400)]


def command(
    url: URL,
    model: MODEL = None,
    max_requests: REQUESTS = 32,
    max_seconds: SECONDS = 120,
    wait: WAIT = 0,
) -> None:
    """Send a server the few requests that reach the corners.

    A gate needs them: what was not reached was not judged.

    Exit 0 when all were answered, 1 when the server died, failed or refused one, 2 when
    nothing answers at the URL. A key comes from the variable VLLM_API_KEY.
    """
    from wstrace.exercise.client import Client
    from wstrace.exercise.corners import corners_within
    from wstrace.exercise.send import FIRST_ANSWER_SECONDS, exercise

    client = Client(url)
    client.wait(wait)
    served = client.model(model, min(FIRST_ANSWER_SECONDS, max_seconds))
    corners, left_out = corners_within(served.max_model_len, max_requests)
    outcome = exercise(client, served, corners, max_seconds)
    typer.echo("\n".join(_table(outcome, left_out)))
    raise typer.Exit(outcome.exit_code)


def _table(outcome: Outcome, left_out: list[str]) -> list[str]:
    """What was sent and how it was answered, a line a corner."""
    model = outcome.model
    lines = [f"{model.name}, max_model_len {model.max_model_len:,}", ""]
    row = "{:<16} {:>8} {:>14} {:>9}  {}".format
    lines.append(row("corner", "requests", "longest prompt", "seconds", "answers"))
    for sent in outcome.sent:
        calls = sent.corner.calls
        seconds = max((a.seconds for a in sent.answers), default=0.0)
        longest = f"{max(len(c.prompt) for c in calls):,}"
        lines.append(
            row(sent.corner.name, len(calls), longest, f"{seconds:.1f}", sent.statuses)
        )
    lines += [row(name, 0, "-", "-", "left out: --max-requests") for name in left_out]
    return [*lines, "", f"wstrace exercise: {outcome.sentence}"]
