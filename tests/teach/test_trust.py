"""The share of images in the right cluster: its interval holds the truth, and no model is judged by what it saw."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta
from taught_runs import COUNT, colour_run, opened, untaught_run

from command_line import worked
from twincluster.clustering import share_interval
from twincluster.runs import Edits, Run
from twincluster.teacher import Share, Teacher, Trust

COLOURS = np.arange(COUNT) % 3


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return colour_run(tmp_path)


def clopper_pearson(right: int, asked: int) -> tuple[float, float]:
    low = 0.0 if right == 0 else float(beta.ppf(0.025, right, asked - right + 1))
    return low, 1.0 if right == asked else float(beta.ppf(0.975, right + 1, asked - right))


@pytest.mark.parametrize("total, asked", [(200, 20), (2_000, 40), (2_000, 400), (100_000, 64)])
def test_the_interval_holds_the_truth_and_is_no_wider_than_clopper_pearsons(total: int, asked: int) -> None:
    random = np.random.default_rng(total + asked)
    held = 0
    for _ in range(2_000):
        truth = random.integers(total // 2, total + 1)
        right = int(random.hypergeometric(truth, total - truth, asked))
        low, high = share_interval(right, asked, total)
        held += low <= truth / total <= high
        widest = clopper_pearson(right, asked)
        assert 0 <= low <= right / asked <= high <= 1
        assert high - low <= widest[1] - widest[0] + 1e-9
    assert held >= 0.93 * 2_000


def test_an_image_of_which_all_were_asked_about_leaves_no_doubt() -> None:
    assert share_interval(7, 10, 10) == (0.7, 0.7)
    assert share_interval(0, 0, 5) == (0.0, 1.0)


def asked_at_random(run: Run, count: int) -> Teacher:
    """The next `count` random questions, answered by somebody who knows the colours."""
    teacher = Teacher(opened(run))
    state = teacher.edits.state
    for row in teacher.sample_rows(state, count).tolist():
        teacher.edits.answer([row], row % 3, sample=True)
    return teacher


def test_images_count_with_the_cluster_they_had_before_their_answer(run: Run) -> None:
    teacher = asked_at_random(run, 40)
    state = teacher.edits.state
    asked = np.flatnonzero(state.sample >= 0)
    trust = teacher.trust(state)
    assert trust is not None
    of_the_rest = (run.read_assignments().clusters[asked] == COLOURS[asked]).mean()
    assert trust.share == pytest.approx((40 + of_the_rest * (COUNT - 40)) / COUNT)
    assert trust.share < 1
    assert trust.low <= (state.clusters == COLOURS).mean() <= trust.high
    for cluster, share in trust.clusters.items():
        inside = asked[state.sample[asked] == cluster]
        members = np.flatnonzero(state.clusters == cluster)
        answered = np.isin(members, asked)
        rest = (~answered).sum() * (COLOURS[inside] == cluster).mean()
        assert share.count == len(inside)
        assert share.share == pytest.approx((answered.sum() + rest) / len(members))
        assert share.low <= (COLOURS[members] == cluster).mean() <= share.high
    assert trust.clusters


def test_answers_that_were_not_asked_at_random_do_not_feed_the_estimate(run: Run) -> None:
    edits = Edits(run)
    edits.answer(range(0, 30, 3), 0)
    assert Teacher(opened(run)).trust(edits.state) is None
    edits.answer([31], 1, sample=True)  # was right
    trust = Teacher(opened(run)).trust(edits.state)
    assert trust is not None
    assert (trust.count, trust.share) == (1, 1.0)
    assert trust.low > 10 / COUNT  # these a person has put right


def test_after_teaching_the_estimate_comes_from_lessons_that_have_not_seen_the_answers(run: Run) -> None:
    """Colours that nothing tells: the model that has seen the answers looks perfect on them, and is not."""
    teacher, random = Teacher(opened(run)), np.random.default_rng(0)
    noise = random.integers(0, 3, COUNT)
    state = teacher.edits.state
    asked = teacher.sample_rows(state, 60)
    for row in asked.tolist():
        teacher.edits.answer([row], int(noise[row]), sample=True)
    state = teacher.edits.state
    state = teacher.accept(state, teacher.proposals(state))
    assert (state.clusters[asked] == noise[asked]).all()
    trust = teacher.trust(state)
    assert trust is not None
    assert trust.count == 60
    of_the_rest = [(bound * COUNT - 60) / (COUNT - 60) for bound in (trust.low, trust.high)]
    assert of_the_rest[0] < 0.4
    assert of_the_rest[1] < 0.7
    assert trust.low <= (state.clusters == noise).mean() <= trust.high


def test_after_several_acceptances_the_interval_holds_the_truth(tmp_path: Path) -> None:
    """Of a 95 % interval one in twenty may miss; estimates of one run after another acceptance miss together."""
    held, errors = [], []
    for seed in range(100, 112):
        random = np.random.default_rng(seed)
        groups = random.integers(0, 9, 600)
        truth = groups % 3
        rows = random.normal(size=(9, 16))[groups] + random.normal(size=(600, 16))
        start = np.where(random.random(600) < 0.6, random.integers(0, 3, 600), truth)
        place = tmp_path / str(seed)
        place.mkdir()
        np.save(place / "rows.npy", rows.astype(np.float32))
        teacher = Teacher(opened(untaught_run(place / "run", place / "rows.npy", start)))
        for cluster in range(3):
            teacher.edits.rename(cluster, f"group {cluster}")
        state = teacher.edits.state
        for count in (100, 20, 20):
            asked = [question.row for question in teacher.questions(state, count)]
            state = teacher.answer(state, {row: f"group {truth[row]}" for row in asked})
            state = teacher.accept(state, teacher.proposals(state))
            trust, share = teacher.trust(state), (state.clusters == truth).mean()
            held.append(trust.low <= share <= trust.high)
            errors.append(trust.share - share)
        assert Teacher(opened(Run.open(place / "run"))).trust(state) == trust  # nothing hangs on what was kept
    assert np.mean(held) >= 0.9
    assert abs(np.mean(errors)) < 0.04


def test_an_earlier_acceptance_counts_for_rows_that_no_later_one_moves(run: Run) -> None:
    teacher = asked_at_random(run, 30)
    state = teacher.accept(teacher.edits.state, teacher.proposals(teacher.edits.state))
    first = teacher.trust(state)
    row = int(np.flatnonzero(~state.shown)[0])  # stays where it is
    head = teacher.lesson(state).head
    once_more = teacher.trust(teacher.edits.accept([row], [int(state.clusters[row])], head=head))
    assert once_more.share == first.share > 0.9


def test_when_all_images_were_answered_all_are_right(run: Run) -> None:
    trust = asked_at_random(run, COUNT).trust(Edits(run).state)
    assert (trust.share, trust.low, trust.high) == (1.0, 1.0, 1.0)
    assert {(share.share, share.low, share.high) for share in trust.clusters.values()} == {(1.0, 1.0, 1.0)}


def test_after_teaching_the_estimate_rises_with_the_share_that_is_right(run: Run) -> None:
    teacher = asked_at_random(run, 30)
    state = teacher.edits.state
    before = teacher.trust(state)
    after = teacher.trust(teacher.accept(state, teacher.proposals(state)))
    assert before is not None
    assert after is not None
    assert before.share < 0.9 < after.share
    assert after.low <= (Edits(run).state.clusters == COLOURS).mean() <= after.high
    merged = teacher.edits.merge([0, 1])
    assert teacher.trust(merged).share >= after.share
    assert teacher.trust(teacher.edits.split(2, 2)).count == 30


def test_proposals_that_were_not_accepted_do_not_count(run: Run) -> None:
    teacher = asked_at_random(run, 30)
    state = teacher.edits.state
    before, groups = teacher.trust(state), teacher.proposals(state)
    smallest = min(groups, key=lambda group: len(group.rows))
    after = teacher.trust(teacher.accept(state, [smallest]))
    assert before.share <= after.share < teacher.trust(accepted_all(run)).share


def accepted_all(run: Run):
    teacher = Teacher(opened(run))
    teacher.edits.undo()
    state = teacher.edits.state
    return teacher.accept(state, teacher.proposals(state))


def test_evaluate_and_the_report_tell_it(run: Run) -> None:
    teacher = asked_at_random(run, 40)
    trust = teacher.trust(teacher.edits.state)
    assert trust.to_text() in worked("evaluate", run.folder).out
    found = json.loads(worked("evaluate", run.folder, "--json").out)["trust"]
    assert found["share"] == pytest.approx(trust.share)
    assert set(found["clusters"]) == {str(cluster) for cluster in trust.clusters}
    worked("report", run.folder)
    assert trust.to_text().removesuffix(")") in (run.folder / "report.html").read_text()


def test_the_words_of_an_estimate() -> None:
    trust = Trust(0.9, 0.81, 0.96, 1, {})
    assert trust.to_text() == (
        "90.0% of the images are in the right cluster, by 1 random answer (95 % interval 81.0% to 96.0%)"
    )
    assert Share(0.5, 0.25, 0.75, 1234).to_text().endswith("by 1,234 random answers (95 % interval 25.0% to 75.0%)")
