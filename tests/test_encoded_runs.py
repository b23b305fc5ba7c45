"""Runs on the features of an encoder: by name, by a module of Python, resumed, saved, predicted with and scored."""

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from command_line import colours, command, worked
from small_encoders import Colour, own_weights
from twincluster.cli.encoders import offer_better
from twincluster.config import network_settings, preferred_encoder
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import BACKBONES, build_backbone, encoders, load_encoder
from twincluster.run_images import RunImages
from twincluster.runs import Run

QUICK = ("--epochs", "2", "--device", "cpu", "--set", "train.batch_size=16", "--set", "augment.neighbours=3")


def test_fit_predict_and_evaluate_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = colours(60)
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    run = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    own_weights(tmp_path)
    worked("fit", "some.npz", "-k", "3", "--out", run, "--backbone", "small:weights.safetensors", *QUICK)
    saved = json.loads((run / "config.json").read_text())
    assert saved["config"]["train"]["encoder"] == f"small:{tmp_path / 'weights.safetensors'}"
    assert (saved["shape"]["side"], saved["shape"]["n_inputs"]) == (0, 96)
    monkeypatch.chdir("/")
    worked("predict", run, tmp_path / "some.npz", "--out", tmp_path / "new.csv")
    fitted, again = ((file).read_text().splitlines() for file in (run / "assignments.csv", tmp_path / "new.csv"))
    assert [row.split(",")[:2] for row in fitted] == [row.split(",")[:2] for row in again]
    assert "silhouette of the features" in worked("evaluate", run).out
    rows = np.random.default_rng(0).normal(size=(20, 96)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    complaint = command("predict", run, tmp_path / "rows.npy", "--out", tmp_path / "no.csv").complaint
    assert "contains rows of 96 numbers" in complaint
    assert "was trained on images" in complaint


def test_pictures_are_those_that_were_encoded(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, name = tmp_path / "run", f"small:{own_weights(tmp_path)}"
    worked("fit", photo_folder, "-k", "3", "--out", run, "--backbone", name, *QUICK)
    loads, load = [], encoders.ADAPTERS["small"]
    monkeypatch.setitem(encoders.ADAPTERS, "small", lambda *given: loads.append(given) or load(*given))
    pictures, _ = RunImages(Run.open(run)).pictures()
    assert pictures is not None
    assert pictures.side == load_encoder(name).side
    assert len(loads) == 2  # one of them the line above


def test_other_weights_under_the_old_name_are_told(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    weights, run = own_weights(tmp_path), tmp_path / "run"
    fit = ("fit", tmp_path / "images.npy", "-k", "3", "--out", run, "--backbone", f"small:{weights}", *QUICK)
    worked(*fit)
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights)
    done = command("predict", run, tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "weights of the encoder have changed" in done.complaint
    assert "weights of the encoder have changed" in command(*fit, "--resume").complaint


def test_an_encoded_run_is_resumed(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    backbone = f"small:{own_weights(tmp_path)}"
    start = ("fit", tmp_path / "images.npy", "-k", "3", "--out")
    settings = ("--device", "cpu", "--backbone", backbone, "--set", "train.batch_size=16")
    worked(*start, tmp_path / "run", *settings, "--epochs", "2")
    worked(*start, tmp_path / "run", *settings, "--epochs", "3", "--resume")
    assert len(Run.open(tmp_path / "run").read_metrics()) == 3
    other = command(*start, tmp_path / "run", *settings[:3], f"{backbone}@24", *settings[4:], "--resume")
    assert "another train.encoder" in other.complaint


def test_an_encoder_cannot_read_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((20, 5), np.float32))
    done = command("fit", tmp_path / "rows.npy", "-k", "3", "--out", tmp_path / "run",
                   "--backbone", f"small:{own_weights(tmp_path)}")  # fmt: skip
    assert "contains rows, but" in done.complaint


def test_unreadable_files_keep_their_rows(photo_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    worked("fit", photo_folder, "-k", "3", "--out", run, "--backbone", f"small:{own_weights(tmp_path)}", *QUICK)
    assignments = Run.open(run).read_assignments()
    assert len(assignments.paths) == 62
    assert sum(status != "ok" for status in assignments.status) == 2
    assert (assignments.clusters[[status != "ok" for status in assignments.status]] == -1).all()


def test_a_module_from_python(tmp_path: Path) -> None:
    images, labels = colours(60)
    settings = {"train.batch_size": 16, "augment.neighbours": 5, "augment.noise": 0.2}
    model = TwinContrastClustering(3, backbone=Colour(), settings=settings, epochs=20, device="cpu", random_state=0)
    found = model.fit(images).labels_
    assert len(set(zip(found.tolist(), labels.tolist(), strict=True))) == 3  # one cluster a colour
    assert not hasattr(model, "n_features_in_")
    model.save(tmp_path / "run")
    again = TwinContrastClustering.load(tmp_path / "run", backbone=Colour(), device="cpu")
    np.testing.assert_array_equal(again.predict(images), model.predict(images))
    with pytest.raises(InputError, match="Colour is a module of your own"):
        TwinContrastClustering.load(tmp_path / "run", device="cpu").predict(images)


def test_what_is_said_of_a_run_with_a_module_is_true(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours(60)[0])
    settings = {"train.batch_size": 16, "augment.neighbours": 5}
    model = TwinContrastClustering(3, backbone=Colour(), settings=settings, epochs=9, device="cpu", random_state=0)
    model.fit(tmp_path / "images.npy").save(tmp_path / "run")
    said = worked("evaluate", tmp_path / "run").out
    assert "no silhouette, no kNN accuracy: Colour is a module of your own, which a run folder cannot contain" in said
    assert "moved" not in said
    done = command("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "the command line cannot apply it" in done.complaint


def test_images_from_python_have_not_moved(tmp_path: Path) -> None:
    model = TwinContrastClustering(3, backbone="small", epochs=9, device="cpu", random_state=0)
    model.fit(colours(60)[0]).save(tmp_path / "run")
    said = worked("evaluate", tmp_path / "run").out
    assert "no kNN accuracy: the images were passed from Python" in said


def test_a_saved_estimator_knows_the_weights_of_its_encoder(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    weights, run = own_weights(tmp_path), tmp_path / "run"
    settings = {"train.batch_size": 16, "augment.neighbours": 3}
    model = TwinContrastClustering(3, backbone=f"small:{weights}", settings=settings, epochs=9, device="cpu",
                                   random_state=0).fit(tmp_path / "images.npy")  # fmt: skip
    model.save(run)
    assert Run.open(run).data.encoder == load_encoder(f"small:{weights}").version
    assert "silhouette of the features" in worked("evaluate", run).out
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights)
    done = command("predict", run, tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "weights of the encoder have changed" in done.complaint
    np.testing.assert_array_equal(model.predict(colours()[0]), model.labels_)  # it still has those it was fitted with
    for fitted in (pickle.loads(pickle.dumps(model)), TwinContrastClustering.load(run, device="cpu")):
        with pytest.raises(InputError, match="weights of the encoder have changed since this model was trained"):
            fitted.predict(colours()[0])
    said = worked("evaluate", run).out
    assert "no silhouette, no kNN accuracy: the weights of the encoder have changed" in said


def test_an_encoder_may_be_named_as_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    own_weights(tmp_path)
    monkeypatch.chdir(tmp_path)
    backbone = "small:weights.safetensors"
    worked("fit", "images.npy", "-k", "3", "--out", "one", "--backbone", backbone, *QUICK)
    worked("fit", "images.npy", "-k", "3", "--out", "two", "--set", f"train.encoder={backbone}", *QUICK)
    one, two = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("one", "two"))
    assert one == two
    assert (tmp_path / "one" / "assignments.csv").read_bytes() == (tmp_path / "two" / "assignments.csv").read_bytes()
    model = TwinContrastClustering(3, settings={"train.encoder": backbone})
    assert model._configured()("pretrained").train.components == one["config"]["train"]["components"]


@pytest.mark.parametrize("frame", ["crop", "letterbox"])
def test_open_images_of_several_sizes_reach_the_encoder_at_its_own_size(frame: str) -> None:
    """Stripes two pixels wide in 200 pixels: nothing is left of them in 96."""

    class Edges(nn.Module):
        side, mean, std = 200, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

        def forward(self, images: Tensor) -> Tensor:
            return images.diff(dim=3).abs().mean((2, 3)).repeat(1, 4)

    striped = np.zeros((200, 200, 3), np.uint8)
    striped[:, ::4] = striped[:, 1::4] = 255
    images = [Image.fromarray(striped), *(Image.new("RGB", (150, 150), (40 * k, 0, 0)) for k in range(5))]
    seen: list[np.ndarray] = []
    settings = {"train.frame": frame, "train.batch_size": 4, "augment.neighbours": 2}
    network = Edges()
    network.register_forward_hook(lambda module, inputs, output: seen.append(output.numpy()))
    model = TwinContrastClustering(2, backbone=network, settings=settings, epochs=1, device="cpu", random_state=0)
    with warnings.catch_warnings(action="ignore"):
        model.fit(images)
    assert np.concatenate(seen)[0, 0] == pytest.approx(0.5, abs=0.01)  # every second pixel is an edge
    seen.clear()
    model.predict(images)
    assert np.concatenate(seen)[0, 0] == pytest.approx(0.5, abs=0.01)


def test_a_module_that_gives_no_features_is_told() -> None:
    class Broken(Colour):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean()

    with pytest.raises(InputError, match="no row of features per image"):
        TwinContrastClustering(3, backbone=Broken(), device="cpu").fit(colours(30)[0])


def test_photographs_without_a_gpu_get_the_pretrained_encoder(tmp_path: Path, photo_folder: Path) -> None:
    (tmp_path / "large").mkdir()
    for number in range(40):
        Image.new("RGB", (200, 150), (6 * number, 90, 0)).save(tmp_path / "large" / f"{number}.png")
    common = ("-k", "2", "--device", "cpu", "--epochs", "1")
    asked = worked("fit", tmp_path / "large", *common, "--out", tmp_path / "run")
    assert "using a pretrained network" in asked.out
    assert Run.open(tmp_path / "run").config.train.encoder == "pretrained"
    with pytest.warns(
        UserWarning, match='using a pretrained network; choose recipe="cpu" to train from scratch anyway'
    ):
        model = TwinContrastClustering(2, device="cpu", epochs=1, random_state=0).fit(tmp_path / "large")
    assert model.config_.train.encoder == "pretrained"
    assert model.labels_.tolist() == Run.open(tmp_path / "run").read_assignments().clusters.tolist()
    large = [Image.open(tmp_path / "large" / f"{number}.png") for number in range(40)]
    np.save(tmp_path / "large.npy", np.stack([np.asarray(image) for image in large]))
    asked = worked("fit", tmp_path / "large.npy", *common, "--out", tmp_path / "array", "--backbone", "auto")
    assert "using a pretrained network" in asked.out
    assert Run.open(tmp_path / "array").config.train.encoder == "pretrained"
    finetuned = command("fit", tmp_path / "large", *common, "--set", "train.finetune=true", "--out", tmp_path / "none")
    assert finetuned.complaint.endswith("train.encoder names no pretrained network: name one with --backbone NAME")
    for name, source, more in [
        ("named", "large", ("--backbone", "small", "--set", "train.image_size=16")),
        ("recipe", "large", ("--recipe", "default", "--set", "train.image_size=16", "--set", "train.backbone=small")),
        ("tiny", photo_folder, ("--set", "train.image_size=16", "--set", "train.backbone=small")),  # 40 to 72 pixels
    ]:
        said = worked("fit", tmp_path / source, *common, *more, "--out", tmp_path / name)
        assert "pretrained" not in said.out
        assert not Run.open(tmp_path / name).config.train.encoder


def test_a_weights_file_is_remembered_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert network_settings("small:w.safetensors") == {"encoder": f"small:{tmp_path / 'w.safetensors'}"}
    assert network_settings("torchvision:resnet18") == {"encoder": "torchvision:resnet18"}
    for name in BACKBONES:
        assert network_settings(name) == {"backbone": name}


def test_a_preferred_encoder_is_taken_kept_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").mkdir()
    for number in range(40):
        Image.new("RGB", (200, 150), (6 * number, 90, 0)).save(tmp_path / "large" / f"{number}.png")
    own_weights(tmp_path)
    common = ("fit", tmp_path / "large", "-k", "2", "--device", "cpu", "--out", tmp_path / "run")
    monkeypatch.setenv("TWINCLUSTER_ENCODER", f"small:{tmp_path / 'weights.safetensors'}")
    said = worked(*common, "--epochs", "1").out
    assert f"the encoder is small:{tmp_path / 'weights.safetensors'}" in said
    assert Run.open(tmp_path / "run").config.train.encoder == f"small:{tmp_path / 'weights.safetensors'}"
    monkeypatch.delenv("TWINCLUSTER_ENCODER")
    worked(*common, "--epochs", "2", "--resume")
    assert Run.open(tmp_path / "run").config.train.encoder == f"small:{tmp_path / 'weights.safetensors'}"
    assert len(Run.open(tmp_path / "run").read_metrics()) == 2
    said = worked(
        "fit", tmp_path / "large", "-k", "2", "--device", "cpu", "--out", tmp_path / "two", "--epochs", "1"
    ).out
    assert "tinyvit-5m (48 MB, Apache-2.0) is better on photographs: pip install 'twincluster[encoders]'" in said
    assert "--backbone tinyvit-5m" in (tmp_path / "two" / "report.html").read_text()


def test_a_terminal_is_asked_once_about_the_better_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").mkdir()
    for number in range(40):
        Image.new("RGB", (200, 150), (6 * number, 90, 0)).save(tmp_path / "large" / f"{number}.png")
    common = ("fit", tmp_path / "large", "-k", "2", "--device", "cpu", "--epochs", "1", "--out")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    worked(*common, tmp_path / "elsewhere")
    assert not asked  # this is no terminal
    monkeypatch.setattr("twincluster.cli.app.can_ask", lambda: True)
    assert "`twincluster encoders prefer NAME` changes it" in worked(*common, tmp_path / "first").out
    worked(*common, tmp_path / "second")
    (question,) = asked
    assert "tinyvit-5m (48 MB to download). Use it from now on?" in question
    assert Run.open(tmp_path / "second").config.train.encoder == "pretrained"
    own_weights(tmp_path)
    mine = f"small:{tmp_path / 'weights.safetensors'}"
    worked("encoders", "prefer", mine)
    worked(*common, tmp_path / "third")
    assert Run.open(tmp_path / "third").config.train.encoder == mine
    worked("encoders", "prefer", "auto")
    assert preferred_encoder() == ""
    assert "did you mean 'tinyvit-5m'" in command("encoders", "prefer", "tinyvit-5").complaint
    assert "say which encoder" in command("encoders", "prefer").complaint


def test_yes_is_stored_and_a_damaged_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("twincluster.cli.app.can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "Yes ")
    assert offer_better()
    assert preferred_encoder() == "tinyvit-5m"
    assert not offer_better()  # it has been answered
    (tmp_path / "twincluster" / "encoder.json").write_text("{")
    with pytest.raises(InputError, match=r"encoder\.json holds no name of an encoder: remove it"):
        preferred_encoder()


def test_encoders_are_compared_on_a_sample_without_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours(90)[0])
    weights = f"small:{own_weights(tmp_path)}"
    pair = (tmp_path / "images.npy", weights, f"{weights}@24")
    said = worked("encoders", "compare", *pair, "-k", "3", "--images", "60").out.splitlines()
    assert said[0] == "60 images of images.npy, 3 clusters; no labels are used"
    assert {line.split()[0] for line in said[2:4]} == {weights, f"{weights}@24"}
    assert all(line.endswith("of 3 clusters") for line in said[2:4])
    compared = json.loads(worked("encoders", "compare", *pair, "--json").out)
    assert compared["images"] == 90
    assert compared["clusters"] >= 2
    assert {row["name"] for row in compared["encoders"]} == {weights, f"{weights}@24"}
    assert all(sum(row["sizes"]) == 90 for row in compared["encoders"])
    for words in (pair[:1], pair[:2], (*pair[:2], weights)):
        assert "name a source and two or more encoders" in command("encoders", "compare", *words).complaint
