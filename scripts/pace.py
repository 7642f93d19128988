"""Prints the CPU time of a fixed workload on this interpreter in milliseconds: the minimum of three runs."""

import time


class Pair:
    """Small object, because the gateway's work consists of objects, attributes, tuples, dictionaries and generators."""

    __slots__ = ("left", "right")

    def __init__(self, left: int, right: int) -> None:
        self.left = left
        self.right = right

    def pick(self, turn: int) -> int:
        """Return a value that depends on whether `turn` is odd."""
        return self.left + turn if turn % 2 else self.right - turn


def work() -> dict[str, int]:
    """Run the workload; the result is unused."""
    seen: dict[str, int] = {}
    for turn in range(30_000):
        seen[str(turn % 1000)] = Pair(turn, turn + 1).pick(turn)
        seen["last"] = sum(value for _, value in sorted((("c", turn), ("b", 2), ("a", 3))))
    return seen


def measure() -> float:
    """Return the CPU time of one run in seconds."""
    started_at = time.process_time()
    work()
    return time.process_time() - started_at


if __name__ == "__main__":
    print(round(min(measure() for _ in range(3)) * 1000))
