"""A verdict code: the stable, searchable name of a kind of fault, with the text of its page."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    code: str
    name: str
    blame: str  # value of verdict.Blame: what is believed without further evidence
    means: str
    everstep_does: str
    confirm: str
    you_do: str
    drill: str = ""  # how to cause it on purpose
