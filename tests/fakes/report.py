"""Report for tests of code that reports its progress."""


class Silent:
    """Report without output."""

    def __call__(self, text: str) -> None:
        """Ignore the text."""

    def done(self, text: str) -> None:
        """Ignore the text."""
