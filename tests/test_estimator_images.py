"""The estimator on what scikit-learn's checks know nothing of: images, files, and run folders.

The pictures differ in colour alone, and most models are trained for two epochs.
"""

import pickle
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.model_selection import GridSearchCV

from small_encoders import own_weights
from small_runs import pictures, rows
from twincluster import model as opening
from twincluster.cli import app as cli
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import load_encoder
from twincluster.runs import Run

QUICK = {"train": {"batch_size": 16}, "anchored": {"n_features": 8, "hidden": 16, "instance_queue": 64}}

# two epochs leave clusters that deserve a warning
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def on_images(n_clusters: int = 3, **changes: Any) -> TwinContrastClustering:
    settings = QUICK | {"train.image_size": 8, "train.backbone": "small"}
    options = {"recipe": "digits", "settings": settings, "epochs": 2, "device": "cpu", "random_state": 0} | changes
    return TwinContrastClustering(n_clusters, **options)


def on_rows(n_clusters: int = 3, **changes: Any) -> TwinContrastClustering:
    return TwinContrastClustering(n_clusters, **({"epochs": 3, "device": "cpu", "random_state": 0} | changes))


def test_a_generator_loses_no_image(tmp_path: Path) -> None:
    for number, picture in enumerate(pictures(18)[0]):
        Image.fromarray(picture).save(tmp_path / f"{number:02d}.png")
    files = sorted(tmp_path.glob("*.png"))
    expected = on_images().fit(files)
    model = on_images().fit(file for file in files)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.predict(iter(files)), expected.predict(files))
    np.testing.assert_array_equal(model.transform(Image.open(file) for file in files), expected.transform(files))


def test_tensors_of_several_sizes_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="several shapes: resize them to one size"):
        on_images().fit([torch.zeros(3, side, side, dtype=torch.uint8) for side in (8, 9)])


def test_every_kind_of_image_gives_the_same_clusters() -> None:
    pixels, colours = pictures(48)
    tensors = torch.from_numpy(pixels)
    kinds = {
        "array": pixels,
        "tensor, channels last": tensors,
        "tensor, channels first": tensors.permute(0, 3, 1, 2),
        "list of tensors": list(tensors.permute(0, 3, 1, 2)),
        "list of arrays": list(pixels),
        "PIL": [Image.fromarray(picture) for picture in pixels],
        "four channels": np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], axis=3),
    }
    model = on_images(epochs=8)
    expected = model.fit(pixels).labels_
    assert adjusted_rand_score(colours, expected) > 0.8
    assert (model.n_iter_, model.config_.train.image_size, hasattr(model, "n_features_in_")) == (8, 8, False)
    for name, kind in kinds.items():
        np.testing.assert_array_equal(model.predict(kind), expected, err_msg=name)
        if name in ("tensor, channels first", "PIL"):
            np.testing.assert_array_equal(clone(model).fit_predict(kind), expected, err_msg=name)


def test_grey_images_are_three_equal_channels() -> None:
    grey = pictures(32)[0][..., 0]
    model = on_images().fit(grey)
    np.testing.assert_array_equal(model.predict(np.repeat(grey[..., None], 3, axis=3)), model.labels_)


def test_images_probabilities_and_embedding() -> None:
    pixels, _ = pictures(32)
    model = on_images().fit(pixels)
    probabilities, embedding = model.predict_proba(pixels), model.transform(pixels)
    assert (probabilities.shape, probabilities.dtype) == ((32, 3), np.float32)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(1), model.labels_)
    names = model.get_feature_names_out()
    assert embedding.shape == (32, len(names))
    assert names[0] == "twincontrastclustering0"
    framed = model.set_output(transform="pandas").transform(pixels)
    assert list(framed.columns) == list(names)
    np.testing.assert_array_equal(framed.to_numpy(), embedding)
    assert model.predict(pixels[:1]).tolist() == [model.labels_[0]]


def test_folder_and_paths_keep_the_place_of_unreadable_files(photo_folder: Path) -> None:
    model = on_images().fit(photo_folder)
    names = sorted(str(path) for path in photo_folder.rglob("*.*") if path.name != "notes.txt")
    broken = np.array([name.endswith(("truncated.jpg", "empty.png")) for name in names])
    assert (len(names), broken.sum()) == (62, 2)
    np.testing.assert_array_equal(model.labels_ == -1, broken)
    for listed in (names, [Path(name) for name in names], np.array(names)):
        np.testing.assert_array_equal(model.predict(listed), model.labels_)
    for values in (model.predict_proba(names), model.transform(names)):
        np.testing.assert_array_equal(np.isnan(values).all(1), broken)
        np.testing.assert_array_equal(np.isnan(values).any(1), broken)
    np.testing.assert_array_equal(on_images().fit_predict([*names, "missing.png"])[-1:], [-1])
    assert model.predict([names[int(broken.argmax())]]).tolist() == [-1]


@pytest.mark.parametrize(
    "wrong, words",
    [
        (pictures(8)[0] / 64.0 * 255, "values up to .*: scale them to 0 .. 1 or 0 .. 255"),
        (pictures(8)[0] - 1.0, "negative values, down to -1"),
        (pictures(8)[0].transpose(0, 3, 1, 2), "channels last"),
        ([Image.new("RGB", (8, 8))], "1 sample"),
        ("no/such/folder", "no such file"),
        ([], "X is empty"),
        ((path for path in []), "X is empty"),
        ("", "X is empty"),
        (["a.png", "b.png", "c.png"], r"none of the 3 images in paths can be read \(a.png: missing file\)"),
        (pictures(2)[0], "3 clusters need at least as many readable samples, got 2"),
        (np.full((8, 8, 8, 3), np.nan), "with NaN or infinity"),
        (
            torch.ones(8, 3, 8, 8, dtype=torch.int32),
            r"got torch.int32 \(8, 3, 8, 8\): .*to\(torch.uint8\)",
        ),
        (pictures(1)[0][0], r"looks like one colour image: stack several .* or pass images\[None\]"),
        ([*pictures(4)[0], pictures(1, side=9)[0][0]], "X holds images of several shapes"),
        ([*pictures(4)[0], pictures(1)[0][0, ..., 0]], "X holds images of several shapes"),
        ([Image.new("RGB", (8, 8)), Image.new("RGB", (8, 0))], "image 1 has no pixels"),
        ({"image": pictures(8)[0]}, "X is a dict: pass its images"),
        ({"a.png", "b.png"}, "X is a set: pass its images"),
        (list(zip(*pictures(8), strict=True)), "X holds images with labels: pass the images alone"),
        ([{"image": picture, "label": 0} for picture in pictures(8)[0]], "X holds images with labels"),
        ([("a.png", 0), ("b.png", 1)], "X holds images with labels: pass the images alone"),
    ],
)
def test_bad_images_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        on_images().fit(wrong)


@pytest.mark.parametrize("limit", [1, 16, 255])
def test_float_images_are_scaled_by_the_range_that_fit_saw(limit: int, tmp_path: Path) -> None:
    pixels = pictures(32)[0]
    pixels[0, 0, 0] = 255  # so that the largest value is the limit
    floats = pixels * (limit / 255)
    expected = on_images().fit(pixels)
    model = on_images().fit(floats)
    np.testing.assert_array_equal(model.labels_, expected.labels_)
    np.testing.assert_array_equal(model.transform(floats[1:]), expected.transform(pixels[1:]))  # without the largest
    tensor = torch.from_numpy(floats.astype(np.float32)).permute(0, 3, 1, 2)
    np.testing.assert_array_equal(on_images().fit_predict(tensor), expected.labels_)
    model.save(tmp_path / "run")
    loaded = TwinContrastClustering.load(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(loaded.predict(floats[1:]), expected.labels_[1:])
    np.testing.assert_array_equal(loaded.predict(pixels), expected.labels_)
    for wrong, words in ((floats * 1.01, f"fitted on 0 .. {limit}"), (-floats, "negative values")):
        with pytest.raises(InputError, match=words):
            loaded.predict(wrong)
    with pytest.raises(InputError, match="not fitted on float images: pass uint8"):
        expected.predict(floats)


def test_score_is_the_silhouette_of_the_embedding_and_chooses_in_a_grid() -> None:
    pixels, colours = pictures(48)
    model = on_images(epochs=8).fit(pixels)
    assert model.score(pixels) == pytest.approx(silhouette_score(model.transform(pixels), model.predict(pixels)))
    assert model.score(pixels, colours) == model.score(pixels)
    assert model.score(pixels[:1]) == -1
    grid = GridSearchCV(on_images(), {"epochs": [1, 8]}, cv=2).fit(pixels)
    scores = grid.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert grid.best_params_["epochs"] == [1, 8][scores.argmax()]


def test_report_plot_and_explorer_of_a_fit_on_an_array(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pixels, _ = pictures(32)
    model = on_images().fit(pixels)
    with pytest.raises(InputError, match="name a folder"):
        model.report()
    page = model.report(tmp_path / "run")
    assert "data:image/" in page.read_text()
    assert model.report() == TwinContrastClustering.load(tmp_path / "run").report() == page
    axes = model.plot(pixels)
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == 32
    server = model.serve(port=0, in_browser=False)
    try:
        said = ""
        while not (address := re.search(r"open (http://\S+) in", said)) and server.poll() is None:
            time.sleep(0.1)
            said += capfd.readouterr().out
        assert address
        assert urllib.request.urlopen(address[1]).status == 200
    finally:
        server.terminate()
        server.wait()
    model.teach([0, 1], ["red", "red"])
    with pytest.raises(InputError, match="name a folder"):
        model.report()


def test_a_long_estimator_has_a_repr_of_one_line() -> None:
    settings = {f"augment.setting_{number}": number for number in range(9)}
    assert "\n" not in repr(TwinContrastClustering(3, settings=settings))


def test_open_photographs_of_several_sizes_get_what_their_files_get(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(8)]
    for number, file in enumerate(files):
        Image.new("RGB", (300 + number, 150 + number), (30 * number, 90, 0)).save(file)
    model = TwinContrastClustering(2, epochs=1, device="cpu", random_state=0)
    with pytest.warns(UserWarning, match="using a pretrained network"):
        expected = model.fit_predict(files)
    with pytest.warns(UserWarning, match="using a pretrained network"):
        labels = model.fit_predict(Image.open(file) for file in files)
    assert model.config_.train.encoder == "pretrained"
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(model.predict([Image.open(file) for file in files]), expected)
    small = [Image.open(file).resize((14 + number, 12)) for number, file in enumerate(files)]
    assert not model.fit(small).config_.train.encoder


@pytest.mark.parametrize("changes", [{}, {"settings": QUICK}, {"settings": QUICK | {"train.frame": "letterbox"}}])
@pytest.mark.parametrize("width", [40, 24], ids=["of several sizes", "of one size"])
def test_an_open_image_alone_gets_what_it_gets_among_others(
    width: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    shapes = [(24, random.integers(24, width + 1), 3) for _ in range(12)]
    images = [Image.fromarray(random.integers(0, 256, shape, np.uint8)) for shape in shapes]
    model = on_images(recipe="default", **changes).fit(images)
    model.save(tmp_path / "run")
    images = [*images, images[0].resize((60, 50))]  # larger than all that the model has seen
    for each in (model, TwinContrastClustering.load(tmp_path / "run", device="cpu")):
        together = each.predict_proba(images)
        np.testing.assert_array_equal(together[:12].argmax(1), model.labels_)
        alone = np.concatenate([each.predict_proba([image]) for image in images])
        np.testing.assert_allclose(alone, together, atol=1e-5)
        np.testing.assert_allclose(each.transform(images[:2]), each.transform(images)[:2], atol=1e-4)


def test_open_images_may_come_in_anything_that_holds_them() -> None:
    pandas = pytest.importorskip("pandas")

    class Album:
        """As a data set of torch: it can be counted and asked for an item, no more."""

        def __len__(self) -> int:
            return 12

        def __getitem__(self, row: int) -> Image.Image:
            return images[row]

    images = [Image.fromarray(picture).resize((8 + row, 8)) for row, picture in enumerate(pictures(12)[0])]
    model = on_images().fit(images)
    expected = model.predict_proba(images)
    for kind in (tuple(images), pandas.Series(images), Album()):
        np.testing.assert_array_equal(model.predict_proba(kind), expected)


def test_a_turned_photograph_among_others_of_its_size() -> None:
    """Its file is as wide as the others, and the image, upright by its metadata, as high as they are wide."""
    pixels = pictures(12, side=12)[0][:, :8]
    images = [Image.fromarray(picture) for picture in pixels]
    model = on_images(settings=on_images().settings | {"train.frame": "letterbox"}).fit(images)
    upright = [images[3].transpose(Image.Transpose.ROTATE_270), *images[4:]]
    images[3].getexif()[0x0112] = 6
    np.testing.assert_allclose(model.predict_proba(images[3:]), model.predict_proba(upright), atol=1e-5)


def test_an_encoder_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, pixels = own_weights(tmp_path), pictures(24, side=32)[0]
    model = TwinContrastClustering(3, backbone=f"small:{weights}", epochs=1, device="cpu", random_state=0).fit(pixels)
    model.save(tmp_path / "run")
    pickled = pickle.dumps(model)
    loaded: list[str] = []
    monkeypatch.setattr(opening, "load_encoder", lambda name, shown: loaded.append(name) or load_encoder(name, shown))
    expected = model.predict_proba(pixels)
    assert not loaded
    for again in (pickle.loads(pickled), TwinContrastClustering.load(tmp_path / "run", device="cpu")):
        loaded.clear()
        for _ in range(2):
            np.testing.assert_array_equal(again.predict_proba(pixels), expected)
        assert len(loaded) == 1
    assert len(pickle.dumps(again)) < len(pickled) + 10_000  # it has not grown by the encoder


def test_images_for_rows_and_rows_for_images_are_refused() -> None:
    with pytest.raises(InputError, match="fitted on images of 8 pixels"):
        on_images().fit(pictures(16)[0]).predict(rows(16))
    model = on_rows().fit(rows(16))
    with pytest.raises(InputError, match="fitted on rows of 5 features"):
        model.predict(pictures(16)[0])
    with pytest.raises(ValueError, match="X has 4 features"):
        model.predict(rows(16)[:, :4])


def test_images_after_rows_leave_no_trace_of_rows() -> None:
    model = on_rows().fit(rows(16))
    assert model.n_features_in_ == 5
    model.set_params(**on_images().get_params()).fit(pictures(16)[0])
    assert not hasattr(model, "n_features_in_")


def test_image_models_survive_pickle_and_joblib(tmp_path: Path) -> None:
    pixels, _ = pictures(32)
    model = on_images().fit(pixels)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict_proba(pixels), model.predict_proba(pixels))
        np.testing.assert_array_equal(copy.fit_predict(pixels), model.labels_)


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_saved_model_predicts_from_the_command_line_and_after_load(kind: str, tmp_path: Path) -> None:
    data = rows(24) if kind == "rows" else pictures(24)[0]
    model = (on_rows() if kind == "rows" else on_images()).fit(data)
    model.save(tmp_path / "run")
    np.save(tmp_path / "data.npy", data)
    out = tmp_path / "new.csv"
    assert cli.main(["predict", str(tmp_path / "run"), str(tmp_path / "data.npy"), "--out", str(out)]) == 0
    written = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
    assert written == [str(label) for label in model.labels_]

    loaded = TwinContrastClustering.load(tmp_path / "run", device="cpu")
    for method in ("predict", "predict_proba", "transform"):
        np.testing.assert_array_equal(getattr(loaded, method)(data), getattr(model, method)(data))
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    assert (loaded.n_clusters, loaded.n_iter_, loaded.config_) == (3, model.n_iter_, model.config_)
    np.testing.assert_array_equal(clone(loaded).fit_predict(data), model.labels_)
    assert len(list(Run.open(tmp_path / "run").read_metrics())) == model.n_iter_
    with pytest.raises(InputError, match="exists and is not empty"):
        model.save(tmp_path / "run")


def test_run_of_the_command_line_can_be_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows(24))
    command = ["fit", str(tmp_path / "rows.npy"), "--recipe", "rows", "--clusters", "3", "--epochs", "3", "--seed", "7"]
    assert cli.main([*command, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    loaded = TwinContrastClustering.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(rows(24)), loaded.labels_)
    np.testing.assert_array_equal(loaded.labels_, on_rows(random_state=7).fit_predict(rows(24)))


def test_column_names_outlive_a_saved_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(24), columns=list("abcde"))
    on_rows().fit(frame).save(tmp_path / "run")
    loaded = TwinContrastClustering.load(tmp_path / "run")
    loaded.predict(frame)
    assert not [warning for warning in recwarn if "feature names" in str(warning.message)]
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame.rename(columns={"a": "z"}))
