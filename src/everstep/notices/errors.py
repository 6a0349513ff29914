"""Error for a notice that could not be delivered."""


class NoticeError(Exception):
    """It did not arrive. `is_final`: trying again would not help."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final
