"""What `benchmarks train` counts, and that it times what it says."""

from dataclasses import replace

import pytest
import torch

from benchmarks import common, floor, peers, train
from benchmarks.__main__ import main
from twincluster.core import InputError
from twincluster.nn import build_backbone
from twincluster.resolve import data_shape
from twincluster.training import Trainer

MEGABYTE = 10**6
TINY = ["train.image_size=8", "train.backbone=small", "train.batch_size=16", "anchored.hidden=16"]

# Multiply-adds of the small backbone on 8 x 8 pixels: positions x output channels x weights of a filter.
SMALL_MULTIPLY_ADDS = (
    64 * 24 * 27  # stem
    + 2 * 64 * 24 * 216  # first block, two convolutions
    + 16 * 48 * (216 + 432 + 24)  # second block on 4 x 4 pixels: two convolutions and the shortcut
    + 4 * 96 * (432 + 864 + 48)  # third block on 2 x 2 pixels
)


@pytest.fixture(autouse=True)
def small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick at its real size would take most of the time of these tests."""
    monkeypatch.setitem(floor.PRODUCT_SIDE, "cpu", 64)
    monkeypatch.setitem(floor.COPY_BYTES, "cpu", 4096)


def test_train_prints_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    assert main(["train", "--steps", "1", "--device", "cpu", "--method", "tcc", *settings]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("tcc, small, 8 px, batch 16, float32 on CPU")
    assert title.endswith("3 rounds of 1 steps")
    fields = {row[:30].strip(): row[30:] for row in rows}
    assert list(fields) == [
        "images per second", "epoch of 60,000 images", "between epochs", "arithmetic", "float32 matrix product",
        "share of it", "memory copy", "floor of a step", "share of the floor", "a step",
        "process start to first step", "peak GPU memory", "peak resident memory",
    ]  # fmt: skip
    assert fields["epoch of 60,000 images"].endswith("in 3750 steps")
    assert fields["between epochs"].endswith("after an epoch of 16 images")
    assert fields["peak GPU memory"] == "no GPU"
    assert fields["arithmetic"].endswith("0.0139 GFLOP an image")


@pytest.mark.parametrize(
    "method, online, momentum",
    [
        ("anchored", 2, 2),  # both views through both networks
        ("tcc", 1, 1),
        ("tcc-ten-samples", 1, 1),  # ten samples of the assignment, not of the image
        ("tcc-without-image-augmentation", 2, 2),  # the plain image too, through both networks
    ],
)
def test_arithmetic_is_counted_as_by_hand(method: str, online: int, momentum: int) -> None:
    config = train.configure("cifar10", method, "cpu", TINY)
    assert train.passes(config, data_shape(config, common.blank_images(20, 8))) == (online, momentum)
    measured = train.measure(config, steps=1)
    assert measured.image_flops == 2 * SMALL_MULTIPLY_ADDS * (3 * online + momentum)
    assert (measured.steps, measured.batch_size) == (1, 16)
    assert measured.first_step is not None
    assert measured.resident is not None
    assert measured.resident > 100 * MEGABYTE  # torch alone takes more


def test_rates_follow_from_the_counts() -> None:
    measured = train.TrainSpeed(
        title="toy", steps=117, batch_size=512, step_seconds=0.016, pause_seconds=0.25, first_step=50.0,
        image_flops=8 * 10**9, product=800e12, product_type="bfloat16", resident=3 * 10**9, on_gpu=5 * 10**9,
        copying=4e12, floor=floor.Floor(0.005, 0.0025, 0.0005), passes=0.015,
    )  # fmt: skip
    assert measured.images_per_second == 32_000
    assert measured.flops_per_second == 256e12
    text = measured.to_text()
    for field in (
        "32,000", "1.87 s in 117 steps", "0.25 s after an epoch of 59,904 images", "256 TFLOP/s, 8 GFLOP an image",
        "bfloat16 matrix product       800 TFLOP/s", "32%", "50.0 s", "5.00 GB", "3.00 GB",
        "4 TB/s", "8.00 ms: 5.00 arithmetic, 2.50 batch-norm, 0.50 optimiser", "50%",
        "16.00 ms, 1.07x its passes alone",
    ):  # fmt: skip
        assert field in text


def test_yardsticks_are_positive_and_finite() -> None:
    assert 0 < floor.product_speed("cpu") < float("inf")
    assert 0 < floor.copy_speed("cpu") < float("inf")


def test_the_floor_of_a_resnet18_step_is_that_of_a_count_by_hand() -> None:
    config = train.configure("cifar10", None, "cpu", ["train.precision=float32"])
    network = build_backbone("resnet18", side=32, n_inputs=3)
    widths, sides = (64, 128, 256, 512), (32, 16, 8, 4)
    maps = [width * side**2 for width, side in zip(widths, sides, strict=True)]  # values of one layer, stage by stage
    joined = 2 * sum(maps)  # two blocks a stage
    normalised = 5 * sum(maps)  # two layers a block; the stem is the first stage's fifth, shortcuts those of the others
    assert floor.traffic(network, 32) == floor.Traffic(normalised, joined)
    found = floor.floor(config, network, 8 * 10**9, online=2, momentum=2, product=1e12, copying=1e9)
    assert found.arithmetic == pytest.approx(512 * 8e9 / 1e12)
    bytes_moved = 4 * 512 * (2 * (3 * normalised + joined) + 2 * (8 * normalised + 2 * joined))
    assert found.activations == pytest.approx(bytes_moved / 1e9)
    weights = sum(weight.numel() for weight in network.parameters())
    assert found.optimiser == pytest.approx(4 * weights * 9 / 1e9)
    assert found.seconds == found.arithmetic + found.activations + found.optimiser


def test_passes_alone_are_a_part_of_a_step() -> None:
    config = train.configure("cifar10", None, "cpu", TINY)
    trainer = Trainer(replace(config, train=replace(config.train, epochs=1)), common.noise_images(32, 8))
    before = {name: weight.clone() for name, weight in trainer.method.named_parameters()}
    assert floor.passes_alone(trainer, online=2, momentum=2, repeats=1) > 0
    assert all(weight.grad.any() for weight in trainer.method.online.backbone.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.method.named_parameters())


def test_kernels_of_a_step_are_listed_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    assert main(["train", "--steps", "1", "--device", "cpu", "--kernels", "3", *settings]) == 0
    table = capsys.readouterr().out.split("kernels of a step: ")[1]
    kinds, longest = table.split("the longest 3\n")
    assert "convolution" in kinds
    assert len(longest.splitlines()) == 3


@pytest.mark.parametrize(
    "name, kind",
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16", "convolution"),
        ("triton_poi_fused_relu_threshold_backward_3", "fused"),
        ("void at::native::vectorized_elementwise_kernel", "other"),
        ("ampere_bf16_s16816gemm", "matrix product"),
    ],
)
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert train.kind_of(name) == kind


def test_recipes_are_resolved_as_for_a_set_of_the_size_of_cifar10() -> None:
    paper = train.configure("paper-cifar10", None, "cpu", [])
    assert (paper.method, paper.train.backbone, paper.train.batch_size) == ("tcc", "resnet34", 320)
    default = train.configure("default", None, "cpu", ["seed=3"])
    assert (default.n_clusters, default.train.image_size, default.seed) == (10, 32, 3)
    assert (
        default.groups["anchored"]["instance_queue"] == 16_384
    )  # as long as fits 60,000 images, whatever the rounds hold


def test_stopwatch_keeps_steps_and_pauses_apart_and_reads_the_device_rarely() -> None:
    times = iter([0.0, 5.0, 8.0, 9.0, 12.0, 12.5])
    watch = train.Stopwatch(steps_per_epoch=3, read=lambda: next(times))
    for _ in range(2):
        for _ in range(3):
            watch.step(0.0, None)
        watch.epoch({})
    assert watch.first_step == 5.0
    assert watch.rounds == [8.0, 3.0]
    assert watch.pauses == [1.0, 0.5]
    assert list(times) == []


def test_stopwatch_sees_every_step_of_the_trainer() -> None:
    config = train.configure("cifar10", None, "cpu", TINY)
    config = replace(config, train=replace(config.train, epochs=2))
    watch = train.Stopwatch(3, lambda: 0.0)
    Trainer(config, common.noise_images(3 * 16 + 5, 8), reporter=watch).run()
    assert (watch.taken, len(watch.rounds), len(watch.pauses)) == (6, 2, 2)


def test_peers_take_turns_with_the_same_step(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    options = ["--device", "cpu", "--steps", "1", "--rounds", "2", "--workers", "1"]
    assert main(["peers", "--method", "tcc", *options, *settings]) == 0
    title, _, *rows = capsys.readouterr().out.splitlines()
    assert title.endswith("1 workers, median of 2 rounds")
    assert [row[:28].strip() for row in rows] == [peers.OURS, peers.EAGER, peers.PLAIN]
    assert [row.split()[-1] for row in rows[1:]] == ["2x", "5x"]


def test_peers_of_methods_that_take_other_views_are_refused() -> None:
    with pytest.raises(InputError, match="scan takes other views than two"):
        peers.plain(train.configure("cifar10", "scan", "cpu", TINY), common.noise_images(32, 8), workers=1)


def test_a_peer_learns_what_we_learn() -> None:
    """The plain loop is a fair one only if it also trains: weights, momentum copy and queue move."""
    config = train.configure("cifar10", "tcc", "cpu", [*TINY, "optimiser.warmup=0"])
    images = common.noise_images(32, 8)
    trainers: list[Trainer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "Trainer", lambda *a: trainers.append(Trainer(*a)) or trainers[-1])
        turn = peers.plain(config, images, workers=1)
    (trainer,) = trainers
    before = {name: tensor.clone() for name, tensor in trainer.state().items()}
    turn(0)
    moved = {
        name for name, tensor in trainer.state().items() if name in before and not torch.equal(tensor, before[name])
    }
    assert {"method.online.head.weight", "method.momentum.head.weight", "method.instance_queue.rows"} <= moved


def test_how_many_times_faster_is_the_median_of_rounds() -> None:
    seconds = {peers.OURS: [1.0, 2.0, 1.0], peers.EAGER: [2.0, 6.0, 5.0], peers.PLAIN: [10.0, 10.0, 10.0]}
    measured = peers.StepSpeeds("toy", batch_size=10, workers=16, seconds=seconds)
    assert (measured.ratio(peers.EAGER), measured.ratio(peers.PLAIN)) == (3.0, 10.0)
