"""Answers in Python: a few names of inputs, and the estimator puts the others where they belong."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import worked
from small_runs import rows
from twincluster import TwinContrastClustering
from twincluster.core import InputError
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run, State, initial

COUNT = 60
KINDS = np.arange(COUNT) % 3
NAMES = np.array(["ash", "birch", "cedar"])


def estimator() -> TwinContrastClustering:
    return TwinContrastClustering(3, epochs=2, device="cpu", random_state=0)


@pytest.fixture(scope="module")
def fitted() -> TwinContrastClustering:
    return estimator().fit(rows(COUNT))


@pytest.fixture
def model(fitted: TwinContrastClustering) -> TwinContrastClustering:
    return pickle.loads(pickle.dumps(taught(fitted, [])))


def taught(model: TwinContrastClustering, known: list[int]) -> TwinContrastClustering:
    _ = model.questions(1)  # the features are computed while the inputs are there
    return model.teach(known, [str(NAMES[KINDS[row]]) for row in known])


def names_of(model: TwinContrastClustering, labels: NDArray[np.int64]) -> list[str]:
    return [model.cluster_names_.get(int(label), "?") for label in labels]


def right(model: TwinContrastClustering, labels: NDArray[np.int64]) -> float:
    return float(np.mean(np.array(names_of(model, labels)) == NAMES[np.arange(len(labels)) % 3]))


def test_a_few_answers_name_the_clusters_of_all_inputs_and_of_new_ones(model: TwinContrastClustering) -> None:
    asked = model.questions(9)
    assert len(set(asked.tolist())) == 9
    assert taught(model, asked.tolist()) is model
    assert right(model, model.labels_) == right(model, model.predict(rows(COUNT))) == 1
    assert right(model, model.predict(rows(COUNT) + 0.1)) == 1
    chances = model.predict_proba(rows(COUNT))
    assert np.allclose(chances.sum(1), 1, atol=1e-5)
    assert chances.argmax(1).tolist() == model.predict(rows(COUNT)).tolist()
    assert not set(asked) & set(model.questions(20))


def test_y_changes_nothing() -> None:
    data, random = rows(24), np.random.default_rng(0)
    without, others = estimator().fit(data), estimator().fit(data, random.integers(0, 3, 24))
    assert np.array_equal(without.labels_, others.labels_)
    assert np.array_equal(without.predict_proba(data), others.predict_proba(data))
    assert others.cluster_names_ == {}


def test_fit_takes_a_name_or_none_for_each_row(fitted: TwinContrastClustering) -> None:
    answers = [str(NAMES[KINDS[row]]) if row < 9 else None for row in range(COUNT)]
    model = estimator().fit(rows(COUNT), answers=answers)
    assert right(model, model.labels_) == 1
    assert np.array_equal(estimator().fit_predict(rows(COUNT), answers=answers), model.labels_)
    again = estimator().fit(rows(COUNT), answers=[None] * COUNT)
    assert np.array_equal(again.labels_, fitted.labels_)
    with pytest.raises(InputError, match="answers has 2 entries for 60 inputs"):
        estimator().fit(rows(COUNT), answers=["a", None])


def test_answers_add_up_and_names_stay_with_their_clusters(model: TwinContrastClustering) -> None:
    taught(model, list(range(9)))
    names = dict(model.cluster_names_)
    model.teach([9, 10], ["extra", "junk"])
    assert names.items() <= model.cluster_names_.items()
    assert model.labels_[9] == next(one for one, name in model.cluster_names_.items() if name == "extra") >= 3
    assert model.labels_[10] == -1
    assert model.predict_proba(rows(COUNT)).shape[1] == 4
    assert (model.predict(rows(COUNT)) >= 0).all()  # never junk by itself


def test_a_pickle_and_a_run_folder_know_what_was_taught(model: TwinContrastClustering, tmp_path: Path) -> None:
    new = rows(COUNT) + 0.1
    expected = taught(model, list(range(9))).predict(new)
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.predict(new), expected)
    model.save(tmp_path / "run")
    np.save(tmp_path / "new.npy", new)
    worked("predict", tmp_path / "run", tmp_path / "new.npy", "--out", tmp_path / "new.csv")
    table = np.genfromtxt(tmp_path / "new.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    assert table["cluster"].tolist() == expected.tolist()
    assert table["name"].tolist() == names_of(model, expected)
    loaded = TwinContrastClustering.load(tmp_path / "run")
    assert np.array_equal(loaded.predict(new), expected)
    assert np.array_equal(loaded.labels_, model.labels_)
    assert loaded.cluster_names_ == model.cluster_names_
    loaded.save(tmp_path / "again")
    assert Edits(Run.open(tmp_path / "again")).taught is not None


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose clusters are not the kinds: two of six clouds are of one kind, but lie apart."""
    folder = tmp_path_factory.mktemp("mixed")
    random = np.random.default_rng(1)
    centres = random.uniform(-10, 10, (6, 16))
    np.save(folder / "rows.npy", centres[np.arange(300) % 6] + 3 * random.normal(size=(300, 16)))
    TwinContrastClustering(3, epochs=5, device="cpu", random_state=0).fit(folder / "rows.npy").save(folder / "run")
    return folder


def copy_of(mixed: Path, folder: Path) -> Path:
    return Path(shutil.copytree(mixed / "run", folder / "run"))


def learned(run: Path, state: State) -> NDArray[np.int64]:
    """Where the teach page puts every row."""
    return RunImages(Run.open(run), device="cpu").learn(state).clusters


def test_answers_against_their_clusters_count_as_on_the_teach_page(mixed: Path, tmp_path: Path) -> None:
    run = copy_of(mixed, tmp_path)
    model = TwinContrastClustering.load(run)
    asked, before = model.questions(30).tolist(), model.labels_.copy()
    labels = [str(NAMES[row % 3]) for row in asked]
    model.teach(asked, labels)
    state = Edits(Run.open(run)).answer_labels(dict(zip(asked, labels, strict=True)))
    assert (state.clusters != before).any()  # some answers are against the clusters
    assert np.array_equal(model.labels_, learned(run, state))
    assert right(model, model.labels_) > 0.9
    assert right(model, TwinContrastClustering.load(run).labels_) < 0.9  # answered, not accepted


def test_what_a_person_refused_on_the_teach_page_is_refused_in_python(mixed: Path, tmp_path: Path) -> None:
    run, row = copy_of(mixed, tmp_path), 5
    edits = Edits(Run.open(run))
    home = int(edits.state.clusters[row])
    edits.refuse([row], home)
    asked = np.setdiff1d(np.arange(60), [row]).tolist()
    labels = [str(edits.state.clusters[one]) for one in asked]
    model = TwinContrastClustering.load(run).teach(asked, labels)
    assert model.labels_[row] != home
    assert np.array_equal(model.labels_, learned(run, edits.answer_labels(dict(zip(asked, labels, strict=True)))))


def test_load_reads_edits_and_answers_that_were_not_accepted(mixed: Path, tmp_path: Path) -> None:
    run = copy_of(mixed, tmp_path)
    plain, edits, data = TwinContrastClustering.load(run), Edits(Run.open(run)), np.load(mixed / "rows.npy")
    assert plain.cluster_names_ == {}
    edits.rename(0, "ash")
    edits.answer([int(plain.labels_.tolist().index(1))], 0)
    edits.move([7], name="apart")
    edits.mark_junk([8])
    state = edits.merge([0, 2])
    model = TwinContrastClustering.load(run)
    assert model.cluster_names_ == {0: "ash", 3: "apart"}
    assert np.array_equal(model.labels_, np.where(state.junk, -1, state.clusters))
    assert (model.labels_[7], model.labels_[8]) == (3, -1)
    own, chances = plain.predict_proba(data), model.predict_proba(data)
    assert np.allclose(chances, np.stack([own[:, 0] + own[:, 2], own[:, 1], 0 * own[:, 2], 0 * own[:, 2]], 1))
    assert np.array_equal(model.predict(data), np.where(plain.predict(data) == 2, 0, plain.predict(data)))
    copy = pickle.loads(pickle.dumps(model))
    copy.save(tmp_path / "again")
    assert np.array_equal(Edits(Run.open(tmp_path / "again")).state.clusters, state.clusters)
    assert right(model.teach(range(60), NAMES[np.arange(60) % 3]), model.labels_) > 0.6
    for _ in range(5):
        edits.undo()
    assert TwinContrastClustering.load(run).cluster_names_ == {}


def test_edits_of_a_run_with_updated_rows_are_saved_without_these_rows(mixed: Path, tmp_path: Path) -> None:
    run, data = copy_of(mixed, tmp_path), np.load(mixed / "rows.npy")
    np.save(tmp_path / "more.npy", np.concatenate([data, data[:12] + 0.1]))
    edits = RunImages(Run.open(run), device="cpu").edits
    edits.split(0, 2)
    worked("update", run, tmp_path / "more.npy")
    edits = Edits(Run.open(run))
    edits.move([7, 305], name="apart")
    edits.answer([3, 306], 1, sample=True)
    edits.refuse([4, 307], 1)
    state = edits.accept([9, 308], [1, 1], head=RunImages(Run.open(run), device="cpu").learn(edits.state).head)
    model = TwinContrastClustering.load(run)
    model.save(tmp_path / "again")
    again = Edits(Run.open(tmp_path / "again"))
    assert len(again.state.clusters) == 300
    assert again.state.clusters.tolist() == state.clusters[:300].tolist() == model.labels_.tolist()
    assert again.state.names == state.names
    assert again.state.refused[1].tolist() == [4]
    assert np.array_equal(TwinContrastClustering.load(tmp_path / "again").predict(data), model.predict(data))


def test_a_split_in_the_run_folder_decides_in_python(mixed: Path, tmp_path: Path) -> None:
    run, data = copy_of(mixed, tmp_path), np.load(mixed / "rows.npy")
    state = RunImages(Run.open(run), device="cpu").edits.split(0, 2)
    model = TwinContrastClustering.load(run)
    assert np.array_equal(model.labels_, state.clusters)
    assert np.array_equal(model.predict(data), state.clusters)
    chances = model.predict_proba(data)
    assert chances.shape == (300, 5)
    assert np.allclose(chances.sum(1), 1, atol=1e-5)
    assert np.array_equal(chances.argmax(1), state.clusters)
    Edits(Run.open(run)).merge([1, 4])  # the highest number ends
    chances = TwinContrastClustering.load(run).predict_proba(data)
    assert chances.shape == (300, 4)
    assert np.allclose(chances.sum(1), 1, atol=1e-5)


def test_the_state_of_the_first_rows_knows_their_clusters_before() -> None:
    state = initial(np.array([0, 1, 1]), 2).first(2)
    assert state.clusters_before.tolist() == [0, 1]


def test_rows_and_labels_go_together(model: TwinContrastClustering) -> None:
    with pytest.raises(InputError, match="2 rows and 1 label do not go together: give a label, or None, for each row"):
        model.teach([0, 1], ["a"])
    with pytest.raises(InputError, match="1 row and 2 labels do not go together"):
        model.teach(iter([0]), iter(["a", None]))
    assert model.cluster_names_ == {}


@pytest.mark.parametrize(
    "asked, labels, expected",
    [
        ([60], ["a"], "there is no row 60: the model was fitted on 60, counted from 0"),
        ([-1], ["a"], "there is no row -1"),
        ([0.5], ["a"], "there is no row 0.5"),
        ([True], ["a"], "there is no row True"),
        (["0.png"], ["a"], "there is no row 0.png"),
        ([0, 0], ["a", "b"], "row 0 has two labels, 'a' and 'b': keep one"),
        ([0], [3], "the label of row 0 is 3: give the name of a cluster, or None"),
        ([0], [" "], "a cluster needs a name"),
    ],
)
def test_bad_answers_are_refused_and_change_nothing(asked, labels, expected, model: TwinContrastClustering) -> None:
    before = model.labels_.copy()
    with pytest.raises(InputError, match=expected):
        model.teach([1, *asked], ["fine", *labels])
    assert np.array_equal(model.labels_, before)
    assert model.cluster_names_ == {}


def test_one_cluster_has_nothing_to_learn() -> None:
    model = TwinContrastClustering(1, epochs=1, device="cpu", random_state=0).fit(rows(12))
    with pytest.raises(InputError, match="a model of one cluster has nothing to learn"):
        model.teach([0], ["a"])


def test_a_pickle_without_features_says_so(fitted: TwinContrastClustering) -> None:
    fresh = estimator().fit(rows(24))
    with pytest.raises(InputError, match="a pickle does not hold the inputs of the fit"):
        pickle.loads(pickle.dumps(fresh)).questions(3)
