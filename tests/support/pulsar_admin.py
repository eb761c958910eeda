"""Arguments that ``pulsar-admin`` accepts for the commands that we print: Maven has neither 4.0.7 nor 4.2.4 of the
tool.

Read in apache/pulsar, ``pulsar-client-tools/src/main/java/org/apache/pulsar/admin/cli``: `CmdTopicPolicies`,
`CmdNamespaces`, `CmdTopics`, `CmdBrokers` and `CmdTenants`, in a version of about 3.0, which parses with JCommander,
and in a version of about 4.1, which parses with picocli. Options that both versions accept are listed; options that
only the later version accepts are marked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

TOPIC = re.compile(r"persistent://[^/ ]+/[^/ ]+/[^/ ]+")
NAMESPACE = re.compile(r"[^/ ]+/[^/ ]+")
TENANT = re.compile(r"[^/ ]+")
NOTHING = re.compile(r"")
NONE = re.compile(r"0")
WHOLE = re.compile(r"\d+")
NUMBER = re.compile(r"\d+(\.\d+)?")
NAME = re.compile(r".+")
TIME = re.compile(r"\d+s")
QUOTA = re.compile(r"destination_storage|message_age")
START = re.compile(r"latest|earliest|\d+:\d+")
CLUSTERS = re.compile(r"[\w.-]+(,[\w.-]+)*")
ACTIONS = re.compile(r"(produce|consume)(,(produce|consume))*")
MODE = re.compile(r"delete_when_no_subscriptions|delete_when_subscriptions_caught_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A sub-command."""

    about: re.Pattern[str]
    needs: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    takes: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()  # options without a value; exactly one of them must be given


_COPIES = {"-e": WHOLE, "-w": WHOLE, "-a": WHOLE, "-r": NUMBER}
_SWITCH = frozenset({"--enable", "--disable", "-e", "-d"})
_PAUSE = "remove-dispatcher-pause-on-ack-state-persistent"

COMMANDS: Mapping[tuple[str, str], Command] = {
    ("topicPolicies", "set-message-ttl"): Command(about=TOPIC, needs={"-t": WHOLE}),
    # A time without a unit is minutes in the earlier version, seconds in the later.
    ("topicPolicies", "set-retention"): Command(about=TOPIC, needs={"-t": NONE, "-s": NONE}),
    ("topicPolicies", "set-delayed-delivery"): Command(
        about=TOPIC,
        takes={"-t": TIME, "-md": TIME},  # -md since 4
        flags=_SWITCH,
    ),
    ("topicPolicies", "set-deduplication"): Command(about=TOPIC, flags=_SWITCH),
    ("topicPolicies", "set-persistence"): Command(about=TOPIC, needs=_COPIES),
    ("topicPolicies", "set-max-unacked-messages-per-consumer"): Command(about=TOPIC, needs={"-m": WHOLE}),
    ("topicPolicies", "set-max-unacked-messages-per-subscription"): Command(about=TOPIC, needs={"-m": WHOLE}),
    ("topicPolicies", "set-inactive-topic-policies"): Command(
        about=TOPIC,
        needs={"--max-inactive-duration": TIME, "--delete-mode": MODE},
        flags=frozenset({"--enable-delete-while-inactive", "--disable-delete-while-inactive"}),
    ),
    ("topicPolicies", "set-replication-clusters"): Command(about=TOPIC, needs={"-c": CLUSTERS}),
    ("topicPolicies", "set-compaction-threshold"): Command(about=TOPIC, needs={"-t": NONE}),
    ("topicPolicies", "remove-deduplication"): Command(about=TOPIC),
    ("topicPolicies", "remove-backlog-quota"): Command(about=TOPIC, takes={"-t": QUOTA}),
    ("topicPolicies", "remove-max-message-size"): Command(about=TOPIC),
    ("topicPolicies", _PAUSE): Command(about=TOPIC),  # since 4
    ("namespaces", "create"): Command(about=NAMESPACE),
    ("namespaces", "set-subscription-expiration-time"): Command(about=NAMESPACE, needs={"-t": WHOLE}),
    ("namespaces", "set-auto-topic-creation"): Command(about=NAMESPACE, flags=_SWITCH),
    ("namespaces", "set-persistence"): Command(about=NAMESPACE, needs=_COPIES),
    ("namespaces", "set-is-allow-auto-update-schema"): Command(about=NAMESPACE, flags=_SWITCH),
    ("namespaces", "set-schema-validation-enforce"): Command(about=NAMESPACE, flags=_SWITCH),
    ("namespaces", "set-max-unacked-messages-per-consumer"): Command(about=NAMESPACE, needs={"-c": WHOLE}),
    ("namespaces", "remove-backlog-quota"): Command(about=NAMESPACE, takes={"-t": QUOTA}),
    ("namespaces", _PAUSE): Command(about=NAMESPACE),  # since 4
    ("topics", "create-subscription"): Command(about=TOPIC, needs={"-s": NAME}, takes={"-m": START}),
    ("topics", "unsubscribe"): Command(about=TOPIC, needs={"-s": NAME}),
    ("topics", "delete"): Command(about=TOPIC),
    ("topics", "delete-partitioned-topic"): Command(about=TOPIC),
    ("topics", "lookup"): Command(about=TOPIC),
    ("topics", "stats"): Command(about=TOPIC),
    ("topics", "unload"): Command(about=TOPIC),
    ("topics", "grant-permission"): Command(about=TOPIC, needs={"--role": NAME, "--actions": ACTIONS}),
    ("tenants", "create"): Command(about=TENANT),
    ("brokers", "update-dynamic-config"): Command(
        about=NOTHING, needs={"--config": re.compile(r"\w+"), "--value": re.compile(r"[\w.-]+")}
    ),
}


def lines_in(text: str) -> Iterator[str]:
    """Yield the lines for ``pulsar-admin`` in a sentence; each line ends at a semicolon, comma or bracket."""
    for found in re.findall(r"pulsar-admin [^;,()]+", text):
        yield found.strip()


def problem_of(line: str) -> str | None:
    """Return the error that the tool would report for a line; None: the line is valid."""
    program, *words = shlex.split(line)
    if program != "pulsar-admin" or len(words) < 2:
        return "no command"
    command = COMMANDS.get((words[0], words[1]))
    if command is None:
        return f"no command {words[0]} {words[1]}"
    return _misuse_of(command, words[2:])


def _misuse_of(command: Command, words: list[str]) -> str | None:
    values = {**command.needs, **command.takes}
    arguments: list[str] = []
    options: dict[str, str] = {}
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in command.flags:
            flags.append(word)
        elif word.startswith("-"):
            if word not in values:
                return f"no option {word}"
            options[word] = next(rest, "")
        else:
            arguments.append(word)
    if lacking := command.needs.keys() - options.keys():
        return f"{', '.join(sorted(lacking))} is required"
    if bad := [name for name, value in options.items() if not values[name].fullmatch(value)]:
        return f"{bad[0]} {options[bad[0]]} is no value"
    if command.flags and len(flags) != 1:
        return "one of the switches is wanted"
    if not command.about.fullmatch(" ".join(arguments)):
        return f"it is about {' '.join(arguments) or 'nothing'}"
    return None
