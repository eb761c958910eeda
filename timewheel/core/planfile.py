"""Plan file: TOML outside, a frozen `Plan` inside. This is the only module in which pydantic checks a plan's form.

The form (types, unknown keys, exactly one scheme table) is checked here, once; `Plan` itself checks the rules.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictBool, ValidationError

from timewheel.core.cancel_policy import Cancel, WhenBlind
from timewheel.core.connection import Connection
from timewheel.core.durations import format_duration, parse_duration
from timewheel.core.errors import PlanError
from timewheel.core.near_words import did_you_mean
from timewheel.core.plan import Calendar, Holder, Native, Plan, Readers, RelayPlace, Ring, Scheme, Tiered, Wheel
from timewheel.core.secret import Secret
from timewheel.core.toml_errors import QUOTING, line_of, lines_of, mended_line

FORMAT = 1
MAX_FILE_BYTES = 64_000
"""A plan takes a few hundred bytes, 64 long names of subscriptions 17,000; the time of TOML's reader grows with the
square of a key's dots.
"""


def _known_format(number: int) -> int:
    if number != FORMAT:
        raise ValueError(f"this timewheel reads format {FORMAT}")
    return number


_Duration = Annotated[int, BeforeValidator(parse_duration)]
_Format = Annotated[int, AfterValidator(_known_format)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Native(_Table):
    pass


class _Tiered(_Table):
    window: _Duration
    tiers: list[_Duration]
    hold: Holder = "relay"


class _Calendar(_Table):
    interval: _Duration = Calendar().interval_ms


class _Ring(_Table):
    slot: _Duration
    slots: int
    headstart: _Duration | None = None


class _Wheel(_Table):
    rings: list[_Ring]


class _Cancel(_Table):
    keep: _Duration | None = None
    skew: _Duration | None = None
    on_log_unavailable: WhenBlind = Cancel().on_log_unavailable


class _File(_Table):
    format: _Format  # first, so that a later format is reported before its new keys are
    due_topic: str
    subscriptions: list[str]
    revision: int = 1
    partitions: int = 1
    holding_namespace: str | None = None
    max_delay: _Duration | None = None
    relay: RelayPlace = "embedded"
    readers: Readers = "timewheel"
    guard: _Duration | None = None
    tick: _Duration | None = None
    jitter: _Duration | None = None
    former_intervals: list[_Duration] = []
    former_namespaces: list[str] = []
    native: _Native | None = None
    tiered: _Tiered | None = None
    calendar: _Calendar | None = None
    wheel: _Wheel | None = None
    cancel: _Cancel | None = None
    retry: StrictBool = False
    intake: StrictBool = False


_TABLES: Mapping[str, type[_Table]] = {
    "": _File,
    "native": _Native,
    "tiered": _Tiered,
    "calendar": _Calendar,
    "wheel": _Wheel,
    "rings": _Ring,
    "cancel": _Cancel,
}
EXAMPLES = (
    f"format = {FORMAT}",
    'due_topic = "persistent://public/default/reminders"',
    'subscriptions = ["billing"]',
    "revision = 1",
    "partitions = 4",
    'holding_namespace = "public/holding"',
    'max_delay = "30d"',
    'guard = "10m"',
    'tick = "1s"',
    'jitter = "30s"',
    'former_intervals = ["1d"]',
    'former_namespaces = ["public/holding"]',
    "retry = true",
    "intake = true",
    'window = "12h"',
    'tiers = ["12h", "1d", "5d"]',
    'interval = "1d"',
    'rings = [{slot = "1d", slots = 32}]',
    'slot = "1d"',
    "slots = 32",
    'headstart = "1h"',
    'keep = "3d"',
    'skew = "5s"',
)
"""The line of each key that has more than a few values, for errors."""
_OF_CONNECTION = {"connection", "connections", "oauth2", *(field.name for field in fields(Connection) if field.compare)}
"""Keys of a connection that a user may put into a plan by mistake."""
_ONE_VALUE = r"""(?:\d+|"[^"\n]*"|'[^'\n]*'|\[[^\]#]*\])"""
"""A number, a text, or a list without comments inside."""
_SCHEMES = ("native", "tiered", "calendar", "wheel")


def load_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        PlanError: The file is unreadable, is not TOML, or breaks a rule; the error names file, field, value and limit.
    """
    return parse_plan(read_plan_text(Path(path)), path)


def read_plan_text(path: Path) -> str:
    """Read the text of a file that can be a plan.

    Raises:
        PlanError: The file cannot be read, or cannot be a plan.
    """
    if path.exists() and not path.is_file():
        raise PlanError("file", str(path), "must be a regular file: a pipe, a device or a folder may never end")
    try:
        # Read at most that much, whatever size the file claims to have.
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")  # some editors begin a file with the mark of UTF-8
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path with a null character
        raise PlanError("file", str(path), f"must be a readable UTF-8 file ({error})") from error
    if len(content) > MAX_FILE_BYTES:
        raise PlanError("file", str(path), f"at most {MAX_FILE_BYTES} bytes")
    return text


def parse_plan(text: str, file: str | Path = "") -> Plan:
    """Read a plan from the text of a plan file; see `load_plan` for the errors.

    Args:
        text: TOML.
        file: The file's path, for errors.
    """
    try:
        return _parsed(text)
    except PlanError as error:
        error.in_file(file)
        raise


def _parsed(text: str) -> Plan:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: numbers and nesting without end
        raise _no_toml(text, error) from error
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        told = _as_plan_error(error)
        raise told from (None if isinstance(told.value, Secret) else error)
    return _to_plan(file)


def _no_toml(text: str, error: Exception) -> PlanError:
    """Return the error for a text that is no TOML: with the line, and with the same line in quotes if that helps."""
    limit = f"must be TOML: {error}"
    line = lines_of(text)[line_of(error) - 1].strip() if line_of(error) else text[:40]
    if line.partition("=")[0].strip() in _OF_CONNECTION:
        return PlanError("file", Secret(""), limit)
    mended = mended_line(text, error)
    return PlanError("file", line, f"{limit}; {QUOTING}: write {mended}" if mended else limit)


def dump_plan(plan: Plan) -> str:
    """Return the text of a plan's file; `parse_plan` reads the same plan back."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "revision": plan.revision,
        "due_topic": plan.due_topic,
        "partitions": plan.partitions,
        "subscriptions": list(plan.subscriptions),
        "max_delay": format_duration(plan.max_delay_ms),
        "relay": plan.relay,
        "readers": plan.readers,
        "guard": format_duration(plan.guard_ms),
        "tick": format_duration(plan.tick_ms),
    }
    if plan.jitter_ms:
        data["jitter"] = format_duration(plan.jitter_ms)
    if plan.retry:
        data["retry"] = True
    if plan.intake:
        data["intake"] = True
    if plan.holding_namespace is not None:
        data["holding_namespace"] = plan.holding_namespace
    if plan.former_intervals_ms:
        data["former_intervals"] = [format_duration(interval_ms) for interval_ms in plan.former_intervals_ms]
    if plan.former_namespaces:
        data["former_namespaces"] = list(plan.former_namespaces)
    data |= _scheme_table(plan.scheme)
    if plan.cancel is not None:
        data["cancel"] = {
            "keep": format_duration(plan.cancel.keep_ms),
            "skew": format_duration(plan.cancel.skew_ms),
            "on_log_unavailable": plan.cancel.on_log_unavailable,
        }
    return tomli_w.dumps(data)


def edit_plan(text: str, plan: Plan) -> str:
    """Change revision, window and tiers in the text of a plan's file; order, form and comments stay.

    Args:
        text: Text of a plan that differs from ``plan`` in nothing else.
        plan: Plan with tiers.

    Raises:
        PlanError: The text is written in a form in which comments would be lost.
    """
    table: dict[str, Any] = {"revision": plan.revision, **_scheme_table(plan.scheme)["tiered"]}
    edited = text
    if not re.search(r"(?m)^\s*revision\s*=", text):
        edited = re.sub(r"(?m)^(\s*format\s*=.*)$", r"\1\nrevision = 1", edited, count=1)
    for key, value in table.items():
        one = rf"(?m)^(\s*{key}\s*=\s*){_ONE_VALUE}"
        edited = re.sub(one, rf"\g<1>{json.dumps(value)}", edited, count=1)
    try:
        is_meant = parse_plan(edited) == plan
    except PlanError:
        is_meant = False
    if is_meant:
        return edited
    if "#" not in text:
        return dump_plan(plan)
    words = ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items() if key != "revision")
    by_hand = f"write revision = {plan.revision} and [tiered] {words} into it yourself"
    raise PlanError("file", text[:40], f"it may have comments, which would be lost: {by_hand}")


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan file."""
    Path(path).write_text(dump_plan(plan), encoding="utf-8")


def _scheme_table(scheme: Scheme) -> dict[str, Any]:
    match scheme:
        case Native():
            return {"native": {}}
        case Calendar(interval_ms=interval_ms):
            return {"calendar": {"interval": format_duration(interval_ms)}}
        case Tiered(window_ms=window_ms, tiers_ms=tiers_ms, hold=hold):
            tiers = [format_duration(tier_ms) for tier_ms in tiers_ms]
            return {"tiered": {"window": format_duration(window_ms), "tiers": tiers, "hold": hold}}
        case Wheel(rings=rings):
            return {"wheel": {"rings": [_ring_table(ring) for ring in rings]}}


def _ring_table(ring: Ring) -> dict[str, Any]:
    table: dict[str, Any] = {"slot": format_duration(ring.slot_ms), "slots": ring.slots}
    if ring.headstart_ms is not None:
        table["headstart"] = format_duration(ring.headstart_ms)
    return table


def _to_plan(file: _File) -> Plan:
    given = [name for name in _SCHEMES if getattr(file, name) is not None]
    if len(given) != 1:
        tables = ", ".join(f"[{name}]" for name in _SCHEMES)
        raise PlanError("scheme", given, f"write exactly one table of {tables}", is_missing=not given)
    optional = {"max_delay_ms": file.max_delay, "guard_ms": file.guard, "tick_ms": file.tick, "jitter_ms": file.jitter}
    return Plan(
        due_topic=file.due_topic,
        subscriptions=tuple(file.subscriptions),
        scheme=_scheme(file),
        revision=file.revision,
        partitions=file.partitions,
        holding_namespace=file.holding_namespace,
        relay=file.relay,
        readers=file.readers,
        former_intervals_ms=tuple(file.former_intervals),
        former_namespaces=tuple(file.former_namespaces),
        retry=file.retry,
        intake=file.intake,
        cancel=None if file.cancel is None else _cancel(file.cancel),
        **{name: value for name, value in optional.items() if value is not None},
    )


def _cancel(table: _Cancel) -> Cancel:
    given = {"keep_ms": table.keep, "skew_ms": table.skew}
    return Cancel(
        on_log_unavailable=table.on_log_unavailable,
        **{name: value for name, value in given.items() if value is not None},
    )


def _scheme(file: _File) -> Scheme:
    if file.tiered is not None:
        return Tiered(window_ms=file.tiered.window, tiers_ms=tuple(file.tiered.tiers), hold=file.tiered.hold)
    if file.calendar is not None:
        return Calendar(interval_ms=file.calendar.interval)
    if file.wheel is not None:
        return Wheel(
            rings=tuple(
                Ring(slot_ms=ring.slot, slots=ring.slots, headstart_ms=ring.headstart) for ring in file.wheel.rings
            )
        )
    return Native()


def _as_plan_error(error: ValidationError) -> PlanError:
    """Convert the most telling complaint into field, value and limit; pydantic's own report stays the cause."""
    found = error.errors(include_url=False)
    first = min(found, key=_rank)
    kind, loc = first["type"], first["loc"]
    field = ".".join(str(part) for part in loc) or "file"
    if kind == "extra_forbidden" and loc[0] in _OF_CONNECTION:
        # Without value and without pydantic's report as the cause: they may contain a secret, and errors are logged.
        remedy = "belongs into the connection's file (--connection), never into a plan: plans are shown and shared"
        return PlanError(field, Secret(""), remedy)
    if kind == "extra_forbidden":
        return PlanError(field, first["input"], _unknown(loc))
    if kind == "model_type":
        header = f": write [{field}] in a line of its own, and its keys below it" if field in _TABLES else ""
        return PlanError(field, first["input"], f"must be a table{header}")
    key = next((part for part in reversed(loc) if isinstance(part, str)), "")
    example = next((f"for example: {line}" for line in EXAMPLES if line.startswith(f"{key} = ")), "")
    if kind == "missing":
        return PlanError(field, None, f"it is required; {example}", is_missing=True)
    limit = first["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        limit += did_you_mean(first["input"], re.findall(r"'(\w+)'", limit))
    return PlanError(field, first["input"], f"{limit}; {example}" if example else limit)


def _rank(found: Mapping[str, Any]) -> int:
    """Return the place of a complaint: a later format explains all others, a misspelt key explains a missing one."""
    if found["loc"] == ("format",) and found["type"] != "missing":
        return 0
    return 1 if found["type"] == "extra_forbidden" else 2


def _unknown(loc: Sequence[int | str]) -> str:
    """Return the rule that an unknown key breaks, with the key that was probably meant."""
    key, table = str(loc[-1]), next((str(part) for part in reversed(loc[:-1]) if isinstance(part, str)), "")
    broken = f"is not a key of {_place(table)}"
    own = _TABLES[table].model_fields
    in_others = (did_you_mean(key, model.model_fields, f" of {_place(other)}") for other, model in _TABLES.items())
    near = did_you_mean(key, own) or next(filter(None, in_others), "")
    return broken + (near or f", which has {', '.join(own) or 'none'}")


def _place(table: str) -> str:
    if not table:
        return "the plan's top level"
    return "a ring of [wheel]" if table == "rings" else f"[{table}]"
