"""The engine in any order of events, against a broker of a few lines: what is stored, and what was acknowledged."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.consumers.support import BOUND_MS, NOW_MS, arrival
from timewheel.consumers import engine
from timewheel.consumers.message import InFlight, Stage

MAX_HELD = 4


class EngineLife(RuleBasedStateMachine):
    """Messages are stored, delivered, forgotten by reloads, delivered again; handlers succeed and fail."""

    judge: engine.DeliveryPolicy | None = None

    @initialize()
    def begin(self) -> None:
        self.engine = engine.Engine(
            hold_bound_ms=BOUND_MS, max_held=MAX_HELD, handled=engine.HandledWindow(10_000), judge=self.judge
        )
        self.now_ms = NOW_MS
        self.entries = 0
        self.stored: dict[int, tuple[str, int]] = {}  # position -> (timer id, due), until acknowledged
        self.with_consumer: set[int] = set()
        self.due_ms: dict[str, int] = {}
        self.with_handler: dict[str, InFlight] = {}
        self.publishing: dict[str, InFlight] = {}
        self.handled: list[str] = []

    def store(self, timer_id: str) -> None:
        self.entries += 1
        self.stored[self.entries] = (timer_id, self.due_ms[timer_id])

    def execute(self, commands: list[engine.Command]) -> None:
        for command in commands:
            match command:
                case engine.Deliver(timer):
                    timer_id = timer.arrival.envelope.timer_id  # type: ignore[union-attr]
                    assert self.due_ms[timer_id] <= self.now_ms, "never early"
                    assert timer_id not in self.with_handler, "never in two hands"
                    assert timer_id not in self.handled, "never again after it was handled"
                    self.with_handler[timer_id] = timer
                    timer.stage = Stage.BEGUN  # here each handler begins at once
                case engine.Acknowledge(acknowledged):
                    entry = acknowledged.position.entry
                    timer_id, _ = self.stored.pop(entry, ("", 0))
                    if timer_id and not self.may_be_dropped(timer_id):
                        others = [known for known, _ in self.stored.values()]
                        assert timer_id in others, "an unhandled timer's last stored copy was acknowledged"
                    self.with_consumer.discard(entry)
                case engine.NegativeAcknowledge(refused):
                    self.with_consumer.discard(refused.position.entry)
                case engine.Republish(timer):
                    self.publishing[timer.key] = timer
                case engine.Drop() | engine.Lost():
                    pass

    def may_be_dropped(self, timer_id: str) -> bool:
        return timer_id in self.handled

    def settle(self) -> None:
        """Let what else is under way come to its end."""

    @rule(early_ms=st.integers(-10, BOUND_MS) | st.integers(BOUND_MS + 1, 3 * BOUND_MS))
    def send(self, early_ms: int) -> None:
        timer_id = f"t{len(self.due_ms)}"
        self.due_ms[timer_id] = self.now_ms + early_ms
        self.store(timer_id)

    @precondition(lambda self: self.due_ms)
    @rule(data=st.data())
    def send_a_second_copy(self, data: st.DataObject) -> None:
        timer_id = data.draw(st.sampled_from(sorted(self.due_ms)))
        if timer_id not in self.handled:
            self.store(timer_id)

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        ready = sorted(set(self.stored) - self.with_consumer)
        if ready and not self.engine.full:
            self.receive(data.draw(st.sampled_from(ready)))

    def receive(self, entry: int) -> None:
        timer_id, due_ms = self.stored[entry]
        self.with_consumer.add(entry)
        self.execute(self.engine.received(arrival(entry, timer_id, due_ms), self.now_ms, 0))

    @rule(is_seen=st.booleans())
    def reload(self, is_seen: bool) -> None:
        self.with_consumer.clear()
        if is_seen:
            self.execute(self.engine.disconnected(None))

    @rule(past_ms=st.integers(0, 2 * BOUND_MS))
    def time_passes(self, past_ms: int) -> None:
        self.now_ms += past_ms
        self.execute(self.engine.tick(self.now_ms))

    @rule(back_ms=st.integers(1, 4 * BOUND_MS))
    def clock_goes_back(self, back_ms: int) -> None:
        self.now_ms -= back_ms
        self.execute(self.engine.tick(self.now_ms))

    @precondition(lambda self: self.with_handler)
    @rule(data=st.data(), good=st.booleans())
    def handler_answers(self, data: st.DataObject, good: bool) -> None:
        timer_id = data.draw(st.sampled_from(sorted(self.with_handler)))
        timer = self.with_handler.pop(timer_id)
        if good:
            self.handled.append(timer_id)
            self.execute(self.engine.done(timer))
        else:
            self.execute(self.engine.failed(timer))

    @precondition(lambda self: self.with_handler)
    @rule(data=st.data(), after_ms=st.integers(0, 3 * BOUND_MS))
    def handler_wants_it_later(self, data: st.DataObject, after_ms: int) -> None:
        timer_id = data.draw(st.sampled_from(sorted(self.with_handler)))
        self.execute(self.engine.postponed(self.with_handler.pop(timer_id), self.now_ms, after_ms))

    @precondition(lambda self: self.publishing)
    @rule(data=st.data(), stored=st.booleans(), confirmed=st.booleans())
    def publication_is_answered(self, data: st.DataObject, stored: bool, confirmed: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.publishing)))
        timer = self.publishing.pop(key)
        if stored or confirmed:
            self.store(key.partition(":")[2])
            if not self.engine.full and data.draw(st.booleans()):  # the copy overtakes its own confirmation
                self.receive(self.entries)
        answer = self.engine.published if confirmed else self.engine.not_published
        self.execute(answer(timer, self.now_ms))

    def publication_ends_well(self, key: str) -> None:
        timer = self.publishing.pop(key)
        self.store(key.partition(":")[2])
        self.execute(self.engine.published(timer, self.now_ms))

    @invariant()
    def bounded(self) -> None:
        assert self.engine.held_count <= MAX_HELD

    def teardown(self) -> None:
        """Let everything end well: then everything was handled once and everything is acknowledged."""
        for _ in range(20 * (len(self.due_ms) + len(self.stored) + 1)):
            if not self.stored and not self.engine.held_count:
                break
            for key in sorted(self.publishing):
                self.publication_ends_well(key)
            for timer_id, timer in list(self.with_handler.items()):
                del self.with_handler[timer_id]
                self.handled.append(timer_id)
                self.execute(self.engine.done(timer))
            for entry in sorted(set(self.stored) - self.with_consumer):
                if entry in self.stored and not self.engine.full:  # a dead copy takes the others along
                    self.receive(entry)
            self.now_ms += BOUND_MS // 2
            self.execute(self.engine.tick(self.now_ms))
            self.settle()
        assert self.stored == {}
        assert self.engine.held_count == 0
        self.judge_the_end()

    def judge_the_end(self) -> None:
        assert sorted(self.handled) == sorted(self.due_ms)


EngineLife.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestEngineLife = EngineLife.TestCase
