"""Result of `combine`. Separate from it, so that code that only passes it on does not load all the rules."""

import msgspec

from everstep.analyzer.observations.clusters import Clusters
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import ParallelGroup
from everstep.model.verdict import Verdict


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    limit_s: float | None  # after which torch ends what ranks wait in; None: the records do not say
    group: ParallelGroup | None  # the unit to isolate when the suspects are more than one, or where it was seen
    clusters: Clusters
    findings: tuple[Finding, ...]  # all, the chosen one first
