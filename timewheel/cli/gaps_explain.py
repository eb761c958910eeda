"""`timewheel gaps explain`: shows the causes of a subscription's gaps, in shares, and their remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import AsJson, GapLimit, type_words, with_options
from timewheel.cli.terminal import progress_bar, render, say, show_line
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from timewheel.inspect.gaps.explain import Advice, Explained


@with_options
def explain(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="persistent://tenant/namespace/topic.", show_default=False)
    ],
    *,
    subscription: Annotated[
        str | None,
        typer.Option("--subscription", help="Subscription to explain; else the subscription with the most gaps."),
    ] = None,
    holes: Annotated[
        int, typer.Option("--holes", min=1, max=100_000, help="Stretches of open entries to sample.")
    ] = 400,
    entries: Annotated[
        int, typer.Option("--samples", min=1, max=100_000, help="Entries of the topic to sample for their delays.")
    ] = 2_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the samples.")] = 0,
    limit: GapLimit = None,
    cluster: AdminOptions,
    as_json: AsJson = False,
) -> None:
    """Explain why a subscription has gaps: mixed delays, slow consumers, hot keys or single acknowledgements; and the
    cure.

    The command samples open entries between acknowledged entries, and looks at the connected consumers. Nothing is
    consumed or changed.
    """
    from timewheel.inspect.gaps.explain import advice_on
    from timewheel.inspect.gaps.explain import explain as look_into
    from timewheel.inspect.gaps.snapshot import full_name
    from timewheel.inspect.profile import limit_of

    with (
        cluster.admin() as admin,
        progress_bar("looking at entries") as on_progress,
    ):
        known = limit_of(admin, gap_limit_ranges=limit)
        found = look_into(
            admin,
            full_name(topic),
            subscription,
            known.profile,
            holes=holes,
            entries=entries,
            seed=seed,
            on_progress=on_progress,
        )
    advice = advice_on(found, known.profile, gap_limit=limit, reached_by=cluster.words)
    gap_limit = f"{known.profile.gap_limit_ranges:,}, {known.source}"
    render(_facts(found, advice), lambda console: _show(console, found, advice, gap_limit), as_json=as_json)


def _show(console: Console, found: Explained, advice: Sequence[Advice], limit: str) -> None:
    gaps = found.gaps
    found_gaps = counted(gaps.gap_count, "gap")
    say(console, f"{gaps.topic}, subscription {gaps.subscription} ({type_words(gaps.worst.type)}): {found_gaps}.")
    say(console, f"The limit is {limit}; {100 * gaps.worst.share:.0f} % of it used by the fullest partition.")
    if not advice:
        say(console, "Nothing is acknowledged out of order: there is nothing to explain.")
        return
    if found.inspected < found.holes:
        say(console, f"Of {found.holes:,} stretches of open entries {found.inspected:,} were sampled.")
    if found.unreadable:
        say(
            console,
            f"In {found.unreadable:,} of them the sampled entry could not be read, and is not counted.",
        )
    for one in advice:
        error = f" +- {100 * one.share.error:.0f}" if one.share.error else ""
        say(console, "")
        say(console, f"{100 * one.share.share:.0f}{error} % of the gaps: {one.share.cause.value}", style="bold")
        for name, texts in (("seen", one.evidence), ("helps", one.helps)):
            for text in texts:
                say(console, f"{name:6}{text}", indent=2)
        for some in one.tries:
            if some.when:
                say(console, f"{some.when}:", indent=2)
            for command in some.commands:
                show_line(console, f"  {'try':6}{command}")


def _facts(found: Explained, advice: Sequence[Advice]) -> dict[str, Any]:
    gaps = found.gaps
    return {
        "topic": gaps.topic,
        "subscription": gaps.subscription,
        "shadow": found.shadow,
        "type": gaps.worst.type,
        "at_ms": found.at_ms,
        "gaps": gaps.gap_count,
        "gaps_of_worst": gaps.worst.gap_count,
        "gap_limit": gaps.worst.gap_limit,
        "holes": found.holes,
        "looked_into": found.inspected,
        "unreadable": found.unreadable,
        "delayed": gaps.delayed,
        "stale_at_least": gaps.stale_entries,
        "unknown": gaps.unknown,
        "unacked": gaps.unacked,
        "causes": [
            {
                "cause": one.share.cause.name.lower(),
                "share": round(one.share.share, 4),
                "error": round(one.share.error, 4),
                "seen": list(one.evidence),
                "helps": list(one.helps),
                "try": [{"when": some.when, "commands": list(some.commands)} for some in one.tries],
            }
            for one in advice
        ],
    }
