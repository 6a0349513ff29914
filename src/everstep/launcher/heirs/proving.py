"""Authentication between the hosts of a run: a key for each pair of them.

The join token opens a place in the run to any holder, so it does not prove whose vote this is. The host that has the
controller knows the sessions of all hosts, makes the pairs' keys from them, and gives each host its own. A successor
makes the same ones. Proofs cover both nonces and the certificate of the connection, so a recorded one fits no other
connection, and name the side that speaks, so none can be sent back.
"""

from collections.abc import Mapping

from everstep.wire.credentials import is_same, mac
from everstep.wire.heirs import public
from everstep.wire.joining import Proofs

_MARK = "voter"


def pair_key(one: str, other: str) -> str:
    """The key of two sessions, in any order."""
    return mac("\n".join(sorted((one, other))), _MARK)


class Pair:
    """This host towards another one: a `Proofs`."""

    is_of_job = False

    def __init__(self, own: str, other: str, key: str) -> None:
        """`own`, `other`: public sessions."""
        self._own, self.voter, self._key = own, other, key

    def __repr__(self) -> str:
        return "Pair()"  # must not get into a log

    def of_kind(self, proof: str) -> Proofs:
        return self

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        return self._of(self._own, who, fingerprint, head_nonce, host_nonce)

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        return is_same(proof, self._of(self.voter, who, fingerprint, head_nonce, host_nonce))

    def _of(self, speaker: str, *about: str) -> str:
        return f"{_MARK}:{speaker}:{mac(self._key, _MARK, speaker, *about)}"


class Acquaintances:
    """The hosts that this one can prove itself to. A key of two hosts is the same for as long as both live."""

    def __init__(self, session: str, keys: Mapping[str, str]) -> None:
        """`session`: this host's, not public. `keys`: by public session."""
        self._session, self._keys = session, dict(keys)
        self.own = public(session)

    def meet(self, session: str) -> None:
        """A host whose session is known here, because it has joined here."""
        if session != self._session:
            self._keys[public(session)] = pair_key(self._session, session)

    def update(self, keys: Mapping[str, str]) -> None:
        """Take the keys that the controller's host sent."""
        self._keys.update(keys)

    def clear(self) -> None:
        self._keys.clear()

    def towards(self, other: str) -> Pair | None:
        """None: that host is not known here."""
        key = self._keys.get(other)
        return Pair(self.own, other, key) if key is not None else None

    def at_door(self, token: Proofs) -> "AtDoor":
        return AtDoor(token, self)


class AtDoor:
    """Takes the proofs of hosts that are known, and the token of others: a `Proofs`."""

    voter = ""
    is_of_job = False

    def __init__(self, token: Proofs, acquaintances: Acquaintances) -> None:
        self._token, self._acquaintances = token, acquaintances

    def of_kind(self, proof: str) -> Proofs:
        mark, _, rest = proof.partition(":")
        known = self._acquaintances.towards(rest.partition(":")[0]) if mark == _MARK else None
        return known or self._token.of_kind(proof)

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        return self._token.proof(who, fingerprint, head_nonce, host_nonce)

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        return self.of_kind(proof).is_right(proof, who, fingerprint, head_nonce, host_nonce)
