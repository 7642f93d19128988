"""A clock for tests of what waits: nobody really does."""


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
