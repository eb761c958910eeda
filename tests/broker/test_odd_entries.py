"""Odd entries between good ones stop nobody: not a reader, not a shadow, and no command that looks at a topic."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from tests.broker.relay_stage import BUSINESS, now_ms
from tests.broker.shadow_stage import ShadowStage
from tests.broker.test_shadow_life import DAYS, lifted, shadow_plan, staged
from tests.support.odd_entries import odd_entry
from tests.support.raw_producer import RawEntry, RawProducer, metadata_of
from timewheel.binary_protocol.entries import Entry
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS
from timewheel.core.envelope import Envelope
from timewheel.ops.errors import NothingToSample
from timewheel.ops.gaps.explain import explain
from timewheel.ops.sample import sample
from timewheel.shadow.sampling import sample_of
from timewheel.shadow.verifying import verify
from timewheel.shadow.walking import entries_in
from timewheel.shadow.machine.stretches import stretches_of
from timewheel.testing import Broker, eventually
from timewheel.wire.positions import EntryPosition
