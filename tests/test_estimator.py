"""The estimator on rows: scikit-learn's own checks, then parameters, warnings, progress and what it is all for.

Most models here are trained for a few epochs only.
"""

import contextlib
import doctest
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from small_runs import rows
from twincluster.core import InputError
from twincluster.data import as_arrays, is_rows
from twincluster.estimator import TwinContrastClustering

ROOT = Path(__file__).parents[1]


def on_rows(n_clusters: int | str = 3, **changes: Any) -> TwinContrastClustering:
    return TwinContrastClustering(n_clusters, **({"epochs": 3, "device": "cpu", "random_state": 0} | changes))


# Few epochs, for time alone: the checks are hardly about how good the clusters are.
@parametrize_with_checks([TwinContrastClustering(epochs=5)])
def test_scikit_learn_checks(estimator: TwinContrastClustering, check: Any) -> None:
    check(estimator)


def test_docstring_example() -> None:
    example = doctest.DocTestFinder(recurse=False).find(TwinContrastClustering, globs={})
    results = [doctest.DocTestRunner().run(part) for part in example]
    assert sum(result.attempted for result in results) >= 6
    assert sum(result.failed for result in results) == 0


def test_two_moons_are_told_apart() -> None:
    points, moons = make_moons(200, noise=0.05, random_state=0)
    model = TwinContrastClustering(2, random_state=0).fit(points)
    assert adjusted_rand_score(moons, model.labels_) > 0.9
    assert adjusted_rand_score(moons, KMeans(2, n_init=10, random_state=0).fit_predict(points)) < 0.5
    new_points, new_moons = make_moons(200, noise=0.05, random_state=1)
    assert adjusted_rand_score(new_moons, model.predict(new_points)) > 0.85


def test_blobs_are_found_in_many_columns() -> None:
    points, blobs = make_blobs(150, n_features=20, centers=4, random_state=3)
    assert adjusted_rand_score(blobs, TwinContrastClustering(4, epochs=40, random_state=0).fit_predict(points)) > 0.95


@pytest.mark.parametrize("numbers", [rows(24).astype(np.float64), torch.from_numpy(rows(24)), rows(24).tolist()])
def test_rows_may_come_as_anything_with_numbers(numbers: Any) -> None:
    np.testing.assert_array_equal(on_rows().fit_predict(numbers), on_rows().fit_predict(rows(24)))


def test_rows_may_be_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows(24))
    model = on_rows().fit(tmp_path / "rows.npy")
    assert model.n_features_in_ == 5
    np.testing.assert_array_equal(model.predict(rows(24)), model.labels_)
    np.testing.assert_array_equal(model.predict(str(tmp_path / "rows.npy")), model.labels_)


def test_bfloat16_rows_and_odd_objects() -> None:
    assert as_arrays(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == np.float32
    assert as_arrays(torch.zeros(2, 3, 5, 4, dtype=torch.uint8)).shape == (2, 3, 5, 4)  # four channels, already last
    assert is_rows(3.0)
    assert not is_rows("folder")
    assert not is_rows(np.array(["a.png", "b.png"]))


def test_one_cluster_learns_an_embedding_only(tmp_path: Path) -> None:
    model = on_rows(1).fit(rows(16))
    assert set(model.labels_) == {0}
    np.testing.assert_allclose(model.predict_proba(rows(16)), np.ones((16, 1)))
    with pytest.raises(InputError, match="one cluster"):
        model.save(tmp_path / "run")


def test_the_number_of_clusters_may_be_left_to_the_data(tmp_path: Path) -> None:
    blobs, _ = make_blobs(200, n_features=6, centers=4, cluster_std=0.3, random_state=0)
    model = on_rows("auto", epochs=10).fit(blobs)
    assert model.config_.n_clusters == 4
    assert model.predict_proba(blobs).shape == (200, 4)
    model.save(tmp_path / "run")
    assert np.array_equal(TwinContrastClustering.load(tmp_path / "run").predict(blobs), model.labels_)
    loaded = TwinContrastClustering.load(tmp_path / "run")
    assert loaded.choice_ == model.choice_
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "clusters.json").read_bytes() == (tmp_path / "run" / "clusters.json").read_bytes()
    (tmp_path / "run" / "clusters.json").write_text('{"n_clusters": 4}')
    with pytest.raises(InputError, match="clusters.json is damaged .*: delete it to continue without it"):
        TwinContrastClustering.load(tmp_path / "run")
    noise = np.random.default_rng(0).normal(size=(80, 20))
    with pytest.warns(ConvergenceWarning, match="cannot tell how many clusters there are"):
        within = on_rows("auto", settings={"clusters_between": [5, 9]}).fit(noise)
    assert 5 <= within.config_.n_clusters == within.choice_.n_clusters <= 9


def test_pipeline_clone_and_fit_predict() -> None:
    points = rows(30)
    pipeline = make_pipeline(StandardScaler(), on_rows())
    labels = pipeline.fit_predict(points)
    np.testing.assert_array_equal(clone(pipeline).fit(points).predict(points), labels)
    assert pipeline.transform(points).shape[0] == 30
    again = clone(pipeline).set_params(twincontrastclustering__n_clusters=2).fit_predict(points)
    assert set(again) <= {0, 1}


def test_settings_may_be_numbers_of_numpy() -> None:
    settings = {"augment.noise": np.float32(0.5), "train": {"batch_size": np.int64(8), "compile": np.False_}}
    config = on_rows(epochs=1, settings=settings).fit(rows(24)).config_
    assert (config.augment.noise, config.train.batch_size, config.train.compile) == (0.5, 8, False)


def test_settings_that_the_method_does_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'tcc.alpha has no effect .* or choose method="tcc"'):
        on_rows(settings={"tcc.alpha": 0.2}).fit(rows())
    model = on_rows().fit(rows())
    model.save(tmp_path / "run")
    again = clone(TwinContrastClustering.load(tmp_path / "run", device="cpu")).fit(rows())
    assert np.array_equal(again.labels_, model.labels_)


def test_settings_may_be_dotted_or_nested() -> None:
    dotted = on_rows(settings={"augment.noise": 0.3, "augment": {"dropout": 0.0}, "train.batch_size": 8}).fit(rows(24))
    nested = on_rows(settings={"augment": {"noise": 0.3, "dropout": 0.0}, "train": {"batch_size": 8}}).fit(rows(24))
    assert dotted.config_ == nested.config_
    augment = dotted.config_.augment
    assert (augment.noise, augment.dropout, dotted.config_.train.batch_size) == (0.3, 0, 8)
    np.testing.assert_array_equal(dotted.labels_, nested.labels_)


def test_the_method_is_an_argument(tmp_path: Path) -> None:
    assert on_rows().fit(rows()).config_.method == "anchored"
    with pytest.warns(ConvergenceWarning):  # after three epochs
        model = on_rows(method="tcc", settings={"method": "moco", "tcc.alpha": 0.2}).fit(rows())
    assert (model.config_.method, model.config_.groups["tcc"]["alpha"]) == ("tcc", 0.2)
    model.save(tmp_path / "run")
    assert TwinContrastClustering.load(tmp_path / "run").method == "tcc"


def test_one_setting_is_set_and_the_others_stay() -> None:
    model = on_rows(settings={"augment": {"noise": 0.3}, "optimiser.name": "sgd"})
    model.set_params(settings__optimiser__learning_rate=0.05, epochs=2)
    copied = clone(model)
    assert copied.settings == {"augment.noise": 0.3, "optimiser.name": "sgd", "optimiser.learning_rate": 0.05}
    config = copied.fit(rows(24)).config_
    assert (config.optimiser.learning_rate, config.optimiser.name, config.augment.noise) == (0.05, "sgd", 0.3)
    assert config.train.epochs == 2
    model.set_params(settings__augment={"noise": 0.1})
    assert clone(model).fit(rows(24)).config_.augment.noise == 0.1
    assert copied.settings["augment.noise"] == 0.3
    with pytest.raises(ValueError, match=r"optimiser.learning_rate"):
        on_rows().set_params(settings__optimiser__learning_rat=0.05).fit(rows(24))


@pytest.mark.parametrize(
    "parameters, words",
    [
        ({"settings": {"augment.nose": 0.3}}, "augment.noise"),
        ({"settings": {"augment": 3}}, "augment is a group of settings"),
        (
            {"settings": {"augment": 3, "augment.noise": 0.3}},
            "settings sets augment to 3 and as a group: remove the former",
        ),
        ({"settings": {"anchored.instance": "byol"}}, "byol needs a predictor"),
        ({"recipe": "row"}, "did you mean 'rows'"),
        ({"epochs": 2, "minutes": 1.0}, "choose one of them"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": None, "minutes": 0}, "minutes is 0: expected a number above 0"),
        ({"epochs": None, "minutes": "1"}, "minutes is '1': expected a number above 0"),
        ({"settings": ["augment.noise=0.3"]}, "settings is ['augment.noise=0.3']: expected a dict"),
        ({"settings": {1: 2}}, "settings is {1: 2}: expected a dict"),
        ({"backbone": 18}, "backbone is 18: expected the name of a network"),
        ({"n_clusters": 0}, "n_clusters is 0"),
        ({"n_clusters": 2.5}, "n_clusters is 2.5"),
        ({"n_clusters": "ten"}, "n_clusters is 'ten': expected a whole number of at least 1, or \"auto\""),
        ({"method": "tcc", "n_clusters": "auto"}, "set it, for example n_clusters=10"),
        ({"settings": {"train.precision": "bf16"}}, 'use settings={"train.precision": "auto"}'),
        ({"n_clusters": 25}, "25 clusters need at least as many readable samples, got 24"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"random_state": "zero"}, "zero"),
    ],
)
def test_bad_parameters_are_named_when_fitting(parameters: dict[str, Any], words: str) -> None:
    model = on_rows().set_params(**parameters)
    with pytest.raises(ValueError, match=re.escape(words)):
        model.fit(rows(24))


def test_predicting_speaks_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = on_rows(epochs=1).fit(rows(24)).set_params(device="cuda")
    with pytest.raises(InputError, match="torch sees no GPU: use device="):
        model.predict(rows(24))


def test_minutes_set_the_length() -> None:
    model = on_rows(epochs=None, minutes=0.005).fit(rows(24))
    assert model.config_.train.minutes == 0.005
    assert model.n_iter_ >= 1


def test_random_state_decides() -> None:
    points = rows(40, seed=5)

    def embedding(random_state: Any) -> NDArray[np.float64]:
        return on_rows(random_state=random_state).fit(points).transform(points)

    np.testing.assert_array_equal(embedding(np.int64(3)), embedding(3))
    state = np.random.RandomState
    np.testing.assert_array_equal(embedding(state(3)), embedding(state(3)))
    assert not np.array_equal(embedding(3), embedding(4))
    assert not np.array_equal(embedding(None), embedding(None))


def test_unhealthy_clusters_are_warned_of_once_training_has_ended() -> None:
    flat = {"tcc.unit_norm": True, "tcc.assignment_temperature": 50.0}
    with pytest.warns(ConvergenceWarning, match="the assignments stay uniform") as caught:
        on_rows(method="tcc", settings=flat).fit(rows(24))
    assert len(caught) == 1
    said = str(caught[0].message)
    assert 'try method="tcc-repaired", settings={"tcc.entropy": "batch"}, or' in said  # Python's words
    assert "--" not in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_rows(epochs=10).fit(rows(24))


@pytest.mark.parametrize("verbose", [0, 1])
def test_progress_is_shown_when_asked_for(verbose: int, capfd: pytest.CaptureFixture[str]) -> None:
    on_rows(verbose=verbose).fit(rows(24))
    shown = capfd.readouterr()
    assert shown.out == ""
    assert ("; epoch 3: loss " in shown.err) == bool(verbose)
    assert (shown.err == "") == (not verbose)


def test_notebooks_get_a_bar(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither IPython nor its widgets are at hand: stand-ins record what rich would hand to them."""
    shown: list[Any] = []

    class Output(contextlib.nullcontext[None]):
        def clear_output(self, wait: bool = False) -> None:
            """As of ipywidgets."""

        def close(self) -> None:
            """As of ipywidgets."""

    class ZMQInteractiveShell:
        """By its name rich knows a notebook."""

    display = types.ModuleType("IPython.display")
    display.display = shown.append  # type: ignore[attr-defined]
    widgets = types.ModuleType("ipywidgets")
    widgets.Output = Output  # type: ignore[attr-defined]
    widgets.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]
    for name, module in {"ipykernel": types.ModuleType("ipykernel"), "IPython": types.ModuleType("IPython"),
                         "IPython.display": display, "ipywidgets": widgets}.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("rich.console.get_ipython", ZMQInteractiveShell, raising=False)
    on_rows(verbose=1).fit(rows(24))
    drawn = "".join(item._repr_mimebundle_([], [])["text/plain"] for item in shown if hasattr(item, "text"))
    assert any(isinstance(item, Output) for item in shown)
    assert "; epoch 3: loss " in drawn
    assert capfd.readouterr().err == ""
    shown.clear()
    on_rows(verbose=0).fit(rows(24))
    assert shown == []


def test_bar_is_not_drawn_without_widgets(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr("twincluster.training.progress.find_spec", lambda name: None)
    on_rows(verbose=1).fit(rows(24))
    assert "; epoch 3: loss " in capfd.readouterr().err


def test_what_predicts_is_kept_on_the_cpu() -> None:
    model = on_rows().fit(rows(24))
    assert {tensor.device.type for tensor in model._model.network.state_dict().values()} == {"cpu"}
    assert not model._model.network.training
    with pytest.raises(InputError, match="no GPU") if not torch.cuda.is_available() else contextlib.nullcontext():
        model.set_params(device="cuda").predict(rows(24))
