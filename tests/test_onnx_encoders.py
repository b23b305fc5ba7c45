"""`--backbone onnx:FILE`: what a file may take and give, features by its hash, and runs that go through it."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from PIL import Image
from torch import Tensor, nn

from command_line import colours, command, worked
from small_encoders import Colour, own_weights
from small_onnx import colour_model, expected_features, text_model
from twincluster.config import EncoderInput, read_name
from twincluster.core import InputError
from twincluster.data import open_images, open_source
from twincluster.nn import (
    OnnxNetwork,
    build_backbone,
    compile_network,
    encode,
    encoders,
    feature_cache,
    load_encoder,
    wrap_module,
)
from twincluster.runs import Run

QUICK = ("--epochs", "2", "--device", "cpu", "--set", "train.batch_size=16", "--set", "augment.neighbours=3")
MEAN, STD = np.array(encoders.IMAGENET_MEAN), np.array(encoders.IMAGENET_STD)


def some_pixels(count: int = 20, side: int = 224) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def features_of(name: str, pixels: np.ndarray, **shown: Any) -> np.ndarray:
    encoder = load_encoder(name, EncoderInput(**shown))
    return np.array(encode(open_images(open_source(pixels)), encoder).pixels)


def test_images_are_standardised_as_imagenets_at_224_pixels_unless_told_otherwise(tmp_path: Path) -> None:
    name = f"onnx:{colour_model(tmp_path / 'net.onnx')}"
    encoder, pixels = load_encoder(name), some_pixels()
    assert (encoder.side, encoder.mean, encoder.std) == (224, encoders.IMAGENET_MEAN, encoders.IMAGENET_STD)
    np.testing.assert_allclose(features_of(name, pixels), expected_features(pixels, MEAN, STD), rtol=1e-4, atol=1e-4)
    mean, std, small = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), some_pixels(5, 40)
    found = features_of(name, small, size=40, mean=mean, std=std)
    np.testing.assert_allclose(found, expected_features(small, np.array(mean), np.array(std)), rtol=1e-4, atol=1e-4)


def test_arrays_of_another_size_are_resized_as_pillows_bicubic_does(tmp_path: Path) -> None:
    encoder = load_encoder(f"onnx:{colour_model(tmp_path / 'net.onnx')}@48")
    corner = some_pixels(6, 20)
    corner[:, :, 10:] = 0  # overshoots at the edge
    resized = [Image.fromarray(image).resize((48, 48), Image.Resampling.BICUBIC) for image in corner]
    found = np.array(encode(open_images(open_source(corner)), encoder).pixels)
    np.testing.assert_allclose(found, expected_features(np.stack(resized), MEAN, STD), atol=0.02)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_fixed_batch_is_filled_up(tmp_path: Path, batch: int) -> None:
    path = colour_model(tmp_path / "net.onnx", (batch, 3, 24, 24), given=(batch, 8))
    assert load_encoder(f"onnx:{path}").side == 24
    pixels = some_pixels(20, 24)
    np.testing.assert_allclose(
        features_of(f"onnx:{path}", pixels), expected_features(pixels, MEAN, STD), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "made",
    [
        {"shape": ("n", 24, 24, 3), "before": ("Transpose", {"perm": [0, 3, 1, 2]})},
        {"shape": ("n", "h", "w", 3), "before": ("Transpose", {"perm": [0, 3, 1, 2]})},
        {"kind": TensorProto.FLOAT16},
        {"after": ("Unsqueeze", {"more": ["last"]}), "given": ("n", 8, 1)},
        {"after": ("Unsqueeze", {"more": ["axes"]}), "given": ("n", "tokens", 8)},  # (n,1,8): tokens
        {"opset": 13},
    ],
    ids=["channels_last", "channels_last_any_size", "float16", "columns", "tokens", "old_opset"],
)
def test_other_layouts_that_exporters_write(tmp_path: Path, made: dict[str, Any]) -> None:
    path, pixels = colour_model(tmp_path / "net.onnx", **made), some_pixels(9, 24)
    found = features_of(f"onnx:{path}@24", pixels)
    np.testing.assert_allclose(found, expected_features(pixels, MEAN, STD), atol=0.01)


def test_one_of_several_outputs_is_named(tmp_path: Path) -> None:
    path, pixels = colour_model(tmp_path / "net.onnx", outputs=("one", "ten", "hundred")), some_pixels(4)
    with pytest.raises(InputError, match=r"has 3 outputs \(one, ten, hundred\): name one, --set encoder.output=one"):
        load_encoder(f"onnx:{path}")
    with pytest.raises(InputError, match="has no output 'eleven': it has one, ten, hundred"):
        load_encoder(f"onnx:{path}", EncoderInput(output="eleven"))
    one, ten = (features_of(f"onnx:{path}", pixels, output=output) for output in ("one", "ten"))
    np.testing.assert_allclose(10 * one, ten, rtol=1e-5)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"after": ("Log", {})}, "gives NaN or infinity for a test image"),
        ({"shape": ("n", 1, 24, 24)}, "expected three channels"),
        ({"shape": ("n", 3, 24, 32)}, "expected square images"),
        ({"shape": ("n", 3)}, "not images: expected floats (n,3,side,side)"),
        ({"kind": TensorProto.INT64}, "not images: expected floats"),
        ({"inputs": 2}, "takes 2 inputs (images, more_1), not images alone"),
        ({"after": ("Transpose", {"perm": [1, 0]}), "given": (8, "n")}, "for 2 images: it needs one row per image"),
        ({"after": ("ReduceSum", {"keepdims": 0}), "given": ()}, "for 2 images: it needs one row per image"),
    ],
    ids=["nan", "grey", "oblong", "rows", "whole_numbers", "two_inputs", "turned", "one_number"],
)
def test_a_file_that_is_no_image_encoder_is_refused_in_one_line(tmp_path: Path, made: Any, said: str) -> None:
    with pytest.raises(InputError) as raised:
        load_encoder(f"onnx:{colour_model(tmp_path / 'net.onnx', **made)}")
    assert said in str(raised.value)
    assert "net.onnx" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there_not_onnx_or_of_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(b"noise" * 1000)
    for name, said in [
        ("nowhere.onnx", "there is no such file"),
        ("noise.onnx", "is not an ONNX model that onnxruntime can read"),
        (text_model(tmp_path / "text.onnx").name, "takes input_ids, (int64)(?,77), not images"),
    ]:
        with pytest.raises(InputError) as raised:
            load_encoder(f"onnx:{tmp_path / name}")
        assert said in str(raised.value).replace("(n,", "(?,")
        assert "\n" not in str(raised.value)


def test_a_size_that_the_file_does_not_take_is_refused(tmp_path: Path) -> None:
    path = colour_model(tmp_path / "net.onnx", ("n", 3, 24, 24))
    with pytest.raises(InputError, match="24 pixels a side only: leave out the size 32"):
        load_encoder(f"onnx:{path}@32")
    with pytest.raises(InputError, match="names one size and encoder.size=32 another"):
        load_encoder(f"onnx:{path}@24", EncoderInput(size=32))


def test_features_are_kept_by_the_hash_of_the_file(tmp_path: Path, own_cache: Path) -> None:
    path, pixels = colour_model(tmp_path / "net.onnx"), some_pixels(3)
    features_of(f"onnx:{path}", pixels)
    (tmp_path / "moved").mkdir()
    shutil.copy(path, tmp_path / "moved" / "other name.onnx")
    features_of(f"onnx:{tmp_path / 'moved' / 'other name.onnx'}", pixels)
    assert len(list((own_cache / "features").glob("*.npy"))) == 1
    assert load_encoder(f"onnx:{path}").version.startswith(hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    colour_model(path, outputs=("features", "ten"))
    features_of(f"onnx:{path}", pixels, output="ten")
    assert len(list((own_cache / "features").glob("*.npy"))) == 2


def test_changed_weights_in_a_file_of_any_name_are_noticed(tmp_path: Path) -> None:
    path, weights = tmp_path / "net.onnx", tmp_path / "parts" / "weights.bin"
    weights.parent.mkdir()
    model = onnx.load(colour_model(path))
    onnx.save(model, path, save_as_external_data=True, location="parts/weights.bin", size_threshold=0)
    before, name = load_encoder(f"onnx:{path}").version, f"onnx:{path}"
    assert load_encoder(name).version == before
    numbers = np.frombuffer(weights.read_bytes(), np.float32)
    weights.write_bytes((2 * numbers).tobytes())
    assert load_encoder(name).version != before


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(folder))
    with pytest.raises(InputError, match="features cannot be kept in .*TWINCLUSTER_CACHE"):
        features_of(f"onnx:{colour_model(tmp_path / 'net.onnx')}", some_pixels(3))


def test_fit_predict_update_and_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = colours(60)
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).resize((40, 30)).save(tmp_path / "photos" / f"{number:02}.png")
    colour_model(tmp_path / "net.onnx", outputs=("one", "ten"))
    monkeypatch.chdir(tmp_path)
    worked("fit", "photos", "-k", "3", "--out", "run", "--backbone", "onnx:net.onnx", *QUICK,
           "--set", "encoder.output=ten", "--set", "encoder.size=32", "--set", "encoder.mean=[.5,.5,.5]")  # fmt: skip
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert saved["train"]["encoder"] == f"onnx:{tmp_path / 'net.onnx'}"
    assert saved["encoder"] == {"size": 32, "mean": [0.5] * 3, "std": [-1.0] * 3, "output": "ten"}
    monkeypatch.chdir("/")
    run = tmp_path / "run"
    worked("predict", run, tmp_path / "photos", "--out", tmp_path / "new.csv")
    fitted, again = (file.read_text().splitlines() for file in (run / "assignments.csv", tmp_path / "new.csv"))
    assert [line.split(",")[:2] for line in fitted[1:]] == [line.split(",")[:2] for line in again[1:]]
    said = worked("export", run, tmp_path / "whole.onnx", "--to", "onnx").out
    assert "takes images, uint8 (batch, height, width, 3)" in said
    onnx.checker.check_model(onnx.load(tmp_path / "whole.onnx"), full_check=True)
    files = sorted((tmp_path / "photos").iterdir())
    given = np.stack([np.asarray(Image.open(file)) for file in files])
    probabilities, _ = onnxruntime.InferenceSession(tmp_path / "whole.onnx").run(None, {"images": given})
    clusters = {line.split(",")[0]: int(line.split(",")[1]) for line in fitted[1:]}
    assert probabilities.argmax(1).tolist() == [clusters[file.name] for file in files]
    Image.fromarray(images[0]).resize((50, 50)).save(tmp_path / "photos" / "late.png")
    worked("update", run, tmp_path / "photos")
    assert len(Run.open(run).read_assignments().paths) == 61
    worked("fit", tmp_path / "photos", "-k", "3", "--out", tmp_path / "two", "--backbone",
           f"onnx:{tmp_path / 'net.onnx'}", *QUICK, "--set", "encoder.output=one")  # fmt: skip
    (tmp_path / "net.onnx").write_bytes(colour_model(tmp_path / "x.onnx", outputs=("one", "ten", "c")).read_bytes())
    refused = command("predict", tmp_path / "two", tmp_path / "photos", "--out", tmp_path / "no.csv")
    assert "weights of the encoder have changed since" in refused.complaint


def test_a_file_of_a_fixed_batch_is_exported_with_it(tmp_path: Path) -> None:
    images, _ = colours(40)
    np.save(tmp_path / "images.npy", images)
    path = colour_model(tmp_path / "net.onnx", (4, 3, 24, 24), given=(4, 8), opset=13)
    worked("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "run", "--backbone", f"onnx:{path}", *QUICK)
    said = worked("export", tmp_path / "run", tmp_path / "whole.onnx", "--to", "onnx").out
    assert "uint8 (4, height, width, 3)" in said
    session = onnxruntime.InferenceSession(tmp_path / "whole.onnx")
    found = session.run(None, {"images": images[:4]})[0].argmax(1)
    assert found.tolist() == Run.open(tmp_path / "run").read_assignments().clusters[:4].tolist()


def test_two_encoders_count_alike_and_are_cached_one_by_one(tmp_path: Path, own_cache: Path) -> None:
    images, labels = colours(90)
    np.savez(tmp_path / "some.npz", images=images, labels=labels)
    one = colour_model(tmp_path / "a+b@2.onnx")
    two = colour_model(tmp_path / "two.onnx", ("n", 3, 20, 20), after=("Abs", {}))
    name = f"onnx:{one}@24+onnx:{two}"
    assert [part.side for part in read_name(name)] == [24, None]
    worked("fit", tmp_path / "some.npz", "-k", "3", "--out", tmp_path / "run", "--backbone", name, *QUICK)
    run = Run.open(tmp_path / "run")
    assert (run.shape.widths, run.shape.n_inputs) == ((8, 8), 16)
    assert len(list((own_cache / "features").glob("*.npy"))) == 2
    worked("predict", tmp_path / "run", tmp_path / "some.npz", "--out", tmp_path / "new.csv")
    worked("export", tmp_path / "run", tmp_path / "whole.onnx", "--to", "onnx")
    found = onnxruntime.InferenceSession(tmp_path / "whole.onnx").run(None, {"images": images})[0].argmax(1)
    assert found.tolist() == run.read_assignments().clusters.tolist()
    encoder = load_encoder(name)
    rows = encode(open_images(open_source(images)), dataclasses.replace(encoder, version="")).pixels
    alone = [encode(open_images(open_source(images)), part).pixels for part in encoder.parts]
    np.testing.assert_array_equal(rows, np.concatenate(alone, 1))
    refused = command("fit", tmp_path / "some.npz", "-k", "3", "--out", tmp_path / "no", "--backbone", name, *QUICK,
                      "--set", "encoder.size=24")  # fmt: skip
    assert "joins 2 encoders" in refused.complaint


def test_three_encoders_are_joined(tmp_path: Path) -> None:
    images, _ = colours(60)
    np.save(tmp_path / "images.npy", images)
    files = [colour_model(tmp_path / f"{side}.onnx", ("n", 3, side, side)) for side in (16, 20, 24)]
    name = "+".join(f"onnx:{file}" for file in files)
    worked("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "run", "--backbone", name, *QUICK)
    assert Run.open(tmp_path / "run").shape.widths == (8, 8, 8)
    worked("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    fitted, again = (path.read_text().splitlines() for path in (tmp_path / "run/assignments.csv", tmp_path / "new.csv"))
    assert [row.split(",")[:2] for row in fitted] == [row.split(",")[:2] for row in again]


def test_settings_of_an_encoder_without_one_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours(40)[0])
    common = ("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "no", "--device", "cpu")
    refused = command(*common, "--set", "encoder.size=24", "--backbone", "small")
    assert "name one, --backbone NAME" in refused.complaint
    refused = command(*common, "--set", "encoder.std=[0.1,0,0.2]", "--backbone", "small")
    assert "encoder.std is [0.1, 0.0, 0.2]: expected numbers above 0" in refused.complaint
    path = colour_model(tmp_path / "net.onnx")
    refused = command(*common, "--recipe", "finetune", "--backbone", f"onnx:{path}")
    assert "an ONNX file stays frozen" in refused.complaint


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("tinyvit-5m", [("tinyvit-5m", "", None)]),
        ("tinyvit-5m@160+clip-b32", [("tinyvit-5m", "", 160), ("clip-b32", "", None)]),
        ("onnx:a+b.onnx", [("onnx", "a+b.onnx", None)]),
        ("onnx:a+pretrained", [("onnx", "a", None), ("pretrained", "", None)]),
        ("timm:local-dir:x@2+onnx:y@3", [("timm", "local-dir:x", 2), ("onnx", "y", 3)]),
        ("onnx:https://h/a+b@2.onnx#sha256=00+pretrained@64",
         [("onnx", "https://h/a+b@2.onnx#sha256=00", None), ("pretrained", "", 64)]),
        ("pretrained@4", [("pretrained", "", 4)]),
    ],
)  # fmt: skip
def test_names_are_taken_apart(name: str, parts: list[tuple[str, str, int | None]]) -> None:
    found = read_name(name)
    assert [(part.kind, part.rest, part.side) for part in found] == parts
    assert "+".join(map(str, found)) == name


def test_a_plus_or_an_at_in_the_name_of_a_file_that_exists_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a+pretrained", "net@2"):
        (tmp_path / name).touch()
    assert [(part.rest, part.side) for part in read_name("onnx:a+pretrained")] == [("a+pretrained", None)]
    assert [(part.rest, part.side) for part in read_name("onnx:net@2@64")] == [("net@2", 64)]
    with pytest.raises(InputError, match="joins an encoder with itself"):
        read_name("pretrained+pretrained")


@pytest.mark.parametrize("side, count", [(32, 3), (48, 1)])
def test_a_compiled_network_gives_the_features_of_the_network(side: int, count: int) -> None:
    network = build_backbone("small", side=32, n_inputs=3).eval()
    compiled, images = compile_network(network, side), torch.randn(count, 3, side, side)
    assert isinstance(compiled, OnnxNetwork)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(images), network(images), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_compiled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(nn.Module):
        """One path while it is traced, and another later."""

        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)) * (2 if torch.jit.is_tracing() else 1)

    class Numpy(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise TypeError("not today")

    for network in (Odd(), Numpy()):
        assert compile_network(network, 16) is network
    small = build_backbone("small", side=32, n_inputs=3).eval()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert compile_network(small, 32) is small


def test_many_images_are_encoded_by_the_compiled_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_weights(tmp_path)
    encoder = load_encoder(f"small:{tmp_path / 'weights.safetensors'}@32")
    pixels = some_pixels(300, 32)
    compiled: list[int] = []
    compile_it = feature_cache.compile_network
    monkeypatch.setattr(
        feature_cache, "compile_network", lambda network, side: compiled.append(side) or compile_it(network, side)
    )
    few = encode(open_images(open_source(pixels[:40])), encoder).pixels
    assert not compiled
    many = encode(open_images(open_source(pixels)), encoder).pixels
    assert compiled == [32]
    np.testing.assert_allclose(many[:40], few, rtol=1e-3, atol=1e-4)
    encode(open_images(open_source(pixels)), wrap_module(Colour()))
    assert compiled == [32]  # the code of a user runs as it is
