"""The trace is the same from the same seed, and the law predicts what the issue says about it."""

from __future__ import annotations

import pytest

from tests.support.cursor import exact_gaps
from timewheel.core.steps import far_ms
from timewheel.demo.settings import ALL_SCHEMES, DAYS, BadSettings, SchemeName, Settings, parse_schemes
from timewheel.testing.evidence.trace import arrivals_by_topic, delays_ms, predicted_gaps, timer_id, timer_index

SETTINGS = Settings()
START_MS = 1_800_000_000_000


def sends(settings: Settings, scheme: SchemeName) -> list[tuple[int, int]]:
    """(sent, due), published at an even pace."""
    delays = delays_ms(messages=settings.messages, span_ms=settings.span_ms, seed=settings.seed)
    times = [START_MS + index * settings.publish_ms(scheme) // len(delays) for index in range(len(delays))]
    return [(at_ms, at_ms + delay_ms) for at_ms, delay_ms in zip(times, delays, strict=True)]


def law_peak(scheme: SchemeName) -> float:
    grid = range(START_MS, START_MS + SETTINGS.span_ms + SETTINGS.publish_ms(scheme), SETTINGS.day_ms // 20)
    return max(predicted_gaps(SETTINGS.plan(scheme), sends(SETTINGS, scheme), grid, SETTINGS.day_ms))


def test_the_same_seed_gives_the_same_trace() -> None:
    once, again = (delays_ms(messages=100, span_ms=1_000, seed=7) for _ in range(2))
    assert once == again
    assert delays_ms(messages=100, span_ms=1_000, seed=8) != once


def test_delays_are_uniform_from_nothing_to_the_whole_span() -> None:
    delays = delays_ms(messages=30_000, span_ms=DAYS * 1_000, seed=7)
    per_day = [sum(day * 1_000 <= delay < (day + 1) * 1_000 for delay in delays) for day in range(DAYS)]
    # 1,000 a day, standard deviation 31: five of them are never left by chance.
    assert sum(per_day) == 30_000
    assert all(abs(count - 1_000) < 160 for count in per_day)


def test_timer_ids_name_their_place_in_the_trace() -> None:
    assert [timer_index(timer_id(number)) for number in (0, 7, 999_999)] == [0, 7, 999_999]
    assert timer_index("somebody-elses") == -1
    assert timer_index("t12x") == -1


def test_native_peaks_at_a_quarter_of_the_trace() -> None:
    # A burst of n with uniform delays: n F (1 - F), at most n / 4 = 4,000.
    assert law_peak("native") == pytest.approx(4_000, rel=0.01)


def test_native_is_some_35_times_tiered_and_27_times_calendar() -> None:
    native = law_peak("native")
    # A burst of 1.5 days feeds a due topic at n/30/1.5 = 356 a day, half of the time twice that: 356 x (1 + 1/2) is a
    # steady 533 a day, whose mean is 533 / 6 = 89; the doubled half of a day makes the peak higher.
    assert native / law_peak("tiered-relay") == pytest.approx(35.1, rel=0.03)
    assert law_peak("tiered-broker") == pytest.approx(law_peak("tiered-relay"), rel=0.01)
    # A day topic takes n/30 = 533 before its day begins: a quarter is 133, and the fullest of 30 days is more.
    assert native / law_peak("calendar") == pytest.approx(27.9, rel=0.03)
    assert native / law_peak("wheel") == pytest.approx(27.9, rel=0.03)


def test_behind_a_shadow_only_what_is_due_soon_makes_gaps() -> None:
    # While the burst is published, what is due within 1.7 days stays between moved ones; then copies come back, a day
    # ahead, and the law has originals between them.
    native, shadow = law_peak("native"), law_peak("shadow")
    assert native / shadow == pytest.approx(10.5, rel=0.03)
    assert shadow < SETTINGS.limit


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_the_law_agrees_with_an_exact_count(scheme: SchemeName) -> None:
    # In position order, without ledger boundaries: the law's mean against the count itself.
    plan, grid = SETTINGS.plan(scheme), range(START_MS, START_MS + SETTINGS.span_ms, SETTINGS.day_ms // 20)
    exact = [0] * len(grid)
    for arrivals in arrivals_by_topic(plan, sends(SETTINGS, scheme)).values():
        in_order = [due_ms for _, due_ms in sorted(arrivals, key=lambda arrival: arrival[0])]
        exact = [sum(pair) for pair in zip(exact, exact_gaps(in_order, grid), strict=True)]
    law = law_peak(scheme)
    assert abs(max(exact) - law) <= 0.15 * law + 3 * law**0.5


@pytest.mark.parametrize("scheme", ALL_SCHEMES)
def test_every_timer_arrives_before_it_is_due(scheme: SchemeName) -> None:
    plan, sent = SETTINGS.plan(scheme), sends(SETTINGS, scheme)
    arrived = arrivals_by_topic(plan, sent)
    moved = sum(due_ms - at_ms >= far_ms(plan) for at_ms, due_ms in sent) if plan.intake else 0
    assert sum(len(timers) for timers in arrived.values()) == SETTINGS.messages + moved
    assert all(at_ms <= due_ms for timers in arrived.values() for at_ms, due_ms in timers)


def test_schemes_publish_one_after_the_other_beside_a_shadow() -> None:
    *others, shadow = SETTINGS.schemes
    assert [SETTINGS.start_offset_ms(scheme) for scheme in others] == [0, 8_000, 16_000, 24_000, 32_000]
    assert all(SETTINGS.publish_ms(scheme) < 8_000 for scheme in others)
    assert SETTINGS.start_offset_ms(shadow) == 0


def test_every_scheme_is_unloaded_while_half_of_its_timers_wait() -> None:
    # Half of native's 1.5 + 30 days of 4 s; behind a shadow the burst is over after 10 days.
    assert SETTINGS.unload_offset_ms == 63_000
    assert SETTINGS.play_ms == 160_000
    assert Settings(schemes=("shadow",)).unload_offset_ms == 80_000


def test_the_brokers_limit_is_as_the_issue_says() -> None:
    config = SETTINGS.broker_config()
    assert config["managedLedgerMaxUnackedRangesToPersist"] == "400"
    assert config["managedLedgerMaxEntriesPerLedger"] == "2000"
    # A 25th of a day: 4 s / 25.
    assert config["delayedDeliveryTickTimeMillis"] == "160"
    # Long days leave the broker's tick alone.
    assert "delayedDeliveryTickTimeMillis" not in Settings(day_ms=25_000).broker_config()


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        ("messages", {"messages": 299}),
        ("day", {"day_ms": 1_999}),
        ("schemes", {"schemes": ()}),
        ("schemes", {"schemes": ("native", "native")}),
    ],
)
def test_bad_options_are_refused_by_name(option: str, bad: dict[str, object]) -> None:
    with pytest.raises(BadSettings, match=f"--{option} "):
        Settings(**bad)  # type: ignore[arg-type]


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    assert parse_schemes("native, wheel") == ("native", "wheel")
    with pytest.raises(BadSettings, match="one of native, tiered-relay"):
        parse_schemes("native,triangle")
