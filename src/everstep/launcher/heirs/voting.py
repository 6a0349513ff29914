"""Whether this host votes for one that would take over the controller. Pure."""

import msgspec

from everstep.wire.heirs import AskVote, Roster

AGREED_AFTER = 0.75
"""Times `node_silent_s`: after so long without a word of the controller's host its hosts agree to a successor."""

STEP_AFTER = 0.15
"""... and so much later for each host that comes before: two that ask at once hold each other up."""

MOST_AHEAD = 100_000
"""The largest jump of the epoch. No host can have missed more elections; a larger one would make the others count up to
the end of numbers."""


class Voting(msgspec.Struct, kw_only=True):
    """One host's promises, and what it follows. An epoch is the time of one controller's host."""

    epoch: int = 0  # that is followed
    leader: str = ""  # of that epoch, once it has proven who it is
    promised: int = 0
    promised_to: str = ""
    roster: Roster | None = None

    def objection(
        self, ask: AskVote, asker: str, *, journal: tuple[int, int], silent_s: float, patience_s: float
    ) -> str:
        """Why the asking host does not get this host's vote; empty: it gets it.

        `asker`: the authenticated session of the other side, "" if there is none. `journal`: this host's own."""
        if ask.session != asker:
            return "who asks has not proven to be the host that it asks for"
        if self.roster is None or all(each.session != ask.session for each in self.roster.voters):
            return "who asks is not known here"
        if ask.epoch < self.promised or (ask.epoch == self.promised and ask.session != self.promised_to):
            return f"epoch {self.promised} was promised to another host"
        if ask.epoch <= self.epoch:
            return f"epoch {self.epoch} has begun"
        if ask.epoch > max(self.epoch, self.promised) + MOST_AHEAD:
            return f"epoch {ask.epoch} is further ahead than elections can be"
        if silent_s < patience_s:
            return f"the controller's host was heard {silent_s:.1f} s ago"
        if tuple(ask.roster) < self.roster.age:
            return "the hosts that vote are other ones by now"
        if tuple(ask.journal) < journal:
            return "its journal has less"
        return ""

    def promise(self, ask: AskVote) -> None:
        self.promised, self.promised_to = ask.epoch, ask.session

    def begin(self, epoch: int) -> None:
        """Begin an epoch that the first host has announced."""
        self.epoch, self.promised = epoch, max(epoch, self.promised)

    def follow(self, epoch: int, claimant: str) -> bool:
        """Whether a host that says that it has the controller may be followed: nothing newer is followed, this epoch
        was promised to no other one, and a new epoch is believed only of a host that has proven who it is."""
        is_other = bool(claimant) and claimant != self.leader
        if epoch < self.epoch or (epoch == self.epoch and is_other and self.leader):
            return False
        if epoch == self.promised and self.promised_to and is_other and claimant != self.promised_to:
            return False
        if epoch > self.epoch and not claimant:
            return False
        if epoch > max(self.epoch, self.promised) + MOST_AHEAD:
            return False
        self.epoch, self.promised = epoch, max(epoch, self.promised)
        self.leader = claimant or self.leader
        return True

    def may_lead(self, session: str, epoch: int, asker: str) -> bool:
        """Whether the host that claims to be elected is the one that this host has promised its vote to."""
        return session == asker == self.promised_to and epoch == self.promised > self.epoch

    @property
    def counts(self) -> bool:
        """Whether this host may confirm what the one that it follows does: it has promised itself to no newer one."""
        return self.promised <= self.epoch

    def place_of(self, session: str) -> int:
        """How many come before it."""
        ahead = [each.session for each in self.roster.voters] if self.roster is not None else []
        return ahead.index(session) if session in ahead else len(ahead)
