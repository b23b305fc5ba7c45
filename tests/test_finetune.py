"""A pretrained network that goes on learning: where it starts, what moves, what a run of it needs later."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from small_runs import pictures, rows
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.methods import Network
from twincluster.nn import build_backbone

PIXELS = pictures(40, side=16)[0]
QUICK = {"train.batch_size": 16, "anchored.hidden": 16, "anchored.n_features": 8}


def weights_of_a_small(folder: Path) -> tuple[str, dict[str, Tensor]]:
    """The name of an encoder, and the weights it starts with, their statistics far from those of a fresh network."""
    network = build_backbone("small", side=32, n_inputs=3)
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in state.items():
        if name.endswith("running_mean"):
            tensor += torch.randn(tensor.shape, generator=generator)
    save_file(state, folder / "weights.safetensors")
    return f"small:{folder / 'weights.safetensors'}@16", state


def finetuned(name: str, rate: float) -> TwinContrastClustering:
    settings = {**QUICK, "optimiser.learning_rate": rate}
    warnings.simplefilter("ignore", ConvergenceWarning)  # two epochs make no clusters
    model = TwinContrastClustering(3, recipe="finetune", backbone=name, epochs=2, settings=settings, random_state=0)
    return model.fit(PIXELS)


def backbone_of(network: Network) -> dict[str, Tensor]:
    state = network.state_dict()
    return {name.removeprefix("backbone.network."): state[name] for name in state if name.startswith("backbone.")}


def test_it_starts_from_the_pretrained_weights_and_moves_them_but_not_their_statistics(tmp_path: Path) -> None:
    name, before = weights_of_a_small(tmp_path)
    still, moved = (backbone_of(finetuned(name, rate)._model.network) for rate in (1e-12, 0.05))
    for key, tensor in before.items():
        torch.testing.assert_close(still[key], tensor, rtol=0, atol=1e-6)
        statistic = "running" in key or "tracked" in key
        assert torch.equal(moved[key], tensor) == statistic, key


def test_images_are_shown_at_the_size_and_with_the_statistics_that_the_encoder_is_used_to(tmp_path: Path) -> None:
    name, _ = weights_of_a_small(tmp_path)
    model = finetuned(name.replace("@16", "@24"), 0.05)
    assert model.config_.train.image_size == 24
    np.testing.assert_allclose(model._model.network.mean, [0.485, 0.456, 0.406], atol=1e-6)


def test_a_saved_run_predicts_with_what_was_learned(tmp_path: Path) -> None:
    name, _ = weights_of_a_small(tmp_path)
    model = finetuned(name, 0.05)
    model.save(tmp_path / "run")
    loaded = TwinContrastClustering.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.predict_proba(PIXELS), model.predict_proba(PIXELS), atol=1e-6)


@pytest.mark.parametrize(
    "settings, data, message",
    [
        ({"train.encoder": ""}, PIXELS, "names no pretrained network"),
        ({"train.encoder": "small:nowhere.safetensors"}, PIXELS, "there is no such file"),
        ({}, rows(40), "contains rows"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said(tmp_path: Path, settings: dict, data: np.ndarray, message: str) -> None:
    name, _ = weights_of_a_small(tmp_path)
    given = None if settings else name
    model = TwinContrastClustering(3, recipe="finetune", backbone=given, epochs=1, settings={**QUICK, **settings})
    with pytest.raises(InputError, match=message):
        model.fit(data)


def test_a_size_that_the_encoder_does_not_see_is_refused(tmp_path: Path) -> None:
    name, _ = weights_of_a_small(tmp_path)
    settings = {**QUICK, "train.image_size": 20}
    with pytest.raises(InputError, match=r"image_size is 20, but .* takes images of 16 pixels: .* NAME@20"):
        TwinContrastClustering(3, recipe="finetune", backbone=name, epochs=1, settings=settings).fit(PIXELS)
