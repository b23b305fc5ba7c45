"""The health of assignments: what is measured of them, and warnings at the edges of their thresholds."""

import math
import re

import pytest
import torch
from torch import Tensor

from twincluster.clustering import Advice, Health, health
from twincluster.config import Config, make_config, parse_overrides
from twincluster.methods import METHODS

TCC, ANCHORED = (("tcc", METHODS["tcc"].advice), ("anchored", METHODS["anchored"].advice))


def peaked(labels: Tensor, n_clusters: int, top: float) -> Tensor:
    """q with `top` on the given cluster and the rest shared by the others."""
    q = torch.full((len(labels), n_clusters), (1 - top) / (n_clusters - 1))
    q[torch.arange(len(labels)), labels] = top
    return q


def balanced(n_clusters: int, n: int = 1000) -> Tensor:
    return torch.arange(n) % n_clusters


def warning_of(sizes: list[int], confidence: float = 0.9, agreement: float | None = None) -> str:
    return Health(sizes, confidence, marginal_entropy=1.0, agreement=agreement).warning(*TCC) or ""


def test_health_measures_what_it_says() -> None:
    q = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]])
    other = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]])
    state = health(q, other)
    mean = [1.6 / 4, 1.8 / 4, 0.6 / 4]
    assert state.sizes == [2, 2, 0]
    assert state.confidence == pytest.approx(2.6 / 4)
    assert state.marginal_entropy == pytest.approx(-sum(p * math.log(p) for p in mean) / math.log(3))
    assert state.agreement == pytest.approx(0.75)
    assert health(q).agreement is None


def test_health_of_extremes() -> None:
    one_cluster = health(peaked(torch.zeros(50, dtype=torch.int64), 4, 1.0))
    assert str(one_cluster.marginal_entropy) == "0.0"
    assert one_cluster.confidence == 1.0
    assert health(peaked(balanced(4), 4, 1.0)).marginal_entropy == pytest.approx(1.0)
    assert health(peaked(balanced(4), 4, 0.9).bfloat16()).confidence == pytest.approx(0.9, abs=0.01)
    with pytest.raises(ValueError, match="at least one row"):
        health(torch.zeros(0, 3))


@pytest.mark.parametrize("n_clusters", [2, 10, 20, 200])
def test_a_healthy_assignment_gives_no_warning(n_clusters: int) -> None:
    labels = balanced(n_clusters, n=20 * n_clusters)
    q = peaked(labels, n_clusters, 0.8)
    assert health(q, q).warning(*TCC) is None
    slightly_off = labels.clone()
    slightly_off[::5] = (slightly_off[::5] + 1) % n_clusters
    assert health(q, peaked(slightly_off, n_clusters, 0.8)).warning(*TCC) is None
    uneven = torch.cat([labels, torch.zeros(len(labels), dtype=torch.int64)])  # one cluster holds half and more
    assert health(peaked(uneven, n_clusters, 0.8)).warning(*TCC) is None


def test_an_untrained_assignment_is_called_uniform() -> None:
    assert "uniform" in (health(peaked(balanced(10), 10, 0.125)).warning(*TCC) or "")
    small_logits = 0.1 * torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
    assert "uniform" in (health(small_logits.softmax(1)).warning(*TCC) or "")
    assert "uniform" in (health(torch.full((100, 10), 0.1)).warning(*TCC) or "")  # though argmax puts all rows in one
    # bounded logits, as of unit vectors at temperature 1, peak at .25 and are no fault
    assert health(peaked(balanced(10), 10, 0.25)).warning(*TCC) is None


@pytest.mark.parametrize(("n_clusters", "edge"), [(2, 0.525), (3, 0.3667), (10, 0.145), (100, 0.015), (1000, 0.0015)])
def test_the_edge_of_uniform(n_clusters: int, edge: float) -> None:
    sizes = [100] * n_clusters
    assert "stay uniform" in warning_of(sizes, confidence=edge * 0.999)
    assert warning_of(sizes, confidence=edge * 1.001) == ""


def test_the_edge_of_one_cluster_holding_everything() -> None:
    assert "one of 10 contains 91% of the images" in warning_of([910] + [10] * 9)
    assert warning_of([900, 20] + [10] * 8) == ""
    assert "one of 2 contains 95%" in warning_of([950, 50])
    assert warning_of([900, 100]) == ""


def test_empty_clusters_warn_unless_there_are_too_few_rows_to_tell() -> None:
    assert "1 of 10 is empty" in warning_of([100] * 9 + [0])
    assert "4 of 10 are empty" in warning_of([100] * 6 + [0] * 4)
    # 100 rows thrown at 100 clusters leave 36.6 empty, give or take; three deviations above is 54.8
    assert warning_of([2] * 46 + [0] * 54) == ""
    assert "55 of 100 are empty" in warning_of([2] * 10 + [3] * 10 + [2] * 25 + [0] * 55)


def test_a_finished_run_has_no_empty_cluster_by_chance() -> None:
    """What it was asked for it does not have, however few images there are; nothing but sizes is judged."""
    few = [2] * 46 + [0] * 54
    assert warning_of(few) == ""
    assert "54 of 100 are empty" in (Health.of_result(few).warning(*TCC) or "")
    assert "contains 100% of the images (the images are equal, or" in (
        Health.of_result([50, 0, 0]).warning(*ANCHORED) or ""
    )
    assert "the images are equal" not in (Health.of_result([49, 1]).warning(*ANCHORED) or "")
    assert Health.of_result([3, 1, 1]).warning(*ANCHORED) is None


def test_few_rows_drawn_evenly_rarely_raise_a_false_alarm() -> None:
    generator = torch.Generator().manual_seed(0)
    for n_clusters, n in [(10, 40), (10, 100), (100, 128), (1000, 320)]:
        alarms = 0
        for _ in range(100):
            sizes = torch.bincount(torch.randint(n_clusters, (n,), generator=generator), minlength=n_clusters).tolist()
            alarms += bool(warning_of(sizes))
        assert alarms <= 5, (n_clusters, n)


def test_the_edge_of_views_that_do_not_agree() -> None:
    # balanced over K clusters chance is 1/K, and the edge lies a quarter of the way up
    assert "do not agree" in warning_of([100] * 10, agreement=0.324)
    assert warning_of([100] * 10, agreement=0.326) == ""
    assert "do not agree" in warning_of([500] * 2, agreement=0.624)
    assert warning_of([500] * 2, agreement=0.626) == ""
    # uneven clusters agree more by chance: .5^2 + 5 * .1^2 = .3
    assert "by chance 30%" in warning_of([500] + [100] * 5, agreement=0.47)
    assert warning_of([500] + [100] * 5, agreement=0.48) == ""


def test_broken_assignments_are_said_to_be_broken() -> None:
    assert "NaN" in (health(torch.full((5, 3), float("nan"))).warning(*TCC) or "")


def test_float32_is_advised_only_where_it_is_not_used_and_code_of_others_is_named() -> None:
    broken = health(torch.full((5, 3), float("nan")))
    rate = "the assignments are NaN: training diverged; lower the learning rate (optimiser.learning_rate)"
    assert broken.warning("tcc", Advice(), "float32") == rate
    assert broken.warning("tcc", Advice(), "bf16") == f"{rate} or train in float32 (--precision float32)"
    assert broken.warning("simclr:Simclr", Advice(), "float32") == f"{rate} or look at the loss of simclr:Simclr"


@pytest.mark.parametrize("method", ["anchored", "tcc"])
@pytest.mark.parametrize(
    "health_state",
    [
        Health([100] * 10, 0.1, 1.0, None),
        Health([1000, 0], 1.0, 0.0, 1.0),
        Health([500, 500, 0], 0.9, 0.6, 1.0),
        Health([500, 500], 0.9, 1.0, 0.5),
        Health([1, 1], math.nan, math.nan, None),
    ],
)
def test_every_warning_is_one_line_that_says_what_to_try(health_state: Health, method: str) -> None:
    sentence = health_state.warning(method, METHODS[method].advice) or "\n"
    assert "\n" not in sentence
    assert any(word in sentence for word in ("lower", "train longer", "fewer"))
    changed = make_config(parse_overrides(re.findall(r"--set (\S+=[\w.]+)", sentence)))  # there are such settings
    assert (changed != Config()) == ("--set" in sentence)
    assert ("anchored." if method == "tcc" else "tcc.") not in sentence
