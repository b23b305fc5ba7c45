"""What a run learns from a person's answers, on real pictures."""

from pathlib import Path

import numpy as np
import pytest
from taught_runs import COUNT, colour_run, opened, wrong_clusters

from twincluster.core import InputError
from twincluster.data import cache_folder
from twincluster.runs import JUNK, Run
from twincluster.teacher import Teacher

COLOURS = np.arange(COUNT) % 3


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return colour_run(tmp_path)


def taught(run: Run) -> Teacher:
    """Told of four pictures of each colour which cluster they belong to."""
    teacher = Teacher(opened(run))
    for colour in range(3):
        teacher.edits.answer(range(colour, 12, 3), colour)
    return teacher


def test_proposals_move_most_wrong_images_to_the_cluster_of_their_kind(run: Run) -> None:
    teacher = taught(run)
    state = teacher.edits.state
    after = state.clusters
    for group in teacher.proposals(state):
        assert (state.clusters[group.rows] == group.source).all()
        assert (np.diff(group.certainty) <= 0).all()
        after[group.rows] = group.to
    assert (after == COLOURS).mean() > 0.95 > (wrong_clusters() == COLOURS).mean()
    assert not np.isin(np.concatenate([group.rows for group in teacher.proposals(state)]), np.arange(12)).any()


def test_nothing_would_move_before_anybody_has_answered(run: Run) -> None:
    teacher = Teacher(opened(run))
    assert teacher.proposals(teacher.edits.state) == []
    assert teacher.trust(teacher.edits.state) is None
    assert not teacher.enough(teacher.edits.state)


def test_every_fifth_question_is_about_a_random_image_and_none_is_asked_twice(run: Run) -> None:
    teacher = taught(run)
    asked = teacher.questions(teacher.edits.state, 20)
    assert [question.sample for question in asked] == [(12 + place + 1) % 5 == 0 for place in range(20)]
    assert len({question.row for question in asked} | set(range(12))) == 20 + 12
    for question in asked:
        chances = [chance for _, chance in question.clusters]
        assert chances == sorted(chances, reverse=True)
        assert {cluster for cluster, _ in question.clusters} <= {0, 1, 2}
    assert asked == taught_again(teacher).questions(teacher.edits.state, 20)


def taught_again(teacher: Teacher) -> Teacher:
    return Teacher(opened(teacher.images.run))


def test_all_images_are_asked_about_where_more_questions_are_wanted_than_there_are_images(run: Run) -> None:
    teacher = taught(run)
    teacher.edits.mark_junk([50])
    asked = teacher.questions(teacher.edits.state, 1000)
    assert sorted(question.row for question in asked) == sorted(set(range(12, COUNT)) - {50})


def test_random_questions_reach_every_image_alike(run: Run) -> None:
    teacher = taught(run)
    counts = np.zeros(COUNT)
    for seed in range(300):
        teacher.seed = seed
        counts[teacher.sample_rows(teacher.edits.state, 8)] += 1
    assert (counts[:12] == 0).all()
    assert (counts[12:] > 0).all()
    expected = 300 * 8 / 78
    assert ((counts[12:] - expected) ** 2 / expected).sum() < 120  # chi-squared of 77 degrees: above once in 1,000


def test_a_sheet_shows_the_most_doubtful_images_of_a_cluster_first(run: Run) -> None:
    teacher = taught(run)
    state = teacher.edits.state
    sheet = teacher.sheet(state, 1)
    assert (state.clusters[sheet] == 1).all()
    assert not np.isin(sheet, np.arange(12)).any()
    wrong = int((COLOURS[state.members(1)] != 1).sum())
    assert (COLOURS[sheet[:wrong]] != 1).mean() > 0.8


def test_a_cluster_grows_by_what_is_like_it_and_unlike_others_in_the_whole_run(run: Run) -> None:
    teacher = taught(run)
    found = teacher.grow([0, 3, 6], [1, 4], count=20)
    assert len(found) == 20
    assert not set(found) & {0, 3, 6, 1, 4}
    assert (COLOURS[found] == 0).mean() > 0.9
    assert len(set(teacher.edits.state.clusters[found])) > 1  # not only in the clusters of the examples
    with pytest.raises(InputError, match="select others"):
        teacher.grow([])


def test_the_space_is_read_from_the_cache_and_made_again_where_that_is_damaged(run: Run) -> None:
    first = Teacher(opened(run))
    first.prepare()
    (kept,) = (cache_folder() / "spaces").iterdir()
    inputs = opened(run)
    inputs.kinds = lambda: pytest.fail("features were computed again")  # type: ignore[assignment]
    again = Teacher(inputs)
    again.prepare()
    assert np.array_equal(first.space.rows, again.space.rows)
    content = bytearray(kept.read_bytes())
    content[-100] ^= 1
    kept.write_bytes(content)
    mended = Teacher(opened(run))
    mended.prepare()
    assert np.array_equal(first.space.rows, mended.space.rows)
    assert kept.read_bytes() != bytes(content)


def test_junk_is_proposed_once_a_person_has_marked_some_and_is_never_among_the_choices(run: Run) -> None:
    teacher = taught(run)
    state = teacher.edits.mark_junk(range(2, 40, 3))
    proposals = teacher.proposals(state)
    assert JUNK in {group.to for group in proposals}
    assert all(cluster >= 0 for one in teacher.questions(state, 10) for cluster, _ in one.clusters)


def test_images_that_are_gone_are_neither_asked_about_nor_moved(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(tmp_path / "empty"))  # else they are shown from the store
    for number in range(60, COUNT):
        (run.folder.parent / "images" / f"{number:03d}.png").unlink()
    teacher = taught(run)
    assert teacher.rows.max() < 60
    assert all(question.row < 60 for question in teacher.questions(teacher.edits.state, 100))
