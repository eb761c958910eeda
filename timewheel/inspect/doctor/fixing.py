"""`--fix`: the repairs that are safe and repeatable."""

from __future__ import annotations

from collections.abc import Iterable

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import DELAYED_DELIVERY
from timewheel.core.plan import Plan
from timewheel.inspect.doctor.finding import Finding
from timewheel.provision.provision_steps import SetPolicy, Step
from timewheel.provision.provisioning import ensure


def fix(admin: AdminClient, plan: Plan, findings: Iterable[Finding]) -> tuple[Step, ...]:
    """Create missing topics, partitions and subscriptions of a plan, and set the topics' own policies; nothing else is
    touched.

    Args:
        admin: Client whose role administers the tenant.
        plan: The plan.
        findings: Findings of the doctor; those with a fix are repaired.

    Returns:
        The steps taken.

    Raises:
        TopologyError: A topic exists in a form that cannot be repaired.
        AdminError: A call failed; a second run continues from there.
    """
    steps = [finding.fix for finding in findings if finding.fix is not None]
    if not steps:
        return ()
    # Timers left behind by an earlier plan are a finding of their own, and no reason to leave this plan broken.
    done = list(ensure(admin, plan, now_ms=admin.clock.now_ms(), ignore_former_topics=True).steps)
    for step in steps:
        # Provisioning leaves this policy alone, since a namespace may set it. A finding means that the value is wrong.
        if isinstance(step, SetPolicy) and step.policy is DELAYED_DELIVERY:
            admin.topic_policies.set(step.topic, step.policy, step.value)
            admin.topic_policies.await_value(step.topic, step.policy, step.value)
            done.append(step)
    return tuple(done)
