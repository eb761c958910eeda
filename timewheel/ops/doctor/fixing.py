"""`--fix`: what is safe, and may be done again."""

from __future__ import annotations

from collections.abc import Iterable

from timewheel.admin.client import AdminClient
from timewheel.admin.policies import DELAYED_DELIVERY
from timewheel.core.plan import Plan
from timewheel.ops.doctor.finding import Finding
from timewheel.ops.provision import ensure
from timewheel.ops.provision_steps import SetPolicy, Step

__all__ = ["fix"]


def fix(admin: AdminClient, plan: Plan, findings: Iterable[Finding]) -> tuple[Step, ...]:
    """Make what is missing of a plan's topics, and set their own policies; nothing else is touched.

    Args:
        admin: Whose role administers the tenant.
        plan: The plan.
        findings: Those that can be fixed are.

    Returns:
        What was done.

    Raises:
        TopologyError: A topic is there in a form that cannot be repaired.
        AdminError: A call failed; running again goes on from there.
    """
    steps = [finding.fix for finding in findings if finding.fix is not None]
    if not steps:
        return ()
    # Timers that an earlier plan left behind are a finding of their own, and no reason to leave this plan broken.
    done = list(ensure(admin, plan, now_ms=admin.clock.now_ms(), despite_former_topics=True).steps)
    for step in steps:
        # Provisioning leaves it alone: a namespace may have what it wants. Where it is a finding, it has not.
        if isinstance(step, SetPolicy) and step.policy is DELAYED_DELIVERY:
            admin.topic_policies.set(step.topic, step.policy, step.value)
            admin.topic_policies.await_value(step.topic, step.policy, step.value)
            done.append(step)
    return tuple(done)
