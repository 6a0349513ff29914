"""Whether this host gives its vote to one that would go on with the controller. Pure."""

import msgspec

from everstep.wire.heirs import AskVote, Roster

AGREED_AFTER = 0.75
"""Of `node_silent_s`: after so long without a word of the controller's host its hosts agree to a successor."""

STEP_AFTER = 0.15
"""... and so much later for each host that comes before: two that ask at once hold each other up."""


class Voting(msgspec.Struct, kw_only=True):
    """What one host has promised, and what it follows. An epoch is the time of one controller's host."""

    epoch: int = 0  # that is followed
    promised: int = 0
    promised_to: str = ""
    roster: Roster | None = None

    def objection(self, ask: AskVote, *, journal: tuple[int, int], silent_s: float, patience_s: float) -> str:
        """`journal`: this host's own. Empty: it gets the vote."""
        if self.roster is None or all(each.session != ask.session for each in self.roster.voters):
            return "who asks is not known here"
        if ask.epoch < self.promised or (ask.epoch == self.promised and ask.session != self.promised_to):
            return f"epoch {self.promised} was promised to another host"
        if ask.epoch <= self.epoch:
            return f"epoch {self.epoch} has begun"
        if silent_s < patience_s:
            return f"the controller's host was heard {silent_s:.1f} s ago"
        if tuple(ask.roster) < self.roster.age:
            return "the hosts that vote are other ones by now"
        if tuple(ask.journal) < journal:
            return "its journal has less"
        return ""

    def promise(self, ask: AskVote) -> None:
        self.promised, self.promised_to = ask.epoch, ask.session

    def follow(self, epoch: int) -> bool:
        """Whether its host may be followed: nothing newer was promised or is followed."""
        if epoch < self.epoch:
            return False
        self.epoch, self.promised = epoch, max(epoch, self.promised)
        return True

    @property
    def counts(self) -> bool:
        """Whether this host may confirm what the one that it follows does: it has promised itself to no newer one."""
        return self.promised <= self.epoch

    def place_of(self, session: str) -> int:
        """How many come before it."""
        ahead = [each.session for each in self.roster.voters] if self.roster is not None else []
        return ahead.index(session) if session in ahead else len(ahead)
