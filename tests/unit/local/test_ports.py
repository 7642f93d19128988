"""Choice of ports: requested, kept, free."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api.errors import ConflictError, InputError
from vkgateway_platform.embedded import ports

PREFERRED = {"api": 6443, "etcd": 2379}
ADDRESSES = {"api": "10.0.0.1", "etcd": "127.0.0.1"}


def choose(
    *,
    taken: set[int] = frozenset(),  # type: ignore[assignment]
    kept: dict[str, int] | None = None,
    requested: dict[str, int] | None = None,
    port_range: tuple[int, int] | None = None,
    ours: set[int] | None = None,
) -> dict[str, int]:
    return ports.choose_ports(
        PREFERRED,
        addresses=ADDRESSES,
        kept=kept or {},
        requested=requested or {},
        port_range=port_range,
        ours=lambda: ours or set(),
        free=lambda _address, port: port not in taken,
    )


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_free_preferred_ports_are_chosen() -> None:
    assert choose() == PREFERRED


def test_next_free_port_is_chosen() -> None:
    assert choose(taken={6443, 6444})["api"] == 6445


def test_a_range_replaces_the_preference() -> None:
    assert choose(port_range=(20000, 20009)) == {"api": 20000, "etcd": 20001}


def test_kept_ports_stay() -> None:
    assert choose(kept={"api": 7000})["api"] == 7000


def test_requested_port_overrides_the_kept_one() -> None:
    assert choose(kept={"api": 7000}, requested={"api": 8000})["api"] == 8000


def test_port_of_an_own_process_is_no_conflict() -> None:
    assert choose(kept={"api": 7000}, taken={7000}, ours={7000})["api"] == 7000


def test_own_process_that_starts_or_exits_meanwhile_is_no_conflict() -> None:
    """The process is restarted during `up`: its port becomes used or free in the middle of the check."""
    held: set[int] = set()

    def bound(_address: str, _port: int) -> bool:
        held.add(7000)
        return False

    def ended(_address: str, _port: int) -> bool:
        return next(answers)

    answers = iter([False, True])
    preferred = {"api": 6443}
    for free in (bound, ended):
        held.clear()
        chosen = ports.choose_ports(
            preferred,
            addresses=ADDRESSES,
            kept={"api": 7000},
            requested={},
            port_range=None,
            ours=lambda: set(held),
            free=free,
        )
        assert chosen == {"api": 7000}


@pytest.mark.parametrize("how", ["kept", "requested"])
def test_port_of_another_program_is_an_error_with_the_way_out(how: str) -> None:
    with pytest.raises(ConflictError, match=r"port 7000 at 10\.0\.0\.1 for api is in use by") as caught:
        choose(taken={7000}, **{how: {"api": 7000}})  # type: ignore[arg-type]
    assert "--port api=PORT" in caught.value.hint


def test_requested_port_of_another_own_process_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match=r"port 7001 at 10\.0\.0\.1 for api is in use"):
        choose(kept={"api": 7000}, requested={"api": 7001}, taken={7000, 7001}, ours={7000, 7001})


@pytest.mark.parametrize("how", ["kept", "requested"])
def test_same_port_for_two_names_is_refused(how: str) -> None:
    kept = {"peer": 7000} if how == "kept" else {}
    requested = {"etcd": 7000} if kept else {"etcd": 7000, "peer": 7000}
    with pytest.raises(InputError, match=r"port 7000 at 127\.0\.0\.1 is set for both etcd and peer") as caught:
        ports.choose_ports(
            {"etcd": 2379, "peer": 2380},
            addresses={"etcd": "127.0.0.1", "peer": "127.0.0.1"},
            port_range=None,
            ours=lambda: {7000},
            free=lambda _address, _port: True,
            kept=kept,
            requested=requested,
        )
    assert "--port etcd=PORT" in caught.value.hint


def test_full_range_is_an_error() -> None:
    with pytest.raises(ConflictError, match=r"no port is free at 127\.0\.0\.1 from 5 to 5 for etcd") as caught:
        choose(port_range=(5, 5))
    assert "--port-range" in caught.value.hint


@given(taken=st.sets(st.integers(6400, 6500)))
def test_chosen_ports_are_unique_and_free(taken: set[int]) -> None:
    chosen = choose(taken=taken, port_range=(6400, 6600))
    assert len(set(chosen.values())) == len(PREFERRED)
    assert not taken & set(chosen.values())


def test_a_listening_port_is_not_free(busy_port: int) -> None:
    assert not ports.is_free("127.0.0.1", busy_port)


def test_owner_of_a_port_is_named(busy_port: int) -> None:
    with pytest.raises(ConflictError, match=r"in use by \S+ \(pid \d+\)"):
        ports.choose_ports(
            {"etcd": busy_port}, addresses=ADDRESSES, kept={}, requested={"etcd": busy_port}, port_range=None
        )


@pytest.mark.parametrize("text", ["", "5", "9-5", "0-5", "1-70000", "a-b", "-"])
def test_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not FROM-TO"):
        ports.parse_range(text)


def test_range_is_parsed() -> None:
    assert ports.parse_range("20000-20999") == (20000, 20999)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("http=80", "port 'http' does not exist"), ("api=x", "port 'x' for api"), ("api=0", "port '0'")],
)
def test_invalid_port_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ports.parse_port(text, names=PREFERRED)
