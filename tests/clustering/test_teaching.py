"""What a person's answers say about all rows: where rows would go, what stays, which rows to ask about."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from twincluster.clustering import teaching
from twincluster.clustering.teaching import (
    JUNK,
    NO_EXAMPLE,
    UNREADABLE,
    Head,
    Lesson,
    Space,
    choose_questions,
    clusters_for_labels,
    saturated,
    teach,
)
from twincluster.core import InputError


def blobs(sizes: list[int], seed: int = 0, spread: float = 0.35) -> tuple[np.ndarray, np.ndarray]:
    """Rows around as many random directions, and which row is of which."""
    rng = np.random.default_rng(seed)
    truth = np.arange(len(sizes)).repeat(sizes)
    centres = rng.normal(size=(len(sizes), 24))
    return (centres[truth] + spread * rng.normal(size=(len(truth), 24)) * np.sqrt(len(sizes))).astype(np.float32), truth


@pytest.fixture(scope="module")
def four() -> tuple[Space, np.ndarray]:
    features, truth = blobs([80, 80, 80, 80])
    return Space.of(features), truth


def answers(n: int, **given: int) -> np.ndarray:
    examples = np.full(n, NO_EXAMPLE)
    for row, cluster in given.items():
        examples[int(row[1:])] = cluster
    return examples


def test_two_answers_divide_a_cluster_that_holds_two_kinds(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    clusters = np.array([0, 0, 1, 2])[truth]  # kinds 0 and 1 are in one cluster
    examples = answers(len(truth), r0=0, r1=0, r81=7, r82=7)
    lesson = teach(space, clusters, examples)
    assert lesson.classes.tolist() == [0, 1, 2, 7]
    wanted = np.array([0, 7, 1, 2])[truth]
    assert (lesson.clusters == wanted).mean() > 0.97
    rows, to, certainty = lesson.proposals(clusters)
    assert (to == 7).mean() > 0.9
    assert set(rows) <= set(np.flatnonzero(lesson.clusters != clusters))
    assert not {0, 1, 81, 82} & set(rows.tolist())
    assert (np.diff(certainty) <= 0).all()
    assert certainty.max() <= 1


def test_without_answers_nothing_moves(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    lesson = teach(space, truth, answers(len(truth)))
    assert len(lesson.proposals(truth)[0]) == 0
    assert (lesson.clusters == truth).mean() > 0.99


def test_confirmed_clusters_stay(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    lesson = teach(space, truth, answers(len(truth), r0=0, r80=1, r160=2, r240=3))
    assert len(lesson.proposals(truth)[0]) < 4


def test_an_example_is_never_overruled(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    lesson = teach(space, truth, answers(len(truth), r5=3, r6=0, r7=0, r8=0))
    assert lesson.clusters[5] == 3
    assert lesson.probabilities[5].tolist() == [0, 0, 0, 1]


def test_a_refused_row_does_not_go_there_and_others_do(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    clusters = np.array([0, 0, 1, 2])[truth]
    examples = answers(len(truth), r0=0, r1=0, r81=7, r82=7)
    refused = np.arange(90, 120)
    rows, to, _ = teach(space, clusters, examples, {7: refused, 99: np.array([3])}).proposals(clusters)
    assert not set(rows[to == 7].tolist()) & set(refused.tolist())
    assert (to == 7).sum() > 30


def test_junk_is_proposed_after_an_example_but_not_predicted(four: tuple[Space, np.ndarray]) -> None:
    features, truth = blobs([80, 80, 80, 80])
    space = Space.of(features)
    clusters = np.minimum(truth, 2)  # kind 3 is rubbish and lies in cluster 2
    lesson = teach(space, clusters, answers(len(truth), r0=0, r80=1, r160=2, r161=2, r240=JUNK, r241=JUNK))
    assert lesson.classes.tolist() == [JUNK, 0, 1, 2]
    rows, to, _ = lesson.proposals(clusters)
    assert (truth[rows[to == JUNK]] == 3).sum() > 60
    assert JUNK not in lesson.head.predict(features)[0]
    assert (lesson.head.predict(features, junk=True)[0][truth == 3] == JUNK).mean() > 0.8


def test_unreadable_rows_are_neither_asked_about_nor_proposed(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    clusters = truth.copy()
    clusters[100:110] = UNREADABLE
    lesson = teach(space, clusters, answers(len(truth), r0=0))
    assert not set(lesson.proposals(clusters)[0].tolist()) & set(range(100, 110))
    asked = choose_questions(space, lesson, clusters, answers(len(truth), r0=0), 400)
    assert set(asked.tolist()) == set(range(1, len(truth))) - set(range(100, 110))


def test_the_head_places_new_rows_as_the_lesson_does_and_survives_a_file(tmp_path: Path) -> None:
    features, truth = blobs([100, 100, 100], seed=1)
    more = features[::2]
    space = Space.of(features[1::2], second=features[1::2, :9])
    kinds = truth[1::2]
    lesson = teach(space, np.zeros(len(kinds), int), answers(len(kinds), r0=0, r60=4, r120=9))
    save_file(lesson.head.tensors(), tmp_path / "head.safetensors")
    head = Head.from_tensors(load_file(tmp_path / "head.safetensors"))
    ids, chances = head.predict(more, more[:, :9])
    assert (ids == np.array([0, 4, 9])[truth[::2]]).mean() > 0.95
    assert chances.shape == (len(more), 3)
    assert np.allclose(chances.sum(1), 1, atol=1e-5)
    assert np.allclose(space.place(more, more[:, :9])[5], space.place(more[5:6], more[5:6, :9])[0], atol=1e-5)


def test_the_same_answers_give_the_same_lesson(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    first, again = (teach(space, truth // 2, answers(len(truth), r0=0, r81=5), seed=3) for _ in range(2))
    assert np.array_equal(first.probabilities, again.probabilities)


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_few_rows_are_enough(n: int) -> None:
    features = np.eye(n, 5, dtype=np.float32)
    lesson = teach(Space.of(features), np.zeros(n, int), answers(n, r0=1))
    assert lesson.clusters[0] == 1
    assert len(choose_questions(Space.of(features), lesson, np.zeros(n, int), answers(n, r0=1), 5)) == min(5, n - 1)


def test_rows_that_are_all_alike_do_not_break_it() -> None:
    features = np.ones((50, 8), np.float32)
    lesson = teach(Space.of(features), np.zeros(50, int), answers(50, r0=1, r1=2))
    assert np.isfinite(lesson.probabilities).all()
    assert len(set(choose_questions(Space.of(features), lesson, np.zeros(50, int), answers(50), 7).tolist())) == 7


def test_features_that_are_no_numbers_are_refused_by_row() -> None:
    features = np.ones((4, 3), np.float32)
    features[2, 1] = np.nan
    with pytest.raises(InputError, match="row 2 .* NaN"):
        Space.of(features)


def test_first_questions_are_about_different_kinds(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    nobody = answers(len(truth))
    asked = choose_questions(space, None, np.zeros(len(truth), int), nobody, 8)
    assert len(set(asked.tolist())) == 8
    assert set(truth[asked]) == {0, 1, 2, 3}
    assert len(set(truth[choose_questions(space, None, np.zeros(len(truth), int), nobody, 4)])) >= 3


def test_later_questions_are_not_about_what_is_known(four: tuple[Space, np.ndarray]) -> None:
    space, truth = four
    examples = np.full(len(truth), NO_EXAMPLE)
    examples[::10] = truth[::10]
    examples[truth == 1] = NO_EXAMPLE  # nobody has said anything about kind 1, which is spread over all clusters
    clusters = np.where(truth == 1, np.arange(len(truth)) % 4, truth)
    lesson = teach(space, clusters, examples)
    asked = choose_questions(space, lesson, clusters, examples, 20)
    assert (truth[asked] == 1).mean() > 0.3
    assert not (examples[asked] != NO_EXAMPLE).any()


def test_a_label_means_the_cluster_of_this_name_or_names_the_cluster_of_its_rows() -> None:
    clusters = np.array([0, 0, 0, 1, 1, 1, 2, 2, UNREADABLE, JUNK])
    labels = {0: "cat", 1: "cat", 2: "dog", 3: "dog", 4: "dog", 6: "owl", 7: "fox", 5: "cow", 8: "cow", 9: "elk"}
    assert clusters_for_labels(labels, {5: "cow"}, clusters) == {
        "cat": 0,  # two of three answers there
        "dog": 1,
        "owl": None,  # as many as foxes
        "fox": None,
        "cow": 5,  # a name already
        "elk": None,  # junk and unreadable rows are no cluster
    }


def test_a_named_cluster_is_not_named_again() -> None:
    assert clusters_for_labels({0: "cat", 1: "cat"}, {0: "dog"}, np.array([0, 0, 1])) == {"cat": None}
    assert clusters_for_labels({0: "cat", 1: "cat", 2: "cat"}, {0: "dog"}, np.array([0, 0, 1])) == {"cat": 1}


def test_saturation_tells_when_more_answers_change_little() -> None:
    features, truth = blobs([150, 150, 150, 150], seed=2)
    space, rng = Space.of(features), np.random.default_rng(0)
    hopeless = np.random.default_rng(1).integers(0, 4, len(truth))  # kinds that the features know nothing about
    for kinds, settles in ((truth, True), (hopeless, False)):
        lessons: list[Lesson] = []
        order = rng.permutation(len(truth))
        for count in (20, 40, 80):
            examples = np.full(len(truth), NO_EXAMPLE)
            examples[order[:count]] = kinds[order[:count]]
            lessons.append(teach(space, np.zeros(len(truth), int), examples))
        assert saturated(lessons) is settles
        assert not saturated(lessons[-1:])


def test_neighbours_looked_for_by_parts_are_nearly_all_of_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    exact = Space.of(load_digits().data)
    monkeypatch.setattr(teaching, "COMPARED", 450)
    monkeypatch.setattr(teaching, "PART", 30)
    near = Space.of(load_digits().data)
    shared = [len(set(a) & set(b)) for a, b in zip(exact.neighbours, near.neighbours, strict=True)]
    assert np.mean(shared) / exact.neighbours.shape[1] > 0.95
    assert not (near.neighbours == np.arange(len(near.rows))[:, None]).any()
    assert (np.diff(near.cosine, axis=1) <= 0).all()
    one, other = near.rows[7], near.rows[near.neighbours[7, 0]]
    assert np.isclose(near.cosine[7, 0], one @ other, atol=1e-5)


def test_answers_that_contradict_the_clusters_outweigh_them() -> None:
    features, truth = blobs([80, 80, 80, 80], seed=3)
    space, chance = Space.of(features), np.random.default_rng(0).integers(0, 4, len(truth))
    examples = np.full(len(truth), NO_EXAMPLE)
    examples[::32] = truth[::32]
    assert (teach(space, chance, examples).clusters == truth).mean() > 0.95


def test_a_small_class_stays_small() -> None:
    features, truth = blobs([300, 15], seed=4, spread=0.6)
    examples = np.full(len(truth), NO_EXAMPLE)
    examples[[0, 40, 80, 120, 300]] = [0, 0, 0, 0, 1]
    clusters = teach(Space.of(features), np.zeros(len(truth), int), examples).clusters
    assert (clusters == truth).mean() > 0.9
