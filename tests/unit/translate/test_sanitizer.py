"""Messages with text of tenants are sanitized in linear time."""

import time

import pytest

from vkgateway.kinds.sanitizer import Sanitizer

VOLUME = "pvc-01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    "text",
    ["a" + "-" * 200_000, "a" + "--a" * 70_000 + "!", "/" * 200_000 + " pvc-", "/a" * 100_000 + " pvc-x"],
    ids=["dashes", "namespaces", "slashes", "paths"],
)
def test_sanitizing_takes_linear_time(text: str) -> None:
    began = time.thread_time()
    assert Sanitizer(()).sanitize_text(text) == text
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("see beta--lab/web-1.x now", "see (an object elsewhere) now"),
        ("image reg.example/a--b/c and a-/b and a--/b stay", "image reg.example/a--b/c and a-/b and a--/b stay"),
        (f"no room on {VOLUME}: full", "no room on (a volume): full"),
        (f"cannot mount /data/x/{VOLUME}/y, sorry", "cannot mount (a path of the node), sorry"),
        (f"x/{VOLUME}", "x(a path of the node)"),
        (f"{VOLUME}/a/{VOLUME}", "(a volume)"),
        ("a pvc-word is none", "a pvc-word is none"),
    ],
)
def test_hidden_text_extends_to_the_end_of_its_word(text: str, clean: str) -> None:
    assert Sanitizer(()).sanitize_text(text) == clean
