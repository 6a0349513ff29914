"""How a transfer ends: what was sent, or a sentence with the failure, the peer and the cause."""

import dataclasses


class TransferError(Exception):
    """A snapshot did not get to the other side. The message is one sentence: what, to or from which node, and why.

    `is_refusal`: the other side answered, and will answer the same again until something changes there (no memory, an
    older generation, another run); otherwise it may be retried at once, and resumes where it was.
    """

    def __init__(self, sentence: str, *, is_refusal: bool = False) -> None:
        super().__init__(sentence)
        self.is_refusal = is_refusal


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """This side does not take, or does not have, what the peer asks for. The message is sent to the peer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A snapshot is complete on the other side."""

    bytes_sent: int  # of the snapshot, over the network, in this call
    bytes_known: int  # the rest: the other side had them already
    took_s: float
