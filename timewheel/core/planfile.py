"""Plan file: TOML outside, a frozen `Plan` inside. This is the only module in which pydantic checks a plan's form.

The form (types, unknown keys, exactly one scheme table) is checked here, once; `Plan` itself checks the rules.
Plan files may change while a process runs: they are read whole, and compared by their content and their plans, not by
file times. Kubernetes changes a mounted file by replacing a link, and an editor may keep the time.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StrictBool, ValidationError

from timewheel.core.connection import Connection, Secret
from timewheel.core.durations import format_duration, parse_duration
from timewheel.core.errors import PlanError, did_you_mean
from timewheel.core.plan import (
    Calendar,
    Cancel,
    Holder,
    Native,
    Plan,
    Readers,
    RelayPlace,
    Ring,
    Scheme,
    Tiered,
    Wheel,
    WhenBlind,
)

QUOTING = "text and durations are quoted, true and false are lower case"  # the rule that a mended line keeps
LONGEST_LINE_CHARS = 200  # a longer line is not repeated in an error

_WORD = re.compile(r""""[^"]*"|'[^']*'|\#.*|[^\s,\[\]{}="'\#]++(?!\s*=)""")
"""A text in quotes, a comment, or a word that is no key."""
_TYPED_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a"  # quotes of word processors, which TOML does not know


def line_of(error: Exception) -> int:
    """Return the number of the line that TOML's reader complains about; 0: the end of the text, or none."""
    found = re.search(r"\(at line (\d+), column \d+\)$", str(error))
    return int(found[1]) if found else 0


def lines_of(text: str) -> list[str]:
    """Return the lines of a text as TOML counts them."""
    return text.replace("\r\n", "\n").split("\n")


def mended_line(text: str, error: Exception) -> str:
    """Return the line of the complaint with quotes around its words; empty: it would be no better."""
    at, lines = line_of(error), lines_of(text)
    if not at:
        return ""
    line = lines[at - 1].strip()
    mended = _WORD.sub(lambda found: _as_toml(found[0]), line)
    if mended == line or len(mended) > LONGEST_LINE_CHARS:
        return ""
    try:
        tomllib.loads("\n".join((*lines[: at - 1], mended, *lines[at:])))
    except (ValueError, RecursionError) as next_error:
        return "" if 0 < line_of(next_error) <= at else mended
    return mended


def _as_toml(word: str) -> str:
    if word[0] in "\"'#":
        return word
    if word.lower() in {"true", "false"}:
        return word.lower()
    try:
        tomllib.loads(f"value = {word}")
    except ValueError:
        return json.dumps(word.strip(_TYPED_QUOTES), ensure_ascii=False)
    return word


FORMAT = 1
MAX_FILE_BYTES = 64_000
"""A plan takes a few hundred bytes, 64 long names of subscriptions 17,000; the time of TOML's reader grows with the
square of a key's dots.
"""


def _known_format(number: int) -> int:
    if number != FORMAT:
        raise ValueError(f"this timewheel reads format {FORMAT}")
    return number


def _given(table: BaseModel) -> dict[str, Any]:
    return {name: getattr(table, name) for name in table.model_fields_set}


_Duration = Annotated[int, BeforeValidator(parse_duration)]
_Durations = Annotated[list[_Duration], AfterValidator(tuple)]
_Texts = Annotated[list[str], AfterValidator(tuple)]
_Format = Annotated[int, AfterValidator(_known_format)]


class _Table(BaseModel):
    """Table whose fields are named like those of its value, in which ``window_ms`` is the key ``window``.

    Only the given fields are passed on: the value has the defaults.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=lambda name: name.removesuffix("_ms")
    )


class _Native(_Table):
    pass


class _Tiered(_Table):
    window_ms: _Duration
    tiers_ms: _Durations
    hold: Holder | None = None


class _Calendar(_Table):
    interval_ms: _Duration | None = None


class _Ring(_Table):
    slot_ms: _Duration
    slots: int
    headstart_ms: _Duration | None = None


class _Wheel(_Table):
    rings: Annotated[list[_Ring], AfterValidator(lambda rings: tuple(Ring(**_given(ring)) for ring in rings))]


class _Cancel(_Table):
    keep_ms: _Duration | None = None
    skew_ms: _Duration | None = None
    on_log_unavailable: WhenBlind | None = None


class _File(_Table):
    format: _Format  # first, so that a later format is reported before its new keys are
    due_topic: str
    subscriptions: _Texts
    revision: int = 1
    partitions: int = 1
    holding_namespace: str | None = None
    max_delay_ms: _Duration | None = None
    relay: RelayPlace = "embedded"
    readers: Readers = "timewheel"
    guard_ms: _Duration | None = None
    tick_ms: _Duration | None = None
    jitter_ms: _Duration | None = None
    former_intervals_ms: _Durations = []
    former_namespaces: _Texts = []
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
_SCHEMES: Mapping[str, type[Scheme]] = {"native": Native, "tiered": Tiered, "calendar": Calendar, "wheel": Wheel}
_ALWAYS_WRITTEN = (
    "revision", "due_topic", "partitions", "subscriptions", "max_delay_ms", "relay", "readers", "guard_ms", "tick_ms",
)  # fmt: skip
_WRITTEN_IF_SET = ("jitter_ms", "retry", "intake", "holding_namespace", "former_intervals_ms", "former_namespaces")


def load_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises:
        PlanError: The file is unreadable, is not TOML, or breaks a rule; the error names file, field, value and limit.
    """
    return parse_plan(read_plan_text(Path(path)), path)


def read_plan_text(path: Path) -> str:
    """Read the text of a file that can be a plan."""
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
    names = [*_ALWAYS_WRITTEN, *(name for name in _WRITTEN_IF_SET if getattr(plan, name))]
    data = {"format": FORMAT, **_written(plan, names), **_scheme_table(plan.scheme)}
    if plan.cancel is not None:
        data["cancel"] = _written(plan.cancel, _Cancel.model_fields)
    return tomli_w.dumps(data)


def edit_plan(text: str, plan: Plan) -> str:
    """Change revision, window and tiers in the text of a plan's file that differs from ``plan`` in nothing else; order,
    form and comments stay. `PlanError`: the text is written in a form in which comments would be lost.
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


def _written(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of a plan, or of a part of it, as keys of a file; those that are None are left out."""
    texts = {name.removesuffix("_ms"): _as_written(name, getattr(value, name)) for name in names}
    return {key: text for key, text in texts.items() if text is not None}


def _as_written(name: str, value: Any) -> Any:
    match value:
        case tuple():
            return [_as_written(name, each) for each in value]
        case Ring():
            return _written(value, _Ring.model_fields)
        case int() if name.endswith("_ms"):
            return format_duration(value)
        case _:
            return value


def _scheme_table(scheme: Scheme) -> dict[str, Any]:
    (name,) = (name for name, kind in _SCHEMES.items() if isinstance(scheme, kind))
    return {name: _written(scheme, _TABLES[name].model_fields)}


def _to_plan(file: _File) -> Plan:
    given = _given(file)
    del given["format"]
    schemes = {name: given.pop(name) for name in _SCHEMES if name in given}
    if len(schemes) != 1:
        tables = ", ".join(f"[{name}]" for name in _SCHEMES)
        raise PlanError("scheme", list(schemes), f"write exactly one table of {tables}", is_missing=not schemes)
    ((name, table),) = schemes.items()
    if "cancel" in given:
        given["cancel"] = Cancel(**_given(given["cancel"]))
    return Plan(scheme=_SCHEMES[name](**_given(table)), **given)


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
    keys = {name: [field.removesuffix("_ms") for field in model.model_fields] for name, model in _TABLES.items()}
    in_others = (did_you_mean(key, known, f" of {_place(other)}") for other, known in keys.items())
    near = did_you_mean(key, keys[table]) or next(filter(None, in_others), "")
    return broken + (near or f", which has {', '.join(keys[table]) or 'none'}")


def _place(table: str) -> str:
    if not table:
        return "the plan's top level"
    return "a ring of [wheel]" if table == "rings" else f"[{table}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanges:
    """Plans to begin and plans to end. End the removed and changed plans before beginning their replacements."""

    added: tuple[Plan, ...] = ()  # plans of due topics that had no plan
    removed: tuple[Plan, ...] = ()  # plans of due topics that have no plan any more
    changed: tuple[tuple[Plan, Plan], ...] = ()  # old and new plan of the same due topic
    unchanged: tuple[Plan, ...] = ()  # plans that are equal before and after

    @property
    def ends(self) -> tuple[Plan, ...]:
        """Plans that are no longer served in this form."""
        return (*self.removed, *(old for old, _ in self.changed))

    @property
    def begins(self) -> tuple[Plan, ...]:
        """Plans that are to be served from now on."""
        return (*self.added, *(new for _, new in self.changed))


def plan_changes(old: Iterable[Plan], new: Iterable[Plan]) -> PlanChanges:
    """Compare the served plans with the desired plans. Plans are matched by due topic; several of a topic, in order."""
    ended, unchanged = list(old), []
    begun = []
    for plan in new:
        if plan in ended:
            ended.remove(plan)
            unchanged.append(plan)
        else:
            begun.append(plan)
    added, changed = [], []
    for plan in begun:
        before = next((other for other in ended if other.due_topic == plan.due_topic), None)
        if before is None:
            added.append(plan)
        else:
            ended.remove(before)
            changed.append((before, plan))
    return PlanChanges(added=tuple(added), removed=tuple(ended), changed=tuple(changed), unchanged=tuple(unchanged))


@dataclass(frozen=True, slots=True)
class PlanTexts:
    """Content of the plan files at one moment."""

    texts: tuple[tuple[Path, str], ...]  # path and text of each file, in order

    def plans(self) -> tuple[Plan, ...]:
        return tuple(parse_plan(text, path) for path, text in self.texts)


class PlanFiles:
    """Files and folders with plans; a folder stands for all its files ``*.toml``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    def read(self) -> PlanTexts:
        """Read the present content of all files. `PlanError`: a file cannot be read, or a folder has no plan, which is
        more likely a mistake than a wish to serve no plan.
        """
        files = [file for path in self._paths for file in _files_of(path)]
        return PlanTexts(tuple((file, read_plan_text(file)) for file in files))


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.glob("*.toml") if not file.name.startswith("."))
    if not found:
        raise PlanError("folder", str(path), "must have at least one plan, a file *.toml")
    return found
