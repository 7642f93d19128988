"""Outcomes of the gang benchmarks, and their manifests."""

from __future__ import annotations

from bench import gang, reclaim, volcano
from bench.eviction import Loss
from bench.jobs import RunSummary
from bench.outcome import Outcome
from bench.pods import PodKind, gang_marks, pod_manifest
from bench.reclaim import Round


def runs(*makespans: float | None) -> list[RunSummary]:
    """Return summaries of runs with five jobs each."""
    return [RunSummary(completed=5 if span else 0, makespan=span, held=2.0, idle=span or 99.0) for span in makespans]


def build_outcome(vkgateway_runs: list[RunSummary], volcano_runs: list[RunSummary]) -> Outcome:
    one = [RunSummary(completed=1, makespan=6.0, held=0.0, idle=0.0)]
    tallies: gang.Tallies = {("vkgateway", 1): one, ("vkgateway", 2): one}
    tallies |= {("kube-scheduler", 5): runs(None, 30.0), ("vkgateway", 5): vkgateway_runs}
    return gang.build_outcome(tallies | ({("Volcano", 5): volcano_runs} if volcano_runs else {}), notes=[])


def test_median_makespans_are_compared() -> None:
    outcome = build_outcome(runs(18.0, 17.0, 30.0), runs(20.0, 21.0, 19.0))
    rows = {(row[0], row[2]): row for row in outcome.rows}
    assert rows[5, "vkgateway"][3:6] == [5, 18.0, 0.9]
    assert rows[5, "kube-scheduler"][3:6] == [0, None, None], "the worst run counts, and one without an end has none"
    assert [target.is_met for target in outcome.targets] == [True, True]


def test_incomplete_run_misses_the_target() -> None:
    outcome = build_outcome(runs(18.0, None), runs(20.0))
    assert [(target.seen, target.is_met) for target in outcome.targets] == [(0, False)]


def test_without_volcano_there_is_no_ratio() -> None:
    outcome = build_outcome(runs(18.0), [])
    assert [row[2] for row in outcome.rows if row[0] == 5] == ["kube-scheduler", "vkgateway"]
    assert outcome.rows[-1][5] is None
    assert len(outcome.targets) == 1


def test_other_modes_are_rows_of_their_own() -> None:
    tallies: gang.Tallies = {("vkgateway", 5): runs(18.0), ("vkgateway, volcano", 5): runs(25.0)}
    outcome = gang.build_outcome(tallies | {("Volcano", 5): runs(20.0)}, notes=[])
    assert {row[2]: row[5] for row in outcome.rows} == {"Volcano": 1.0, "vkgateway": 0.9, "vkgateway, volcano": 1.25}


def test_slower_than_volcano_misses() -> None:
    outcome = build_outcome(runs(21.0), runs(20.0))
    assert [target.is_met for target in outcome.targets] == [True, False]


def test_worst_round_of_reclaim_counts() -> None:
    rounds = [
        Round(empty=0.5, full=6.0, evicted=Loss(64, 700.0), least=Loss(64, 650.0), terms={"grace": 0.25}),
        Round(empty=0.5, full=7.5, evicted=Loss(80, 700.0), least=Loss(64, 650.0)),
    ]
    outcome = reclaim.build_outcome(rounds, notice=5.0)
    assert [(target.seen, target.is_met) for target in outcome.targets] == [(2.5, False), (1.25, False)]
    assert outcome.notes[-1].endswith(": from its end until the victims had terminated 0.25 s.")
    assert outcome.rows[0] == [1, 0.5, 6.0, 1.0, 64, 64, 700, 650]
    assert all(target.is_met for target in reclaim.build_outcome(rounds[:1], notice=5.0).targets)


def test_pod_of_a_gang() -> None:
    kind = PodKind(run="r", gpus=8, restart="Never", priority_class="low", annotations=gang_marks("train", 6))
    pod = pod_manifest("train-0", kind)
    assert pod["metadata"]["annotations"] == {"vkgateway.io/gang": "train", "vkgateway.io/gang-min": "6"}
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert (pod["spec"]["restartPolicy"], pod["spec"]["priorityClassName"]) == ("Never", "low")
    assert "annotations" not in pod_manifest("p", PodKind(run="r"))["metadata"]


def test_pod_group_requires_all_members() -> None:
    group = volcano.pod_group("train", members=6, resources={"nvidia.com/gpu": "48"})
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"]["minMember"] == 6
