"""A made-up result of the demo: every scheme, with figures of the usual size."""

from __future__ import annotations

from dataclasses import replace
from math import pi, sin
from pathlib import Path
from types import MappingProxyType

from timewheel.core.broker_profile import BrokerProfile
from timewheel.demo.foresight import Foreseen, Foresight
from timewheel.demo.results import BrokerFacts, Result
from timewheel.demo.sampling import Sample
from timewheel.demo.settings import ALL_SCHEMES, DAYS, SchemeName, Settings
from timewheel.demo.verdict import Lateness, Measured, Verdict
from timewheel.testing.evidence.ledger import Totals

START_MS = 1_800_000_000_000
SAMPLES_PER_DAY = 12
PEAKS: dict[SchemeName, int] = dict(zip(ALL_SCHEMES, (10_143, 352, 347, 1_294, 321, 357), strict=True))
CLEAN = Totals(attempted=40_000, acknowledged=40_000, handled=40_000, lost=0, unexpected=0, duplicated=0, recovered=0)
CONTROL = replace(CLEAN, attempted=1_000, acknowledged=1_000, handled=1_000)
LATE = Lateness(p50_ms=112, p99_ms=57_410, max_ms=61_212)


def demo_result(out: Path) -> Result:
    """Make a result whose files go to ``out``."""
    settings = Settings(out=out)
    return Result(
        settings=settings,
        broker=BrokerFacts(
            version="4.0.7",
            pid=4_242,
            service_url="pulsar://127.0.0.1:34567",
            admin_url="http://127.0.0.1:45678",
            config=settings.broker_config(),
            profile=BrokerProfile.from_broker_settings(settings.broker_config(), "4.0.7"),
        ),
        rows=[_row(scheme) for scheme in ALL_SCHEMES],
        checker_trial={
            "acknowledges first": replace(CONTROL, handled=788, lost=212),
            "publishes first": replace(CONTROL, duplicated=11),
        },
        verdict=Verdict(broken=()),
        seconds=231.2,
        started_ms=START_MS,
        unloaded_ms=START_MS + settings.unload_offset_ms,
        unloads_ms=MappingProxyType(dict.fromkeys(ALL_SCHEMES, START_MS + settings.unload_offset_ms)),
        samples={scheme: _samples(settings, scheme) for scheme in ALL_SCHEMES},
        entries={},
        foresight=Foresight(
            rows=[
                Foreseen(
                    scheme=scheme,
                    predicted_peak=0.98 * PEAKS[scheme],
                    measured_peak=PEAKS[scheme],
                    predicted_redelivered=16_800.0,
                    measured_redelivered=17_012,
                )
                for scheme in ALL_SCHEMES
            ],
            verdict="Of 62 candidates, a 6s window over tiers of 6s, 30s is the cheapest that fits.",
            plan="",
            candidates=62,
            seconds=31.0,
        ),
    )


def _row(scheme: SchemeName) -> Measured:
    relayed = scheme not in {"native", "calendar"}
    return Measured(
        scheme=scheme,
        due_peak=PEAKS[scheme],
        law_peak=0.97 * PEAKS[scheme],
        hold=("broker" if scheme == "tiered-broker" else "relay") if relayed else None,
        holding_peak=64 if scheme == "tiered-broker" else 0,
        in_flight_window=64,
        index_bytes=1_234_567 if scheme == "native" else 17_200,
        entries_written=181_234 if relayed else 40_000,
        hops=3.53 if relayed else 0.0,
        redelivered_due=17_012 if scheme == "native" else 31,
        redelivered_holding=1_208,
        totals=CLEAN,
        early=812 if scheme == "native" else 0,
        late=LATE if scheme == "native" else Lateness(p50_ms=4, p99_ms=152, max_ms=1_403),
        samples_per_day=11.0,
        topics=34 if scheme == "wheel" else 4,
    )


def _samples(settings: Settings, scheme: SchemeName) -> list[Sample]:
    """Native gaps rise and fall once in all days, those of other schemes once a day."""
    begin_ms = settings.start_offset_ms(scheme)
    period_days = DAYS if scheme == "native" else 1
    found = []
    for number in range(DAYS * SAMPLES_PER_DAY):
        days = number / SAMPLES_PER_DAY
        found.append(
            Sample(
                at_ms=START_MS + begin_ms + int(days * settings.day_ms),
                due_gaps=int(PEAKS[scheme] * abs(sin(pi * days / period_days))),
                holding_gaps=0,
                in_flight=0,
                index_bytes=0,
                backlog=0,
            )
        )
    return found
