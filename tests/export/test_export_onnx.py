"""The ONNX file against torch: real images of several sizes, in batches, through onnxruntime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from command_line import TINY, colours, command, worked
from small_runs import rows
from twincluster.data import open_source, plain_images
from twincluster.data.decoding import letterboxed, square
from twincluster.export.onnx import Seeing
from twincluster.model import Model
from twincluster.runs import Edits, Run

PIXEL_TOLERANCE = 1e-5  # of standardised values
TOLERANCE = 1e-5  # of probabilities and of a unit embedding; 1e-6 was measured
FILE_TOLERANCE = 1e-3  # the same for files, which Pillow resizes in whole numbers


def photographs(height: int, width: int) -> np.ndarray:
    """Parts of two photographs, uint8 (6,h,w,3)."""
    parts = []
    for picture in load_sample_images().images:
        for left in (0, 100, 250):
            part = Image.fromarray(picture[:, left : left + 380]).resize((width, height))
            parts.append(np.asarray(part))
    return np.stack(parts)


def session(path: Path) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(onnx.load(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def by_torch(run: Run, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `twincluster predict` computes."""
    model = Model.load(run, "cpu")
    opened = model.open(open_source(images, at_least=1))
    return model.predict(opened).numpy(), model.embed(opened).numpy()


@pytest.mark.parametrize("frame", ["crop", "letterbox"])
@pytest.mark.parametrize("height, width", [(16, 16), (17, 23), (97, 60), (5, 9), (200, 301), (1, 7)])
def test_resizing_by_matrices_is_torchs(frame: str, height: int, width: int) -> None:
    images, mean, std = photographs(height, width), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    edge = min(height, width)
    top, left = (height - edge) // 2, (width - edge) // 2
    squares = letterboxed(images) if frame == "letterbox" else images[:, top : top + edge, left : left + edge]
    expected = plain_images(torch.from_numpy(np.ascontiguousarray(squares)), 16, torch.tensor(mean), torch.tensor(std))
    found = Seeing(16, mean, std, frame)(torch.from_numpy(images))
    assert (found - expected).abs().max() < PIXEL_TOLERANCE


@pytest.mark.parametrize("frame", ["crop", "letterbox"])
@pytest.mark.parametrize("height, width", [(36, 36), (40, 31), (70, 101), (20, 33), (300, 200)])
def test_files_are_seen_as_they_are_decoded(frame: str, height: int, width: int) -> None:
    """In levels of 255. From four times the size on Pillow averages blocks of pixels first, which differs a little."""
    images, no, one = photographs(height, width), (0.0,) * 3, (1.0,) * 3
    decoded = torch.from_numpy(np.stack([square(Image.fromarray(picture), 36, frame) for picture in images]))
    found = Seeing(36, no, one, frame, stored=36)(torch.from_numpy(images))
    difference = 255 * (found - plain_images(decoded, 36, torch.zeros(3), torch.ones(3))).abs()
    assert difference.max() < (1.01 if max(height, width) < 144 else 10)
    assert difference.mean() < (0.01 if max(height, width) < 144 else 1)
    smaller = Seeing(24, no, one, frame, stored=36)(torch.from_numpy(images))
    assert 255 * (smaller - plain_images(decoded, 24, torch.zeros(3), torch.ones(3))).abs().mean() < 1


def test_images_of_any_size_and_number(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    worked("fit", tmp_path / "images.npy", "-k", 3, "--out", tmp_path / "run", *TINY)
    run = Run.open(tmp_path / "run")
    Edits(run).rename(0, "x")
    done = worked("export", run.folder, tmp_path / "out" / "model.onnx", "--to", "onnx")
    assert "takes images, uint8 (batch, height, width, 3), and returns probabilities and embedding" in done.out
    assert "clusters keep their numbers, names are not included" in done.out
    assert done.err == ""
    model = session(tmp_path / "out" / "model.onnx")
    assert [(found.name, found.shape, found.type) for found in model.get_inputs()] == [
        ("images", ["batch", "height", "width", 3], "tensor(uint8)")
    ]
    for images in (colours()[0], photographs(16, 16), photographs(64, 40), photographs(90, 133)[:1]):
        for found, expected in zip(model.run(None, {"images": images}), by_torch(run, images), strict=True):
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() < TOLERANCE


@pytest.mark.parametrize("frame", ["crop", "letterbox"])
def test_arrays_that_were_made_smaller_and_others(tmp_path: Path, frame: str) -> None:
    np.save(tmp_path / "images.npy", photographs(38, 40))
    sizes = ("--set", "train.image_size=8", "--set", f"train.frame={frame}")
    worked("fit", tmp_path / "images.npy", "-k", 2, "--out", tmp_path / "run", *TINY, *sizes)
    run = Run.open(tmp_path / "run")
    assert run.data.side == 12
    worked("export", run.folder, tmp_path / "model.onnx", "--to", "onnx")
    model = session(tmp_path / "model.onnx")
    for height, width in ((38, 40), (17, 17), (16, 16), (16, 15), (6, 7)):  # from 17 on they are made smaller
        images = photographs(height, width)
        for found, expected in zip(model.run(None, {"images": images}), by_torch(run, images), strict=True):
            assert np.abs(found - expected).max() < (FILE_TOLERANCE if min(height, width) > 16 else TOLERANCE)


def test_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows(n=60))
    worked("fit", tmp_path / "rows.npy", "-k", 3, "--out", tmp_path / "run", "--epochs", 1, "--device", "cpu")
    worked("export", tmp_path / "run", tmp_path / "model.onnx", "--to", "onnx")
    found = session(tmp_path / "model.onnx").run(None, {"rows": rows(n=7, seed=2)})
    for one, two in zip(found, by_torch(Run.open(tmp_path / "run"), rows(n=7, seed=2)), strict=True):
        assert np.abs(one - two).max() < TOLERANCE


def test_files_through_a_pretrained_encoder(tmp_path: Path) -> None:
    """The whole image in, what `predict` says of the file out; the encoder is inside."""
    images = photographs(90, 120)
    (tmp_path / "photos").mkdir()
    for number, picture in enumerate(images):
        Image.fromarray(picture).save(tmp_path / "photos" / f"{number}.png")
    worked("fit", tmp_path / "photos", "-k", 2, "--out", tmp_path / "run", "--backbone", "pretrained@64",
           "--epochs", 1, "--device", "cpu")  # fmt: skip
    worked("export", tmp_path / "run", tmp_path / "model.onnx", "--to", "onnx")
    model = Model.load(Run.open(tmp_path / "run"), "cpu")
    opened = model.open(open_source(tmp_path / "photos"))
    expected = [model.predict(opened), model.embed(opened)]
    for found, wanted in zip(session(tmp_path / "model.onnx").run(None, {"images": images}), expected, strict=True):
        assert np.abs(found - wanted.numpy()).max() < FILE_TOLERANCE


def test_packages_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", rows(n=30))
    worked("fit", tmp_path / "rows.npy", "-k", 3, "--out", tmp_path / "run", "--epochs", 1, "--device", "cpu")
    monkeypatch.setattr("twincluster.export.onnx.importlib.util.find_spec", lambda name: None)
    said = command("export", tmp_path / "run", tmp_path / "m.onnx", "--to", "onnx").complaint
    assert said == "--to onnx needs packages: pip install 'twincluster[onnx]'"
