"""The claims of docs/evidence.md: each one is a line, from the rows of its proofs.

In `found` a name in braces is a figure of the rows, with its greatest value of all plays. A word before the name asks
for another value: ``sum`` of all, ``least``, ``farthest`` from zero, or ``apart``, the greatest difference of two
figures in percent of the first. Of a value with several numbers the last one is compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PLACE = re.compile(r"\{(?:(sum|least|farthest|apart) )?([^}]+)\}")
"""A figure in `found`: the word before its name, and its name."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A line of the page."""

    proofs: str
    test: str
    text: str
    found: str

    def covers(self, proof: str) -> bool:
        """Return whether a proof belongs to the claim."""
        return re.fullmatch(self.proofs, proof) is not None

    @property
    def figures(self) -> set[str]:
        """The figures that it takes from its rows."""
        places = PLACE.findall(self.found)
        return {one for kind, name in places for one in (name.split("/") if kind == "apart" else [name])}


_SHARED = {
    "<killed>": "{sum kills} kills, {sum timers} timers: lost {lost}, early {early}",
    "<copies>": "extra copies {extra copies on time}, of late hops {extra copies late}",
    "<cancelled>": "{sum kills} kills, {sum certain} of {sum timers} cancelled for certain: "
    "handled {certain yet handed}; lost {lost}",
    "<good>": "{kinds} kinds: of {sum good ones} good ones lost {lost}, twice {twice}, early {early}; "
    "{latest ms} ms late",
}
"""What several claims say of their figures."""
_TEXT = """
## Processes killed
(one relay|three relays) killed.*
chaos/test_relay_killed.py: Relays killed, frozen, topics unloaded; tiers
<killed>, <copies>
two relays killed, (broker-held tiers|one ring|two rings)
chaos/test_relay_killed.py: The same; broker-held tiers, rings
<killed>, <copies>
two relays killed, a due topic without partitions.*
chaos/test_relay_killed.py: The same; an unpartitioned due topic
<killed>, <copies>
the plan changed: .*
chaos/test_plan_changed.py: Relays killed while the plan changes, in 13 ways
{sum kills} kills, {sum timers} timers: lost {lost}, handled twice {handled twice}, dead {dead}
sends in runs, stressed
chaos/test_sends_stressed.py: Eight threads send; broker frozen, producers closed, forks
{sum sends} sends, {sum freezes} freezes: lost {lost}, failed yet stored {denied}
flush_async beside a close
contract/test_flush_async.py: A close beside `flush_async`
hung for good, at the latest at close {closes}
a rolling restart of relay services
chaos/test_rolling_restart.py: Rolling restart of relays
{sum restarts} restarts, {sum timers} timers: lost {lost}, <copies>; {late at most ms} ms late
a relay service told to end
chaos/test_relay_told_to_end.py: Relays ended by SIGTERM
{sum ends} ends, {sum timers} timers: lost {lost}, <copies>
a relay that cannot begin says why: .*
broker/test_connection.py: A relay that cannot connect reports why
after {said after (s)} s
the broker killed
chaos/test_broker_killed.py: Broker killed
<killed>, <copies>
a broker with buckets, quotas and retention
chaos/test_brokers_as_set.py: Broker set as in production killed, topics unloaded; all schemes
<killed>; handled twice {handled twice}
two consumers killed, their relays with them
chaos/test_consumer_killed.py: Consumers killed with their relays
<killed>; handled twice {handled twice}, after acknowledgement {repeated though settled}
consumers killed while they try again, with an inbox
chaos/test_retried.py: Consumers killed during retries, with an inbox
{sum kills} kills, {sum timers} timers: lost {lost}, forked chains {forked chains}, extra calls {calls beyond one for \
each attempt}, parked twice {parked twice}
inbox killed, (redis|sqlite)
inbox/test_killed.py: Inbox of claims (Redis, SQLite) killed
{sum kills} kills, {sum messages} messages: lost {lost}, effects twice {effects twice}
inbox killed, sql-.*
inbox/test_killed.py: Inbox in the user's transaction killed
{sum kills} kills, {sum messages} messages: lost {lost}, effects twice {effects twice}
relays killed while timers are cancelled
chaos/test_cancelled.py: Relays killed while timers are cancelled
<cancelled>
consumers killed while timers are cancelled
chaos/test_cancelled.py: Consumers killed while timers are cancelled
<cancelled>, handled twice {handled twice}
the broker killed while timers are cancelled
chaos/test_broker_killed.py: Broker killed while timers are cancelled
<cancelled>
## Shadow
two shadows killed, .*
chaos/test_shadow_killed.py: Shadows killed, the topic unloaded
<killed>, copies handled {copies handled}, {latest ms} ms late
the broker of a shadow killed
chaos/test_shadow_killed.py: Broker of a shadow killed
<killed>, copies handled {copies handled}, {latest ms} ms late
a sick topic under a Java service
chaos/test_shadow_sick_topic.py: A topic full of gaps cured under a Java service
{far timers} timers, {least moved a second} moved a second, cured after {cured after s} s: {gaps before} gaps to \
{gaps after}; lost {lost}, handled twice {handled twice}, {latest ms} ms late; put back in {put back in s} s
plain clients, one unload: native against shadow
chaos/test_shadow_table.py: One unload, native / with a shadow
{timers on each} timers each: gaps {most gaps}, handled again {handled again}, lost {lost}, latest ms {latest ms}
## Cluster
a cluster, play .*
chaos/test_cluster.py: Nodes of a cluster killed, frozen, restarted, upgraded; three replicas
{sum faults} faults, {sum timers} timers of {sum attempted}: lost {lost}, early {early}, stuck {stuck}, twice by one \
host {twice by one host}, in all {sum twice in all}; on the same topics {sum twice beside plain clients}, plain \
clients {sum by plain clients beside them}; silent {longest silence ms} ms, a send {longest send ms} ms
a soak
chaos/test_cluster.py: A soak: nodes and services killed, frozen, deployed, plans changed; all schemes
{minutes} minutes at {least timers a second}/s, {sum faults} faults, {sum timers} timers of {sum attempted}: \
lost {lost}, early {early}, stuck {stuck}, twice by one host {twice by one host}, in all {sum twice in all}
a shadow on a cluster
chaos/test_cluster.py: The same under a shadow
{sum faults} faults, {sum timers} timers: lost {lost}, copies handled {copies handled}, {latest ms} ms late
topics transferred by the extensible load manager
broker/test_moved_topics.py: Topics transferred by the extensible load manager; three replicas
of {timers of each} timers handled twice a move {handled twice a move}, by plain clients {by plain clients}, with an \
inbox {with an inbox}; in {moves} moves at the same moment {at the same moment}
## Odd messages
odd messages: .*
chaos/test_odd_messages.py: Hostile messages keep no good one back; six kinds of topic
<good>
odd entries between good ones
broker/test_looked_at.py: A reader gets every good entry
{odd} odd, {good} good
what (Go|Java)'s client can send, in a .*
chaos/test_odd_messages_of_clients.py: The same from Go and Java; four kinds of topic
<good>
parts of a message that stop a plain Shared subscription
chaos/test_odd_messages.py: Lone chunks stop a plain Shared subscription
{stopped} of {cases}; after a skip {gone on once skipped} go on
messages that end a plain client
chaos/test_odd_messages.py: Messages that end a plain consumer
{kinds} kinds tried, pulsar-client {pulsar-client}
entries that say they are huge, looked at by the admin API
broker/test_looked_at.py: Entries of false size end a broker that the admin API asks
{entries} of {bytes each} bytes that claim {each says, MB} MB; heap {heap, MB} MB
## Controls: a broken rule is found
control: (both of these|wall clock)
chaos/test_controls.py: Other numbers or routes of hops lose
of {timers} lost at least {least lost}; sound twin {its twin lost}
control: (not cut at the mark|numbered by the start|without deduplication)
chaos/test_controls.py: Other groups, or no deduplication, copy
of {timers} copied at least {least extra copies on time}; sound twin {its twin's extra copies}
control: cancellations that can be taken back
chaos/test_cancelled.py: Cancels that can be taken back lose
of {timers} lost {least lost}
control: a shadow that .*
chaos/test_shadow_controls.py: Shadows that acknowledge first, or number late hops, lose
of {timers} lost at least {least lost}; sound twin {its twin lost}
control on a cluster: a dead producer stays
chaos/test_cluster.py: Producers that are not replaced after write outages hold timers back
of {attempted} stored at most {timers}; stuck at least {least stuck}
control on a cluster: a send has no deadline
chaos/test_cluster.py: Sends without a deadline of ours last as long as the outage
{least longest send ms} ms
control on a cluster: held timers are not let go
chaos/test_cluster.py: Replicas that keep what they hold at a move handle it twice
{sum moves} moves, two replicas at the same moment {least at the same moment}; sound twin {its twin at the same moment}
## Commands and demo
the whole demo
broker/test_demo.py: Whole demo, native / our schemes
{timers} timers: gaps {native's peak} / {the others' highest}, delivered again {natively delivered again} / {by the \
others at most}; ours lost {lost by ours}, twice {handled twice by our consumers}, early {early by our consumers}
`timewheel gaps` on a cluster
behaviour/test_gaps.py: `timewheel gaps` of many partitions
{partitions} in {took, s} s
what `timewheel gaps` says .*
broker/test_gap_reload.py: `timewheel gaps` foretells an unload; also 2.10.5, 3.0.7
{sum states} states, up to {messages again, at most} messages again, off {wrong by}
`timewheel whereis`, .*
behaviour/test_whereis.py: `timewheel whereis` finds each timer; four schemes
{least found}; reads {reads}; at most 5 in {least with at most 5}
every panel of the dashboard has something to show
broker/test_monitoring.py: Each panel of the dashboard shows something
{panels} panels, empty {empty}
## Planner
ranges counted .*
broker/test_planner_gaps.py: Gaps counted as the broker counts them
{sum timers} timers, peak {peak}: off {off at most}
peak predicted from the history: .*
broker/test_planner_gaps.py: Peak predicted from the history
off {farthest predicted}
a correlated history: .*
broker/test_planner_gaps.py: Delays that depend on each other: counted, not estimated
counted {farthest counted}; the law alone {farthest the law}
evaluation beside the exact count: .*
planner/test_accuracy.py: Estimate beside the exact count; 8 workloads
off {off at most} of {least native peak} or more
the cheapest plan at .*
planner/test_decisions.py: No cheaper plan keeps the limits; 60 histories of dependent delays
{sum histories} decisions, {sum plans counted by hand} plans counted by brute force
dependent delays, .*
planner/test_decisions.py: The law of dependent delays; 12 histories
native gaps off by up to {apart native by the law/native counted}
.* days of a process with delays up to 30
planner/test_band.py: Band at 95 % from 7 and 14 days, for 150
within it {least peak of 150 days within the band} of {seeds} seeds, width {mean width of it, percent} %
odd histories, .*
planner/test_band.py: Band of calendars, tiers and rings; 44 histories of unlike days
within it {least peak of 150 days within the band} or more, within half of it {least within a band half as wide}
what an unload brings again: .*
broker/test_planner_unload.py: Messages again after an unload predicted; 3 workloads
worst off {apart worst/worst predicted}, mean {apart mean/mean predicted}
what an unload brings again, played in real time: .*
broker/test_planner_unload.py: The same in real time
off {apart again/predicted}
the planner on a master and two workers, .*
planner/test_cluster.py: Planner on a Spark cluster, beside one process
plan {plan}, page {page}
a fleet on two workers, with .*
planner/test_cluster.py: Driver of a 4,000-topic fleet
Python {Python MB} MB, Java {Java MB} MB
"""
"""The page's headings; below each one its claims, in three lines: proofs; test and text; figures."""


def _claims(lines: list[str]) -> tuple[Claim, ...]:
    found = []
    for proofs, place, figures in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        test, _, text = place.partition(": ")
        found.append(Claim(proofs, test, text, figures))
    return tuple(found)


def _read() -> dict[str, tuple[Claim, ...]]:
    text = _TEXT
    for name, said in _SHARED.items():
        text = text.replace(name, said)
    sections = (section.strip().splitlines() for section in text.split("## ")[1:])
    return {heading: _claims(lines) for heading, *lines in sections}


CLAIMS = _read()  # by the page's headings
