"""A report for tests of what tells its progress."""


class Silent:
    """Reports to nobody."""

    def __call__(self, text: str) -> None:
        """Say nothing."""

    def done(self, text: str) -> None:
        """Say nothing."""
