"""How pages are followed: which blocks count, and when what was said is what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pages import is_same_output, read_blocks, run_page
from tests.support.machine import patience

PAGE = """\
Some words.

```sh
export NAME=alpha
echo "tenant  $NAME"
```

```text
tenant alpha
```

```dockerfile
FROM nowhere
```

```sh
echo "and $NAME again"
```
"""


def test_blocks_are_commands_with_what_they_show() -> None:
    first, second = read_blocks(PAGE)
    assert (first.line, first.shown) == (3, "tenant alpha\n")
    assert first.commands.startswith("export")
    assert (second.line, second.shown) == (16, "")


@pytest.mark.parametrize(
    ("output", "shown", "same"),
    [
        ("a  b\n", "a b", True),
        ("a\nb\nc\n", "a\n...\nc", True),
        ("a\nc\n", "a\n...\nc", True),
        ("pod-x7f created\n", "pod-... created", True),
        ("a\nb\n", "a", False),
        ("a.b\n", "a-b", False),
        ("[ 0.2s] serves at https://10.1.2.3:25917\n", "[ 13s] serves at https://10.213.4.1:7", True),
        ("3 pods\n", "4 pods", False),
    ],
)
def test_what_is_said_agrees_with_what_is_shown(output: str, shown: str, *, same: bool) -> None:
    assert is_same_output(output, shown) is same


def test_a_page_is_followed_in_one_shell(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    run_page(page, folder=tmp_path, env={}, timeout=patience(10))


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("tenant alpha", "tenant beta"))
    with pytest.raises(AssertionError, match="line 3"):
        run_page(page, folder=tmp_path, env={}, timeout=patience(10))


def test_a_page_whose_command_fails_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace('echo "and', 'no-such-command "and'))
    with pytest.raises(AssertionError, match="line 16"):
        run_page(page, folder=tmp_path, env={}, timeout=patience(10))
