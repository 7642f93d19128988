"""Events of kubelets about image pulls, in the words of several releases."""

from __future__ import annotations

import pytest

from vkgateway.kinds.events.pulls import Pull, parse_duration, read_pull, starts_pull


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5s", 1.5),
        ("1m2.5s", 62.5),
        ("2h3m4s", 7384.0),
        ("850ms", 0.85),
        ("12µs", 12e-6),
        ("12us", 12e-6),
        ("0s", 0.0),
        ("1s2", 0.0),
        ("s", 0.0),
        ("", 0.0),
        ("1.2.3s", 0.0),
        ("9999999h", 86_400.0),
    ],
)
def test_durations_of_go_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("message", "pull"),
    [
        (
            'Successfully pulled image "busybox:1.36" in 1.2s (3.4s including waiting). Image size: 2219949 bytes.',
            Pull("busybox:1.36", "pulled", 1.2, 3.4),
        ),
        (
            'Successfully pulled image "busybox" in 987ms (987ms including waiting)',
            Pull("busybox", "pulled", 0.987, 0.987),
        ),
        ('Successfully pulled image "busybox" in 2m0.5s', Pull("busybox", "pulled", 120.5, 120.5)),
        ('Successfully pulled image "busybox"', Pull("busybox", "pulled")),
        ('Successfully pulled image "busybox" in no time', Pull("busybox", "pulled")),
        ('Container image "busybox:1.36" already present on machine', Pull("busybox:1.36", "present")),
        (
            'Container image "busybox:1.36" already present on machine and can be accessed by the pod',
            Pull("busybox:1.36", "present"),
        ),
        ("Image is here", None),
        ("", None),
        # A name cannot change what the kubelet says after it.
        ('Successfully pulled image "a" in 9h" in 1s (2s including waiting)', Pull('a" in 9h', "pulled", 1.0, 2.0)),
    ],
)
def test_ends_of_pulls_are_read(message: str, pull: Pull | None) -> None:
    assert read_pull("Pulled", message) == pull


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ('rpc error: code = NotFound desc = failed to pull and unpack image "x:1": x:1: not found', "not_found"),
        ("manifest unknown", "not_found"),
        ("pull access denied, repository does not exist or may require authorization", "denied"),
        ("unexpected status from HEAD request: 403 Forbidden", "denied"),
        ("unexpected status: 401", "denied"),
        ("sha256:4014034abc: dial tcp: i/o timeout", "failed"),
        ("", "failed"),
    ],
)
def test_failed_pulls_have_a_cause(message: str, result: str) -> None:
    pull = read_pull("Failed", f'Failed to pull image "x:1": {message}')
    assert pull is not None
    assert (pull.image, pull.result) == ("x:1", result)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Failed", "Error: ImagePullBackOff"),
        ("Failed", "Error: ErrImagePull"),
        ("BackOff", 'Back-off pulling image "x"'),
        ("Started", "Started container main"),
        ("Pulling", 'Pulling image "x"'),
    ],
)
def test_other_events_are_no_end_of_a_pull(reason: str, message: str) -> None:
    assert read_pull(reason, message) is None
    assert starts_pull(reason) == (reason == "Pulling")


def test_image_that_may_never_be_pulled_is_missing() -> None:
    pull = read_pull("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never')
    assert pull is not None
    assert pull.result == "not_found"
