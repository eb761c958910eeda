"""Finds contradictions in a planner's answer: between its facts, its sentences, its tables, its charts and its status.

A text is what `timewheel plan` prints into a pipe, or the report's HTML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from timewheel.spark_planner.choice.constraints import max_countable

Row = Mapping[str, str]
GAP, AGAIN, SILENCE = "gap_fraction", "redelivered", "silence_seconds"
_COLUMNS = re.compile(r"\s{2,}")
_NUMBER = r"(?:over |about )?([\d,]+)"
SHORT_OF_ROOM = 3
ROUGH = 1e-6  # relative error of a float


def contradictions(facts: Mapping[str, Any], text: str, status: int | None = None) -> list[str]:
    """Return what contradicts what, in words; empty: nothing.

    Args:
        facts: Result of `planned_facts`.
        text: The terminal's text, or the page.
        status: Exit status of the command; None: unknown.
    """
    is_page = "<html" in text
    tables, words = _page(text) if is_page else _terminal(text)
    return [
        *_within(facts),
        *_exit(facts, status),
        *_sentences(facts, words),
        *_cells(facts, tables),
        *(_charts(facts, text) if is_page else ()),
    ]


def _allowed(facts: Mapping[str, Any], one: Mapping[str, Any]) -> int:
    """Return the gaps that a count of a plan may find, by its confidence interval."""
    limits, interval = facts["constraints"], one["on_this_traffic"]["confidence_interval"]
    margin = limits["gap_margin"] * (1.0 if interval is None else max(interval["high"], 1.0))
    return max_countable(limits["gap_fraction"] / margin * facts["profile"]["gap_limit_ranges"], facts["growth"])


def _within(facts: Mapping[str, Any]) -> Iterator[str]:
    """Compare the facts with each other."""
    chosen, native, growth = facts["recommended"], facts["native"], facts["growth"]
    broken = set(chosen["broken_constraints"])
    if facts["keeps_limits"] == bool(broken):
        yield f"keeps_limits is {facts['keeps_limits']}, and the plan breaks {broken}"
    for name, one in (("recommended", chosen), ("native", native)):
        count = one["on_this_traffic"]["counted"]["peak_gaps_per_partition"]["gap_count"]
        if growth == 1 and (one["gaps"]["value"], one["gaps"]["known"]) != (count, "counted"):
            yield f"{name}: {one['gaps']} beside {count} that were counted"
        if one["allowed_gaps"] != (allowed := _allowed(facts, one)):
            yield f"{name}: {one['allowed_gaps']} gaps are allowed, by its interval {allowed}"
        if (GAP in one["broken_constraints"]) != (count > allowed):
            yield f"{name}: {count} gaps were counted, {allowed} are allowed, and it breaks {broken}"
    yield from _again(facts)
    for room in facts["rooms"]:
        limit = GAP if room["limit"].startswith(f"{facts['constraints'][GAP]:.0%} of the broker's gap") else None
        limit = SILENCE if "s of silence" in room["limit"] else limit
        if limit is not None and (room["times"] < 1 - ROUGH) != (limit in broken):
            yield f"{room['limit']} is reached at {room['times']:.3f} times the volume, and the plan breaks {broken}"
    yield from _alternatives(facts)


def _again(facts: Mapping[str, Any]) -> Iterator[str]:
    """Compare what is delivered again with gaps and limits."""
    for name, one in {"recommended": facts["recommended"], "native": facts["native"], **facts["article_rules"]}.items():
        # A cursor keeps one range more than its limit.
        beyond, again = one["gaps"]["value"] > one["gap_limit_ranges"] + 1, one["delivered_again"]["value"] > 0
        is_plain = facts["profile"]["ack_format"] == "ranges" and not one["gaps"]["is_least"]
        if is_plain and beyond != again:
            yield f"{name}: {one['gaps']} of {one['gap_limit_ranges']} and {one['delivered_again']} again"
        if again and one["delivered_again"]["known"] == "counted" and not {GAP, AGAIN} & set(one["broken_constraints"]):
            yield f"{name}: {one['delivered_again']} again and breaks {one['broken_constraints']}"


def _alternatives(facts: Mapping[str, Any]) -> Iterator[str]:
    chosen, front = facts["recommended"], facts["front"]
    for one in [*front, *facts["ties"], *facts["article_rules"].values()]:
        over = one["gaps"]["value"] > one["allowed_gaps"] or one["gaps"]["is_least"]
        if one["gaps"]["known"] != "estimated" and over != (GAP in one["broken_constraints"]):
            yield f"{one['scheme']}: {one['gaps']} and breaks {one['broken_constraints']}"
    for one in [*front, *facts["ties"], *facts["article_rules"].values()]:
        fits = facts["keeps_limits"] and not one["broken_constraints"]
        if fits and one["cost_writes_per_second"] < chosen["cost_writes_per_second"] * (1 - ROUGH):
            yield f"{one['scheme']} keeps every limit and is cheaper than what is recommended"
    if facts["keeps_limits"]:
        if any(one["broken_constraints"] for one in front):
            yield "an alternative breaks a limit that the recommended plan keeps"
        own = [one for one in front if (one["scheme"], one["partitions"]) == (chosen["scheme"], chosen["partitions"])]
        if [one["gaps"] for one in own] != [chosen["gaps"]]:
            yield f"the recommended plan has {chosen['gaps']}, and among the alternatives {own}"
    steps = [(one["cost_writes_per_second"], -one["gaps"]["value"]) for one in front]
    if steps != sorted(steps) or len({gaps for _, gaps in steps}) < len(steps):
        yield "an alternative is beaten by another in cost and gaps"


def _exit(facts: Mapping[str, Any], status: int | None) -> Iterator[str]:
    wanted = 1 if not facts["keeps_limits"] else SHORT_OF_ROOM if facts["is_short_of_room"] else 0
    if status is not None and status != wanted:
        yield f"exit status {status}, where keeps_limits is {facts['keeps_limits']}"


def _sentences(facts: Mapping[str, Any], words: str) -> Iterator[str]:
    """Compare every figure of the sentences with the facts."""
    chosen, native = facts["recommended"], facts["native"]
    stays = (chosen["scheme"], chosen["partitions"]) in (("native delays", 0), ("native delays", 1))
    if ("NOT within every limit" in words) == facts["keeps_limits"]:
        yield f"the verdict beside keeps_limits {facts['keeps_limits']}"
    if ("Stay with native delays" in words) != stays or ("; with this plan" in words) != (not stays):
        yield f"the words beside {chosen['scheme']} on {chosen['partitions']}"
    if facts["rooms"]:
        room = facts["rooms"][0]
        if f"{room['limit']}: at {room['times']:,.2f} times" not in words:
            yield f"the first limit to be reached is not {room}"
    if not round(native["delivered_again"]["value"]) and "no handled message again" not in words:
        yield "the words do not say that nothing comes again"
    yield from _figures(_wanted(chosen, native, stays=stays), words)


def _wanted(
    chosen: Mapping[str, Any], native: Mapping[str, Any], *, stays: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a pattern of every figure that must be there, with the fact that it must be."""
    now, then = native["gaps"], chosen["gaps"]
    yield rf"Native delays on one partition leave {_NUMBER} gaps? \((\w+)", now
    yield rf"Gaps now[^\d]*?{_NUMBER} gaps?()", now
    yield rf"Gaps then[^\d]*?{_NUMBER} gaps?()", then
    yield rf"leaves? at most {_NUMBER} gaps?(?: in a partition)? \((\w+)", then
    why = rf"(?:fits|partitions?|breaks fewest \([^)]*\), with)[:,]? ?{_NUMBER} gaps? \((\w+)\) in a partition"
    yield why, then
    if not stays:
        yield rf"with this plan {_NUMBER} \((\w+)", chosen["delivered_again"]
    if round(native["delivered_again"]["value"]):
        yield r"delivers up to ([\d,]+) handled messages? again \((\w+)", native["delivered_again"]


def _figures(wanted: Iterable[tuple[str, Mapping[str, Any]]], words: str) -> Iterator[str]:
    for pattern, one in wanted:
        found = re.findall(pattern, words)
        if not found:
            yield f"no text like {pattern}"
        for number, known in found:
            if number != f"{one['value']:,.0f}" or known not in ("", one["known"].split()[0]):
                yield f"{number} ({known}) where it is {one}: {pattern}"


def _cells(facts: Mapping[str, Any], tables: Sequence[Sequence[Row]]) -> Iterator[str]:
    """Compare the tables with the facts, and rows of one name in several tables with each other."""
    named = {"recommended": facts["recommended"], "today: native": facts["native"], **facts["article_rules"]}
    seen = set()
    for row in (row for table in tables for row in table):
        one = named.get(row["name"])
        if one is None or "known" not in row:
            continue
        seen.add(row["name"])
        share = f"{one['gaps']['value'] / max(one['gap_limit_ranges'], 1):.0%}"
        texts = {
            "gaps": f"{one['gaps']['value']:,.0f}",
            "known": one["gaps"]["known"],
            "of its limit": share,
            "again after unload": f"{one['delivered_again']['value']:,.0f}",
            "partitions": str(one["partitions"]),
        }
        for column, text in texts.items():
            if row[column].removeprefix("over ") != text:
                yield f"{row['name']}: {column} is {row[column]} in a table, and {text}"
        for limit, word in ((GAP, "gaps"), (SILENCE, "silence")):
            if (word in row["breaks"]) != (limit in one["broken_constraints"]):
                yield f"{row['name']} breaks {row['breaks']} in a table, and {one['broken_constraints']}"
    if seen < named.keys():
        yield f"no row of {named.keys() - seen}"
    rooms = {room["limit"]: f"{room['times']:,.2f}" for room in facts["rooms"]}
    found = {row["name"]: row["times the volume planned for"] for table in tables for row in table
             if "times the volume planned for" in row}  # fmt: skip
    if found != rooms:
        yield f"rooms {found} in a table, and {rooms}"


def _charts(facts: Mapping[str, Any], html: str) -> Iterator[str]:
    """Compare the legend, the marker of the recommended plan, and the sliders' start with the facts."""
    now, then = (f"{one['gaps']['value']:,.0f}" for one in (facts["native"], facts["recommended"]))
    for pattern, wanted in (
        (r'"native, 1 partition: peak ([\d,]+)"', now),
        (r'"this plan(?:, of \d+)?: peak ([\d,]+)"', then),
    ):
        if set(re.findall(pattern, html)) - {wanted}:
            yield f"a legend has {set(re.findall(pattern, html))}, where it is {wanted}"
    dots = re.findall(r'\{"kind": "recommended", [^{}]*?"y": ([\d.]+)[^{}]*\}', html)
    if {f"{float(dot):,.0f}" for dot in dots} != {then}:
        yield f"the chart's marker is at {dots}, where it is {then}"
    sliders = re.search(r'id="what-if-statistic">(.*?)</script>', html)
    if sliders is not None:
        statistic = json.loads(sliders[1])
        own = dict(zip(statistic["fields"], statistic["options"][statistic["recommended"]], strict=True))
        partitions = max(facts["recommended"]["partitions"], 1)
        begins = max(own["gaps"] / partitions, own["stuck"]) * own["share"]
        if abs(begins - facts["recommended"]["gaps"]["value"]) > max(1, ROUGH * begins) and facts["keeps_limits"]:
            yield f"the sliders begin at {begins:,.1f} gaps, where it is {then}"


def _terminal(text: str) -> tuple[list[list[Row]], str]:
    tables: list[list[Row]] = []
    for block in re.split(r"\n\s*\n", text):
        _, *lines = block.splitlines() or [""]
        header, *rows = [_COLUMNS.split(line) for line in lines] or [[]]
        names = ["name", *header[1:]]
        if len(header) > 2 and all(len(row) == len(names) for row in rows):
            tables.append([dict(zip(names, row, strict=True)) for row in rows])
    return tables, text


class _Reader(HTMLParser):
    """Collects the texts of a page, and its tables."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._is_script = tag in ("script", "style")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_script = self._is_script and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._is_script:
            return
        self.words.append(data)
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data.strip()


def _page(html: str) -> tuple[list[list[Row]], str]:
    reader = _Reader()
    reader.feed(html)
    tables: list[list[Row]] = [
        [dict(zip(["name", *rows[0][1:]], row, strict=True)) for row in rows[1:]] for rows in reader.tables if rows
    ]
    return tables, " ".join(" ".join(reader.words).split())
