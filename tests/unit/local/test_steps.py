"""Steps run as soon as possible and concurrently, and the first failure is reported."""

import asyncio

import pytest

from tests.fakes.clock import FakeClock
from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.steps import Step, run_steps


class Heard:
    """Records the reports."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.finished: list[str] = []

    def __call__(self, text: str) -> None:
        self.now.append(text)

    def done(self, text: str) -> None:
        self.finished.append(text)


def recording(order: list[str], name: str, *, needs: tuple[str, ...] = ()) -> Step:
    async def run() -> None:
        order.append(f"{name} begins")
        await asyncio.sleep(0)
        order.append(f"{name} ends")

    return Step(name=name, title=name, run=run, needs=needs)


async def test_step_waits_for_its_dependencies() -> None:
    order: list[str] = []
    steps = [recording(order, "a"), recording(order, "b", needs=("a",)), recording(order, "c", needs=("a", "b"))]
    await run_steps(steps, report=Heard())
    assert order == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


async def test_independent_steps_run_concurrently() -> None:
    order: list[str] = []
    await run_steps([recording(order, "a"), recording(order, "b")], report=Heard())
    assert order[:2] == ["a begins", "b begins"]


async def test_finished_step_is_reported_with_its_duration() -> None:
    heard = Heard()
    clock = FakeClock(10.0)

    async def run() -> str:
        await clock.sleep(2.5)
        return "at 10.0.0.1"

    await run_steps([Step(name="a", title="API server", run=run)], report=heard, clock=clock)
    assert heard.finished == ["API server: at 10.0.0.1 (2.5 s)"]


async def test_first_failure_is_raised_and_cancels_the_others() -> None:
    stopped = asyncio.Event()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise UnavailableError("no disk")

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    steps = [Step(name="a", title="a", run=endless), Step(name="b", title="b", run=fail)]
    with pytest.raises(UnavailableError, match="no disk"):
        await run_steps(steps, report=Heard())
    assert stopped.is_set()


async def test_deliberate_error_is_raised_before_a_bug() -> None:
    async def fault() -> None:
        raise RuntimeError("fault")

    async def fail() -> None:
        raise UnavailableError("on purpose")

    steps = [Step(name="a", title="a", run=fault), Step(name="b", title="b", run=fail)]
    with pytest.raises(UnavailableError, match="on purpose"):
        await run_steps(steps, report=Heard())


async def test_dependent_of_a_failed_step_never_starts() -> None:
    order: list[str] = []

    async def fail() -> None:
        raise UnavailableError("broken")

    with pytest.raises(UnavailableError):
        await run_steps([Step(name="a", title="a", run=fail), recording(order, "b", needs=("a",))], report=Heard())
    assert order == []


async def test_unknown_dependency_is_an_error() -> None:
    with pytest.raises(ValueError, match="'b' needs"):
        await run_steps([recording([], "b", needs=("a",)), recording([], "a")], report=Heard())
