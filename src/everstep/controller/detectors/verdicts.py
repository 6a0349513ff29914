"""A judge's finding as the verdict that goes on record."""

from everstep.analyzer.codes import CODES
from everstep.analyzer.observations.finding import Finding
from everstep.model.verdict import Blame, Verdict


def verdict_of(finding: Finding, at: float) -> Verdict:
    """The verdict for a finding. Its code determines the blame, unless the finding knows better."""
    group = finding.group
    return Verdict(
        code=finding.code,
        sentence=finding.sentence,
        blame=finding.blame or Blame(CODES[finding.code].blame),
        confidence=finding.confidence,
        ranks=finding.ranks,
        at=at,
        group=group.title if group else "",
        group_ranks=group.ranks if group else (),
        evidence=finding.evidence,
    )
