"""Result of one rule. `combine` chooses among findings and makes the verdict."""

import msgspec

from everstep.analyzer.observations.records import ParallelGroup
from everstep.model.verdict import Blame, Confidence, Evidence


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    sentence: str
    confidence: Confidence
    ranks: tuple[int, ...] = ()  # suspects, most suspect first
    waiting: tuple[int, ...] = ()  # ranks that are stopped by it; innocent
    group: ParallelGroup | None = None  # where it was seen
    place: str = ""
    blame: Blame | None = None  # None: that of the code
    evidence: tuple[Evidence, ...] = ()
