"""What follows from the data: every setting that is left open, and every setting that cannot fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from small_runs import images_of, rows
from twincluster import resolve as derive
from twincluster.config import Config, make_config
from twincluster.core import InputError
from twincluster.data import Images
from twincluster.resolve import resolve, resolve_device


def blank(n: int, side: int = 8) -> Images:
    """Black images that take no memory, however many."""
    few = images_of(np.zeros((2, side, side, 3), dtype=np.uint8))
    return replace(few, pixels=np.broadcast_to(np.uint8(0), (n, side, side, 3)), usable=np.arange(n))


def derived(images: Images, **settings: Any) -> Config:
    return resolve(make_config({"n_clusters": 10, **settings}), images)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_nothing_is_left_open_and_a_resolved_config_resolves_to_itself() -> None:
    for images in (blank(600), images_of(rows(600))):
        config = derived(images)
        assert "auto" not in (config.train.device, config.train.precision, config.train.backbone)
        assert min(config.train.batch_size, config.groups["anchored"]["instance_queue"]) > 0
        assert resolve(config, images) == config


def test_what_the_settings_say_is_kept() -> None:
    train = {"batch_size": 24, "image_size": 6, "backbone": "resnet18", "device": "cpu", "precision": "float32"}
    queues = {"instance_queue": 40, "cluster_queue": 30}
    config = derived(blank(60), train=train, anchored={"instance_queue": 50})
    assert {name: getattr(config.train, name) for name in train} == train
    assert config.groups["anchored"]["instance_queue"] == 50
    config = derived(blank(60), train=train, method="tcc", tcc=queues)
    assert {name: config.groups["tcc"][name] for name in queues} == queues


# -- device and precision --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    config = derived(blank(60))
    assert (config.train.device, config.train.precision) == ("cpu", "float32")
    assert derived(blank(60), train={"precision": "float32"}).train.precision == "float32"
    with pytest.raises(InputError, match="'cuda' but torch sees no GPU: use --device auto or cpu"):
        derived(blank(60), train={"device": "cuda"})
    with pytest.raises(InputError, match="bf16 needs a GPU: use --precision auto"):
        derived(blank(60), train={"precision": "bf16"})


@pytest.mark.usefixtures("gpu")
def test_with_a_gpu() -> None:
    config = derived(blank(60))
    assert (config.train.device, config.train.precision) == ("cuda", "bf16")
    assert derived(blank(60), train={"precision": "float32"}).train.precision == "float32"
    config = derived(blank(60), train={"device": "cpu"})
    assert (config.train.device, config.train.precision) == ("cpu", "float32")
    with pytest.raises(InputError, match="bf16 needs a GPU"):
        derived(blank(60), train={"device": "cpu", "precision": "bf16"})


def test_unknown_device() -> None:
    with pytest.raises(InputError, match="device is 'tpu': expected auto, cpu or cuda"):
        derived(blank(60), train={"device": "tpu"})
    assert resolve_device("cpu") == "cpu"


# -- number of clusters, method --------------------------------------------------------------------------------------


def test_fewer_than_two_clusters() -> None:
    for settings in ({"n_clusters": 1}, {"clusters_between": [1, 9]}):
        with pytest.raises(InputError, match="set n_clusters and clusters_between to 2 or more"):
            make_config(settings)


def test_a_number_of_clusters_to_be_chosen_lies_within_what_the_samples_can_show() -> None:
    assert derived(blank(60), n_clusters=0).clusters_between == (2, 15)
    assert derived(blank(600), n_clusters=0).clusters_between == (2, 50)
    assert derived(blank(60), n_clusters=0, clusters_between=[4, 9]).clusters_between == (4, 9)
    with pytest.raises(InputError, match="60 samples can show 15 clusters at most, not 20 or more"):
        derived(blank(60), n_clusters=0, clusters_between=[20, 50])
    with pytest.raises(InputError, match="tcc needs the number of clusters"):
        derived(blank(60), n_clusters=0, method="tcc")


def test_no_more_clusters_than_readable_samples() -> None:
    half_readable = replace(blank(20), usable=np.arange(0, 20, 2))
    assert derived(half_readable, n_clusters=10).n_clusters == 10
    with pytest.raises(InputError, match="11 clusters need at least as many readable samples, got 10"):
        derived(half_readable, n_clusters=11)


def test_unknown_method() -> None:
    with pytest.raises(InputError, match="there is no method 'foo': choose one of .*anchored"):
        derived(blank(60), method="foo")


# -- image size and backbone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "wanted"), [(8, 8), (96, 96), (144, 96)])
def test_images_are_trained_on_at_their_own_size_within_reason(side: int, wanted: int) -> None:
    assert derived(blank(20, side)).train.image_size == wanted
    assert derived(blank(20, side), train={"image_size": 120}).train.image_size == 120


def test_rows_have_no_size_and_an_mlp() -> None:
    config = derived(images_of(rows(30)), train={"image_size": 16})
    assert (config.train.image_size, config.train.backbone) == (0, "mlp")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("side", "device", "method", "wanted"),
    [
        (8, "cuda", "anchored", "small"),
        (28, "cuda", "tcc", "small"),
        (32, "cpu", "anchored", "small"),
        (32, "cpu", "tcc", "small"),
        (32, "cuda", "anchored", "resnet18"),
        (32, "cuda", "tcc", "resnet34"),
        (32, "cuda", "tcc-without-l1", "resnet34"),
        (33, "cpu", "anchored", "resnet18"),
        (96, "cpu", "tcc", "resnet34"),
    ],
)
def test_the_backbone_follows_size_device_and_method(side: int, device: str, method: str, wanted: str) -> None:
    assert derived(blank(20, side), train={"device": device}, method=method).train.backbone == wanted


def test_a_backbone_must_fit_the_data() -> None:
    for name in ("mlp", "resnet19"):
        with pytest.raises(InputError, match=f"train.backbone is '{name}': for images expected auto, resnet18 or"):
            derived(blank(20), train={"backbone": name})
    for name in ("small", "resnet19"):
        with pytest.raises(InputError, match=f"train.backbone is '{name}': for rows expected auto, mlp"):
            derived(images_of(rows(20)), train={"backbone": name})


# -- batch and queues ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "n_clusters", "wanted"), [(10, 2, 10), (500, 10, 320), (500, 20, 500), (2000, 1000, 2000), (60_000, 10, 320)]
)
def test_tcc_takes_32_samples_of_every_cluster_where_there_are_so_many(n: int, n_clusters: int, wanted: int) -> None:
    assert derived(blank(n), n_clusters=n_clusters, method="tcc").train.batch_size == wanted


@pytest.mark.parametrize(("n", "n_clusters"), [(2, 2), (10, 2), (500, 10), (2000, 1000), (60_000, 10)])
def test_every_batch_fits_the_data_and_every_queue_holds_a_batch(n: int, n_clusters: int) -> None:
    for method, keys in (("anchored", 2), ("tcc", 1)):  # for one, both views are keys
        config = derived(blank(n), n_clusters=n_clusters, method=method)
        batch, settings = config.train.batch_size, config.groups[method]
        assert 2 <= batch <= n
        assert keys * batch <= settings["instance_queue"] <= max(keys * batch, n)
        assert settings.get("cluster_queue") in (None, n_clusters * (100 if n_clusters <= 400 else 16))


@pytest.mark.parametrize(
    ("n_clusters", "wanted"), [(2, 200), (200, 20_000), (400, 40_000), (1000, 16_000), (9000, 9000)]
)
def test_the_cluster_queue_has_100_rows_each_until_there_are_very_many_clusters(n_clusters: int, wanted: int) -> None:
    assert derived(blank(9000), n_clusters=n_clusters, method="tcc").groups["tcc"]["cluster_queue"] == wanted


def test_a_batch_that_follows_from_many_clusters_is_no_larger_than_the_largest_of_the_paper() -> None:
    assert derived(blank(60_000), n_clusters=200, method="tcc").train.batch_size == 6400
    assert derived(blank(60_000), n_clusters=1000, method="tcc").train.batch_size == 6400
    assert derived(blank(60_000), n_clusters=1000, train={"batch_size": 9000}).train.batch_size == 9000


def test_a_batch_larger_than_the_data_and_a_batch_of_one() -> None:
    assert derived(blank(50), train={"batch_size": 512}).train.batch_size == 50
    assert derived(blank(50), train={"batch_size": 1}).train.batch_size == 2  # batch-norm needs two


def test_a_queue_holds_each_sample_once_at_most() -> None:
    config = derived(blank(500), method="tcc", train={"batch_size": 32}, tcc={"instance_queue": 12_800})
    assert config.groups["tcc"]["instance_queue"] == 500
    config = derived(blank(500), train={"batch_size": 32}, anchored={"instance_queue": 100})
    assert config.groups["anchored"]["instance_queue"] == 100


def test_the_cluster_queue_is_whole_blocks_of_clusters() -> None:
    assert derived(blank(60), method="tcc", tcc={"cluster_queue": 70}).groups["tcc"]["cluster_queue"] == 70
    for method in ("tcc", "tcc-hard-assignments"):
        with pytest.raises(InputError, match="tcc.cluster_queue is 75: expected a multiple of the 10 clusters"):
            derived(blank(60), method=method, tcc={"cluster_queue": 75})


def test_a_simplex_needs_room() -> None:
    assert (
        derived(blank(60), method="tcc", tcc={"prototypes": "simplex", "n_features": 9}).groups["tcc"]["n_features"]
        == 9
    )
    with pytest.raises(InputError, match="simplex with 10 clusters needs tcc.n_features of at least 9, got 8"):
        derived(blank(60), method="tcc", tcc={"prototypes": "simplex", "n_features": 8})


@pytest.mark.parametrize("method", ["anchored", "swav"])
def test_who_does_not_use_a_setting_is_not_told_that_it_does_not_fit(method: str) -> None:
    """As with a recipe of TCC, another method and another number of clusters."""
    settings = {"cluster_queue": 75, "prototypes": "simplex", "n_features": 8}
    assert "tcc" not in derived(blank(60), method=method, tcc=settings).groups


# -- length ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["rows", "cpu", "cuda"])
def test_a_run_of_no_stated_length_sees_so_many_samples_within_limits(kind: str) -> None:
    def epochs(n: int, stated: int = 0) -> int:
        images = blank(n)
        if kind == "rows":
            images = replace(images, pixels=np.broadcast_to(np.float32(0), (n, 4)))
        device = "cpu" if kind == "rows" else kind
        return derived(images, train={"epochs": stated, "device": device}).train.epochs

    fewest, most = derive.EPOCHS[kind]
    assert epochs(10) == most
    assert epochs(10**8) == fewest
    between = derive.SAMPLES_SEEN[kind] // ((fewest + most) // 2)
    assert epochs(between) * between == pytest.approx(derive.SAMPLES_SEEN[kind], rel=0.05)
    assert epochs(10, stated=3) == 3


@pytest.mark.usefixtures("gpu")
def test_only_long_runs_on_a_gpu_are_compiled() -> None:
    enough = {"epochs": derive.LONG_STEPS, "batch_size": 50}  # one step each
    for train, compiled in [
        (enough, True),
        (enough | {"epochs": derive.LONG_STEPS - 1}, False),
        (enough | {"compile": False}, False),
        (enough | {"device": "cpu"}, False),
        ({"epochs": 1, "minutes": derive.LONG_MINUTES}, True),
        (enough | {"minutes": derive.LONG_MINUTES / 2}, False),
    ]:
        assert derived(blank(50), train=train).train.compile is compiled
