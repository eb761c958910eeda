"""The plan file: a round trip for every plan, and one clear error for every broken file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.core.plan_space import plans
from timewheel.core import planfile
from timewheel.core.connection import Secret
from timewheel.core.durations import DAY_MS, HOUR_MS, MINUTE_MS
from timewheel.core.errors import PlanError
from timewheel.core.plan import Calendar, Cancel, Native, Plan, Ring, Tiered, Wheel

TOP = 'format = 1\ndue_topic = "persistent://acme/crm/reminders"\nsubscriptions = ["billing"]\n'
GOOD = TOP + '[tiered]\nwindow = "12h"\ntiers = ["12h", "1d", "5d"]\n'


def test_the_file_of_the_design_reads_as_the_plan_it_describes() -> None:
    text = """
        format = 1
        revision = 3
        due_topic = "persistent://acme/crm/reminders"
        holding_namespace = "acme/crm-held"
        partitions = 4
        subscriptions = ["billing", "audit"]
        max_delay = "20d"
        relay = "service"
        readers = "any"
        guard = "10m"
        tick = "500ms"
        jitter = "30s"
        former_intervals = ["1d", "12h"]
        former_namespaces = ["acme/then"]
        [tiered]
        window = "12h"
        tiers = ["12h", "1d", "5d"]
        hold = "broker"
    """
    assert planfile.parse_plan(text) == Plan(
        revision=3,
        due_topic="persistent://acme/crm/reminders",
        holding_namespace="acme/crm-held",
        partitions=4,
        subscriptions=("billing", "audit"),
        max_delay_ms=20 * DAY_MS,
        relay="service",
        readers="any",
        guard_ms=10 * MINUTE_MS,
        tick_ms=500,
        jitter_ms=30_000,
        former_intervals_ms=(86_400_000, 43_200_000),
        former_namespaces=("acme/then",),
        scheme=Tiered(window_ms=12 * HOUR_MS, tiers_ms=(12 * HOUR_MS, DAY_MS, 5 * DAY_MS), hold="broker"),
    )


@pytest.mark.parametrize(
    ("table", "scheme"),
    [
        ("[native]", Native()),
        ("[calendar]", Calendar(interval_ms=DAY_MS)),
        ('[calendar]\ninterval = "12h"', Calendar(interval_ms=12 * HOUR_MS)),
        (
            '[wheel]\nrings = [{slot = "1h", slots = 30}, {slot = "1d", slots = 32, headstart = "1h"}]',
            Wheel(rings=(Ring(slot_ms=HOUR_MS, slots=30), Ring(slot_ms=DAY_MS, slots=32, headstart_ms=HOUR_MS))),
        ),
    ],
)
def test_every_scheme_has_its_table(table: str, scheme: Native | Calendar | Wheel) -> None:
    assert planfile.parse_plan(TOP + table).scheme == scheme


@pytest.mark.parametrize(
    ("table", "cancel"),
    [
        ("", None),
        ("[cancel]", Cancel()),
        (
            '[cancel]\nkeep = "3d"\nskew = "5s"\non_log_unavailable = "deliver"',
            Cancel(keep_ms=3 * DAY_MS, skew_ms=5_000, on_log_unavailable="deliver"),
        ),
    ],
)
def test_cancels_are_off_unless_there_is_a_table(table: str, cancel: Cancel | None) -> None:
    assert planfile.parse_plan(f"{TOP}[native]\n{table}").cancel == cancel


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ('keep = "1s"', "cancel.keep"),
        ('keep = "500d"', "cancel.keep"),
        ('skew = "2d"', "cancel.skew"),
        ('on_log_unavailable = "guess"', "cancel.on_log_unavailable"),
        ("cancel_all = true", "cancel.cancel_all"),
    ],
)
def test_a_wrong_table_of_cancels_is_refused(table: str, field: str) -> None:
    with pytest.raises(PlanError) as caught:
        planfile.parse_plan(f"{TOP}[native]\n[cancel]\n{table}")
    assert caught.value.field == field


@given(plans())
def test_every_plan_survives_the_round_trip(plan: Plan) -> None:
    assert planfile.parse_plan(planfile.dump_plan(plan)) == plan


def test_a_saved_plan_loads(tmp_path: Path) -> None:
    plan, path = planfile.parse_plan(GOOD), tmp_path / "reminders.toml"
    planfile.save_plan(plan, path)
    assert planfile.load_plan(path) == plan
    assert Plan.load(str(path)) == plan


BROKEN: list[tuple[Any, ...]] = [
    # no TOML
    ("format = = 1", "file", "format = = 1", "TOML"),
    ("\x00", "file", "\x00", "TOML"),
    ("partitions = " + "1" * 5_000, "file", None, "TOML"),
    ("a = " + "[" * 50_000, "file", None, "TOML"),
    (GOOD + GOOD, "file", "[tiered]", "twice (at line 10, column 8)"),
    (GOOD.replace('"12h"\n', "5m  # short\n"), "file", "window = 5m  # short", 'write window = "5m"  # short'),
    (GOOD.replace('"12h"\n', "5m\n").replace("\n", "\r\n"), "file", "window = 5m", "(at line 5, column 11); text and"),
    (GOOD.replace('["12h", "1d", "5d"]', "[12h, '1d', 5d]"), "file", None, """write tiers = ["12h", '1d', "5d"]"""),
    (GOOD.replace('["12h", "1d", "5d"]', "[\n12h,\n1d]"), "file", "12h,", 'write "12h",'),
    (TOP + "[wheel]\nrings = [{slot = 1d, slots = 32}]", "file", None, 'write rings = [{slot = "1d", slots = 32}]'),
    ("relay = service\n" + GOOD, "file", "relay = service", 'write relay = "service"'),
    ("due_topic = persistent://acme/crm/x", "file", None, 'write due_topic = "persistent://acme/crm/x"'),
    ("max_delay = “30d”\n" + GOOD, "file", "max_delay = “30d”", 'write max_delay = "30d"'),
    ("retry = True\n" + GOOD, "file", "retry = True", "true and false are lower case: write retry = true"),
    ("relay = " + "x" * 5_000, "file", None, "TOML"),
    ("token = aaaa.bbbb\n" + GOOD, "file", Secret(""), "TOML"),  # which is a secret
    # form
    ("", "format", None, "for example: format = 1"),
    ("future = 1\n" + TOP.replace("format = 1", "format = 2") + "[native]", "format", 2, "reads format 1"),
    (TOP.replace("format = 1", 'format = "1"') + "[native]", "format", "1", "integer"),
    (TOP.replace("format = 1", "format = true") + "[native]", "format", True, "integer"),
    (TOP.replace('due_topic = "persistent://acme/crm/reminders"', "") + "[native]", "due_topic", None, "required"),
    (TOP.replace("due_topic", "duetopic") + "[native]", "duetopic", None, "did you mean due_topic?"),
    (TOP.replace("format", "formt") + "[native]", "formt", 1, "did you mean format?"),
    (
        TOP.replace("subscriptions", "subscription") + "[native]",
        "subscription",
        ["billing"],
        "did you mean subscriptions?",
    ),
    (GOOD.replace("window", "windows"), "tiered.windows", "12h", "did you mean window?"),
    (GOOD + "subscriptions = ['x']", "tiered.subscriptions", ["x"], "did you mean subscriptions of the plan's top"),
    (GOOD + "zzz = 1", "tiered.zzz", 1, "is not a key of [tiered], which has window, tiers, hold"),
    (GOOD.replace('window = "12h"', ""), "tiered.window", None, 'for example: window = "12h"'),
    ("window = '1h'\n" + TOP + "[native]", "window", "1h", "did you mean window of [tiered]?"),
    (GOOD + "interval = '1d'", "tiered.interval", "1d", "not a key"),
    (TOP + "[native]\nwindow = '1h'", "native.window", "1h", "not a key"),
    (
        TOP + "[wheel]\nrings = [{slot = '1d', slots = 32, size = 3}]",
        "wheel.rings.0.size",
        3,
        "is not a key of a ring of [wheel]",
    ),
    (TOP + "[rings]\n", "rings", {}, "did you mean rings of [wheel]?"),
    # schemes
    (TOP, "scheme", [], "exactly one"),
    (GOOD + "[calendar]", "scheme", ["tiered", "calendar"], "exactly one"),
    ("tiered = 5\n" + TOP, "tiered", 5, "must be a table: write [tiered] in a line of its own"),
    (TOP + "[wheel]\nrings = ['1d']", "wheel.rings.0", "1d", "must be a table"),
    # types
    ("partitions = '4'\n" + GOOD, "partitions", "4", "integer"),
    ("partitions = 4.0\n" + GOOD, "partitions", 4.0, "integer"),
    ("partitions = true\n" + GOOD, "partitions", True, "integer"),
    ("partitions = -1\n" + GOOD, "partitions", -1, "from 0 to 1024"),
    ("partitions = 0x" + "f" * 5_000 + "\n" + GOOD, "partitions", None, "1024"),
    ("relay = 'elsewhere'\n" + GOOD, "relay", "elsewhere", "'embedded' or 'service'"),
    ("readers = 'all'\n" + GOOD, "readers", "all", "'timewheel' or 'any'"),
    ("relay = 'servce'\n" + GOOD, "relay", "servce", "did you mean service?"),
    ("relay = 'SERVICE'\n" + GOOD, "relay", "SERVICE", "did you mean service?"),
    ("readers = 'timewhel'\n" + GOOD, "readers", "timewhel", "did you mean timewheel?"),
    (GOOD + "hold = 'realy'", "tiered.hold", "realy", "did you mean relay?"),
    (GOOD + "[cancel]\non_log_unavailable = 'Hold'", "cancel.on_log_unavailable", "Hold", "did you mean hold?"),
    ("holding_namespace = 7\n" + GOOD, "holding_namespace", 7, "string"),
    (GOOD.replace('["billing"]', '"billing"'), "subscriptions", "billing", "for example: subscriptions = ["),
    (GOOD.replace('["billing"]', "[7]"), "subscriptions.0", 7, "string"),
    (GOOD + "hold = 'both'", "tiered.hold", "both", "'relay' or 'broker'"),
    # durations
    ("max_delay = 30\n" + GOOD, "max_delay", 30, "expected text"),
    ("max_delay = '30 days'\n" + GOOD, "max_delay", "30 days", "one whole number and one unit"),
    ("guard = 07:32:00\n" + GOOD, "guard", None, "expected text"),
    (GOOD.replace('"1d"', '"1w"'), "tiered.tiers.1", "1w", "one whole number and one unit"),
    # rules
    (GOOD.replace('"12h"', '"13h"', 1).replace('"12h"', '"14h"'), "tiered.tiers", ["14h", "1d", "5d"], "window"),
    ("max_delay = '40d'\n" + TOP + "[wheel]\nrings = [{slot = '1d', slots = 32}]", "max_delay", "40d", "= 30d"),
]


@pytest.mark.parametrize(
    ("text", "field", "value", "limit"),
    BROKEN,
    ids=[f"{number}-{field}" for number, (_, field, _, _) in enumerate(BROKEN)],
)
def test_a_broken_file_names_field_value_and_limit(text: str, field: str, value: object, limit: str) -> None:
    with pytest.raises(PlanError) as caught:
        planfile.parse_plan(text)
    assert caught.value.field == field
    if value is not None:
        assert caught.value.value == value
    assert limit in caught.value.limit
    assert field in str(caught.value)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("text", [text for text, *_ in BROKEN], ids=range(len(BROKEN)))
def test_every_error_of_a_file_names_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "reminders.toml"
    file.write_text(text)
    for read in (lambda: planfile.load_plan(file), lambda: planfile.PlanFiles([tmp_path]).read().plans()):
        with pytest.raises(PlanError) as caught:
            read()
        assert str(caught.value).startswith(f"plan {file}: {caught.value.field}")
        assert caught.value.file == str(file)


def test_the_mark_with_which_some_editors_begin_a_file_is_read_over(tmp_path: Path) -> None:
    file = tmp_path / "reminders.toml"
    file.write_text(GOOD, encoding="utf-8-sig")
    assert planfile.load_plan(file) == planfile.parse_plan(GOOD)


def test_the_example_of_every_key_is_a_line_that_works() -> None:
    """Each line is written where its key belongs, beside the keys that it needs."""
    lines = {line.split()[0]: line for line in planfile.EXAMPLES}
    top = "\n".join(
        lines.pop(key)
        for key in (key.removesuffix("_ms") for key in planfile._File.model_fields)
        if key in lines and key != "intake"
    )
    cancel = f"[cancel]\n{lines.pop('keep')}\n{lines.pop('skew')}"
    tiered = f"[tiered]\n{lines.pop('window')}\n{lines.pop('tiers')}"
    ring = "\n".join(lines.pop(key) for key in ("slot", "slots", "headstart"))
    for scheme in (
        tiered,
        f"[wheel]\n{lines.pop('rings')}",
        f"[[wheel.rings]]\n{ring}",
        f"[calendar]\n{lines.pop('interval')}",
    ):
        assert planfile.parse_plan(f"{top}\n{scheme}\n{cancel}").retry
    assert planfile.parse_plan(f'{top}\n{lines.pop("intake")}\nrelay = "service"\n{tiered}').intake
    assert not lines


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    not_text, too_big = tmp_path / "not-text", tmp_path / "too-big"
    not_text.write_bytes(b"\xff\xfe")
    too_big.write_text(GOOD + "#" * planfile.MAX_FILE_BYTES)
    os.mkfifo(pipe := tmp_path / "pipe")
    for path, limit in [
        (tmp_path / "missing", "readable"),
        (tmp_path, "regular file"),
        (pipe, "regular file"),  # which nobody writes into
        (Path("null\0character"), "readable"),
        (not_text, "UTF-8"),
        (too_big, f"at most {planfile.MAX_FILE_BYTES} bytes"),
        (Path("/dev/zero"), "regular file"),
    ]:
        with pytest.raises(PlanError) as caught:
            planfile.load_plan(path)
        assert (caught.value.field, caught.value.value) == ("file", str(path))
        assert limit in caught.value.limit


_LINES = [*GOOD.splitlines(), "[native]", "[wheel]", "rings = [{}]", "rings = [[]]", "tiered = {}", "=", "x = 1", '"""']


@given(st.lists(st.sampled_from(_LINES) | st.text(max_size=8), max_size=8).map("\n".join))
def test_no_text_raises_anything_but_a_plan_error(text: str) -> None:
    try:
        plan = planfile.parse_plan(text)
    except PlanError:
        return
    assert planfile.parse_plan(planfile.dump_plan(plan)) == plan


HAND_WRITTEN = """# Owned by billing. Ask before you change it.
format = 1
due_topic = "persistent://acme/crm/reminders"   # not partitioned
partitions = 0
subscriptions = [
    "billing",  # of the invoices
]

[tiered]
window = "12h"  # only the last stretch
tiers = ["12h", "1d",
         "5d"]
"""


def narrower(plan: Plan) -> Plan:
    return replace(plan, scheme=Tiered(window_ms=HOUR_MS, tiers_ms=(HOUR_MS, DAY_MS)), revision=plan.revision + 1)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_another_window_changes_three_lines_of_a_file_and_no_comment(line_end: str) -> None:
    text = HAND_WRITTEN.replace("\n", line_end)
    plan = narrower(planfile.parse_plan(text))
    edited = planfile.edit_plan(text, plan)
    assert planfile.parse_plan(edited) == plan
    before, after = HAND_WRITTEN.splitlines(), edited.splitlines()
    gone = [line for line in before if line not in after]
    assert gone == ['window = "12h"  # only the last stretch', 'tiers = ["12h", "1d",', '         "5d"]']
    come = [line for line in after if line not in before]
    assert come == ["revision = 2", 'window = "1h"  # only the last stretch', 'tiers = ["1h", "1d"]']


@pytest.mark.parametrize(
    "text",
    [
        TOP + "# why\ntiered = { window = '12h', tiers = ['12h', '1d'] }\n",
        TOP + "[tiered]\nwindow = '12h'\ntiers = ['12h',  # half a day\n '1d']\n",
        TOP + "# rings\n[wheel]\nrings = [{ slot = '1d', slots = 10 }]\n",
        TOP
        + 'former_namespaces = ["""\nwindow = "12h" # no comment\n"""]\n[tiered]\nwindow = "12h"\ntiers = ["12h"]\n',
    ],
    ids=["inline table", "comment in a list", "other scheme", "in a text"],
)
def test_a_file_whose_comments_would_be_lost_is_refused_with_the_lines_to_write(text: str) -> None:
    plan = narrower(planfile.parse_plan(GOOD))
    with pytest.raises(PlanError) as refused:
        planfile.edit_plan(text, plan)
    assert 'revision = 2 and [tiered] window = "1h", tiers = ["1h", "1d"]' in str(refused.value)


@given(plans(), st.booleans())
def test_of_any_plan_the_edited_file_reads_as_the_plan_with_tiers(plan: Plan, has_comment: bool) -> None:
    tier_ms = DAY_MS + plan.max_delay_ms // 1_000
    try:
        wanted = replace(plan, scheme=Tiered(window_ms=tier_ms, tiers_ms=(tier_ms,)), revision=plan.revision + 1)
    except PlanError:
        reject()
    text = "# kept\n" * has_comment + planfile.dump_plan(plan)
    try:
        edited = planfile.edit_plan(text, wanted)
    except PlanError:
        assert "#" in text
        assert not isinstance(plan.scheme, Tiered)
        return
    assert planfile.parse_plan(edited) == wanted
    assert edited.startswith("# kept") is has_comment
