"""The public test kit: fault injection, a fake clock, a fake cluster, and the runner of text scenarios.

    from everstep.testing import Cluster, FakeClock, run_scenario

Everything here drives the same `core.step` as the controller does, without processes. To injure a real run, use
`everstep drill` (its kinds are `everstep.core.faults.drills`).
"""

from everstep.testing.clock import FakeClock
from everstep.testing.cluster import Cluster
from everstep.testing.scenario import ScenarioError, run_scenario

__all__ = ["Cluster", "FakeClock", "ScenarioError", "run_scenario"]
