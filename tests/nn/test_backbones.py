"""Backbones: sizes against the published networks, shapes, gradients, memory formats, and the count of operations."""

import pytest
import torch
from torch import Tensor, nn

from twincluster.core import InputError
from twincluster.nn import BACKBONES, Backbone, build_backbone, flops

IMAGE_BACKBONES = ["resnet18", "resnet34", "resnet50", "small"]
N_FEATURES = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "small": 96, "mlp": 128, "mlp_signed": 128}
# the published networks (11,689,512; 21,797,672; 25,557,032 parameters) without their classifiers of 1,000 classes
N_PARAMETERS = {
    "resnet18": 11_689_512 - 513_000,
    "resnet34": 21_797_672 - 513_000,
    "resnet50": 25_557_032 - 2_049_000,
}
STEM_DIFFERENCE = 64 * 3 * (7 * 7 - 3 * 3)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def build(name: str, side: int = 32) -> Backbone:
    return build_backbone(name, side=side, n_inputs=7 if name.startswith("mlp") else 3)


def inputs(name: str, n: int = 4, side: int = 32) -> Tensor:
    return torch.randn(n, 7) if name.startswith("mlp") else torch.randn(n, 3, side, side)


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", N_PARAMETERS)
def test_as_many_parameters_as_the_published_networks(name: str) -> None:
    with torch.device("meta"):  # shapes without numbers
        sizes = {side: n_parameters(build(name, side)) for side in (224, 65, 64, 32)}
    assert sizes[224] == sizes[65] == N_PARAMETERS[name]
    assert sizes[64] == sizes[32] == N_PARAMETERS[name] - STEM_DIFFERENCE


def test_small_and_mlp_have_the_parameters_counted_by_hand() -> None:
    def block(n_inputs: int, width: int) -> int:
        return 9 * n_inputs * width + 9 * width * width + 4 * width

    stem = 9 * 3 * 24 + 2 * 24
    shortcuts = (24 * 48 + 2 * 48) + (48 * 96 + 2 * 96)
    assert n_parameters(build("small")) == stem + block(24, 24) + block(24, 48) + block(48, 96) + shortcuts
    assert n_parameters(build("mlp")) == 7 * 128 + 128 * 128 + 4 * 128


@pytest.mark.parametrize("name", N_PARAMETERS)
def test_computes_what_torchvision_computes_with_the_same_weights(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    reference = getattr(models, name)(num_classes=1)
    reference.fc = nn.Identity()
    for layer in reference.modules():
        if isinstance(layer, nn.BatchNorm2d):  # statistics that differ, so that swapped layers show
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
    ours = build(name, side=96)
    theirs = list(reference.state_dict().values())
    assert [value.shape for value in ours.state_dict().values()] == [value.shape for value in theirs]
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs, strict=True)))
    images = inputs(name, n=2, side=96)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), reference.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
@pytest.mark.parametrize("side", [8, 16, 32, 64, 96])
def test_features_have_the_announced_shape_at_every_size(name: str, side: int) -> None:
    backbone = build(name, side).eval()
    with torch.no_grad():
        features = backbone(inputs(name, n=2, side=side))
    assert backbone.n_features == N_FEATURES[name]
    assert features.shape == (2, N_FEATURES[name])
    assert features.isfinite().all()


def test_mlp_takes_rows_and_other_channel_counts_work() -> None:
    assert build("mlp")(inputs("mlp", n=5)).shape == (5, 128)
    assert build_backbone("small", side=8, n_inputs=1)(torch.randn(2, 1, 8, 8)).shape == (2, 96)


@pytest.mark.parametrize(("side", "remaining"), [(8, 1), (32, 4), (64, 8), (65, 3), (96, 3)])
def test_stem_keeps_small_images_and_shrinks_large_ones(side: int, remaining: int) -> None:
    backbone = build("resnet18", side).eval()
    with torch.no_grad():
        maps = backbone.maps(inputs("resnet18", n=1, side=side))
    assert maps.shape == (1, 512, remaining, remaining)


@pytest.mark.parametrize("name", BACKBONES)
def test_features_are_the_mean_over_maps(name: str) -> None:
    backbone, images = build(name).eval(), inputs(name)
    with torch.no_grad():
        torch.testing.assert_close(backbone.maps(images).mean((2, 3)), backbone(images))


@pytest.mark.parametrize("name", BACKBONES)
def test_no_layer_before_batch_norm_has_a_bias(name: str) -> None:
    with torch.device("meta"):
        layers = [layer for layer in build(name).modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert layers
    assert all(layer.bias is None for layer in layers)


@pytest.mark.parametrize("name", BACKBONES)
def test_gradients_reach_every_parameter(name: str) -> None:
    backbone = build(name)
    features = backbone(inputs(name, n=6, side=16))
    (features * torch.randn_like(features)).sum().backward()
    for key, parameter in backbone.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_convolutions_start_with_the_kaiming_fan_out_spread() -> None:
    for layer in build("resnet18", side=96).modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 30_000:
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", IMAGE_BACKBONES)
def test_channels_last_gives_the_same_features(name: str) -> None:
    backbone = build(name).eval()
    images = inputs(name, n=3, side=16)
    with torch.no_grad():
        expected = backbone(images)
        channels_last = backbone.to(memory_format=torch.channels_last)
        actual = channels_last(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="resnet19.*resnet18, resnet34, resnet50, small, mlp"):
        build_backbone("resnet19", side=32, n_inputs=3)


def test_flops_of_single_layers_counted_by_hand() -> None:
    # outputs (6x6 without padding, 4x4 with padding and stride 2) times the weights behind each
    assert flops(nn.Conv2d(3, 5, 3, bias=False), side=8) == 2 * 5 * 6 * 6 * 27
    assert flops(nn.Conv2d(3, 5, 3, stride=2, padding=1), side=8) == 2 * 5 * 4 * 4 * 27
    assert flops(nn.Conv2d(4, 8, 3, padding=1, groups=2), side=8) == 2 * 8 * 8 * 8 * 18
    assert flops(nn.Linear(7, 11), side=8) == 2 * 7 * 11


def test_flops_of_whole_networks() -> None:
    assert flops(build("mlp"), side=8) == 2 * (7 * 128 + 128 * 128)
    by_hand = 8 * 8 * (27 * 24 + 2 * 9 * 24 * 24)  # stem and first block at 8 px
    by_hand += 4 * 4 * (9 * 24 * 48 + 9 * 48 * 48 + 24 * 48)  # second block, with its shortcut, at 4 px
    by_hand += 2 * 2 * (9 * 48 * 96 + 9 * 96 * 96 + 48 * 96)
    assert flops(build("small", side=8), side=8) == 2 * by_hand
    # the literature gives 1.81, 3.66 and 4.09 billion multiply-adds at 224 px, classifier (0.5 and 2 million) included
    for name, expected in {"resnet18": 1.814e9, "resnet34": 3.664e9, "resnet50": 4.09e9}.items():
        assert flops(build(name, side=224), side=224) / 2 == pytest.approx(expected, rel=2e-3)


def test_flops_leaves_the_network_as_it_was() -> None:
    backbone = build("small").train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    flops(backbone, side=16)
    assert all(layer.training and not layer._forward_hooks for layer in backbone.modules())
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())
