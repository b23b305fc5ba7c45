"""Choosing the number of clusters: known numbers are found, and where nothing can be told it is said."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import adjusted_rand_score, silhouette_score
from torch import Tensor

from twincluster.clustering import (
    Candidate,
    Choice,
    choose,
    choose_clusters,
    compare_spaces,
    gaps,
    plot,
    spherical_kmeans,
)
from twincluster.clustering.choose import _overlap
from twincluster.core import InputError


def blobs(n_clusters: int, *, n: int = 900, d: int = 32, spread: float = 1.0, seed: int = 0) -> Tensor:
    """Unit rows around random directions."""
    generator = torch.Generator().manual_seed(seed)
    middle = F.normalize(torch.randn(n_clusters, d, generator=generator), dim=1)
    noise = spread * torch.randn(n, d, generator=generator) / d**0.5
    return F.normalize(middle[torch.arange(n) % n_clusters] + noise, dim=1)


def cloud(n: int = 900, d: int = 48) -> Tensor:
    """Unit rows of one Gaussian, longer in some directions than in others and away from the origin."""
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(0)) * torch.linspace(2, 0.1, d)
    return F.normalize(rows + 1, dim=1)


@pytest.mark.parametrize(("n_clusters", "high"), [(2, 12), (3, 15), (7, 20)])
def test_finds_the_number_of_blobs(n_clusters: int, high: int) -> None:
    choice = choose_clusters(blobs(n_clusters, seed=n_clusters), 2, high, seed=0)
    assert (choice.n_clusters, choice.clear, choice.reason) == (n_clusters, True, "")


@pytest.mark.parametrize("seed", range(6))
def test_finds_five_far_blobs_with_every_seed(seed: int) -> None:
    """Halves of the data agreed better on four, so four was chosen, and called clear."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((5, 10))
    gaps_between = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    centres *= 13 / gaps_between[~np.eye(5, dtype=bool)].min()
    rows = centres[np.arange(1500) % 5] + rng.standard_normal((1500, 10))
    choice = choose_clusters(rows, 2, 12, seed=seed)
    assert (choice.n_clusters, choice.clear) == (5, True)


def test_tries_numbers_that_are_missing_on_the_grid() -> None:
    assert 9 not in choose._grid(2, 30)
    choice = choose_clusters(blobs(9, d=6, spread=0.1), 2, 30, seed=0)
    assert (choice.n_clusters, choice.clear) == (9, True)
    assert 9 in [candidate.n_clusters for candidate in choice.candidates]


def test_finds_many_blobs() -> None:
    choice = choose_clusters(blobs(40, n=1600, d=64), 20, 70, seed=0)
    assert (choice.n_clusters, choice.clear) == (40, True)


def test_blobs_that_overlap_are_not_clear() -> None:
    choice = choose_clusters(blobs(6, d=16, spread=2.5), 2, 12, seed=0)
    assert not choice.clear
    assert choice.describe().startswith(f"cannot tell how many clusters there are, using {choice.n_clusters}: ")


def test_directions_of_large_variance_decide_nothing() -> None:
    """Without whitening the halves agree best on where to cut these directions, in which no blob differs."""
    rows = torch.cat([blobs(5, spread=0.7), torch.randn(900, 2, generator=torch.Generator().manual_seed(1))], dim=1)
    assert choose_clusters(rows, 2, 12, seed=0).n_clusters == 5


@pytest.mark.parametrize("features", [cloud(), torch.ones(60, 16), cloud(n=40, d=128)], ids=["cloud", "equal", "few"])
def test_cannot_tell_where_there_are_no_clusters(features: Tensor) -> None:
    choice = choose_clusters(features, 2, 10, seed=0)
    assert not choice.clear
    assert "hardly better" in choice.reason
    assert 2 <= choice.n_clusters <= 10


@pytest.mark.parametrize(("low", "high", "word"), [(2, 6, "largest"), (14, 20, "smallest"), (9, 9, "only 9")])
def test_cannot_tell_when_the_range_misses_the_number(low: int, high: int, word: str) -> None:
    choice = choose_clusters(blobs(9), low, high, seed=0)
    assert not choice.clear
    assert word in choice.reason


def test_the_table_is_complete_and_the_runners_up_come_from_it() -> None:
    choice = choose_clusters(blobs(6).double().numpy(), 2, 20, seed=0)  # as an estimator's `transform` may give them
    numbers = [candidate.n_clusters for candidate in choice.candidates]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (2, 20)
    assert {5, 6, 7} <= set(numbers)
    assert set(choice.runners_up) < set(choice.candidates)
    assert choice.n_clusters not in [other.n_clusters for other in choice.runners_up]
    scores = [other.score for other in choice.runners_up]
    assert scores == sorted(scores, reverse=True)


def test_the_same_seed_gives_the_same_choice_and_the_features_stay_as_they_are() -> None:
    features = blobs(4, n=300)
    before = features.clone()
    assert choose_clusters(features, 2, 8, seed=3) == choose_clusters(features, 2, 8, seed=3)
    assert torch.equal(features, before)


def test_more_rows_than_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "ROWS", 500)
    seen: list[int] = []
    whole = choose._candidate
    monkeypatch.setattr(choose, "_candidate", lambda rows, k, seed: seen.append(len(rows)) or whole(rows, k, seed))
    assert choose_clusters(blobs(4), 2, 10, seed=0).n_clusters == 4
    assert set(seen) == {500}


def groups(seed: int, *places: float, d: int = 8, n: int = 200) -> list[np.ndarray]:
    """Round groups along a line."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, d)) + place * np.eye(d)[0] for place in places]


@pytest.mark.parametrize("d", [2, 32, 300])
def test_a_valley_lies_between_two_groups_and_not_between_halves_of_one(d: int) -> None:
    rng = np.random.default_rng(0)
    one, two = groups(0, 0, 8, d=d)
    assert gaps.valley(one, two, rng) < 0.1
    lower = one[:, 1] < 0
    assert gaps.valley(one[lower], one[~lower], rng) > 0.5
    assert gaps.valley(one[:3], two, rng) == 1  # too few rows


def test_a_gap_inside_a_cluster_is_found() -> None:
    rng = np.random.default_rng(0)
    one, two, three = groups(1, 0, 9, 18)
    assert gaps._inside(one, rng) > 0.5
    assert gaps._inside(np.concatenate([one, two]), rng) < 0.1
    partition = gaps.set_apart(np.concatenate([one, two, three]), 2, 2, seed=0)
    assert partition is not None
    assert not partition.clear
    assert "1 of 2 clusters have a gap inside" in partition.doubt()


def test_small_clusters_and_outliers_make_the_number_a_guess() -> None:
    even = gaps.Partition(3, 3.0, 1.0, np.zeros(3), np.ones(3), np.array([90, 90, 90]), np.ones(3))
    assert even.clear
    assert not dataclasses.replace(even, sizes=np.array([90, 90, 9])).clear
    assert dataclasses.replace(even, sizes=np.array([90, 90, 30])).clear
    scattered = dataclasses.replace(even, sizes=np.array([90, 90, 30]), widths=np.array([1.0, 1.0, 4.0]))
    assert not scattered.clear
    assert "1 of 3 clusters are small, or outliers" in scattered.doubt()
    assert not dataclasses.replace(even, between=np.array([0.9, 0.9, 0.0])).clear


@pytest.mark.parametrize(("low", "high"), [(2, 2), (2, 3), (2, 50), (10, 1000)])
def test_every_number_between_neighbours_can_be_reached(low: int, high: int) -> None:
    grid = choose._grid(low, high)
    assert (grid[0], grid[-1]) == (low, high)
    assert all(1 <= b - a <= max(1, 0.25 * a) for a, b in itertools.pairwise(grid))
    for best in grid:
        refined = choose._between(best, grid)
        assert len(refined) == len(set(refined)) <= choose.REFINED
        assert not set(refined) & set(grid)
        place = grid.index(best)
        assert all(grid[max(0, place - 1)] < k < grid[min(len(grid) - 1, place + 1)] for k in refined)


def test_adjusted_rand_is_scikit_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    for k in (2, 5, 30):
        first = torch.randint(k, (400,), generator=generator)
        second = torch.where(torch.rand(400, generator=generator) < 0.6, first, torch.randint(k, (400,)))
        expected = adjusted_rand_score(first.numpy(), second.numpy())
        assert choose._adjusted_rand(first, second, k) == pytest.approx(expected, abs=1e-9)
    assert choose._adjusted_rand(torch.zeros(9).long(), torch.zeros(9).long(), 3) == 0.0


def test_of_answers_that_tie_the_silhouette_decides_and_the_doubt_is_named() -> None:
    table = tuple(Candidate(k, score, 0.0) for k, score in [(4, 0.5), (5, 0.69), (6, 0.67), (10, 0.68), (16, 0.5)])
    answers = choose._answers(table)
    assert [answer.n_clusters for answer in answers] == [5, 10, 16]
    assert choose._settle(answers, {5: 0.2, 10: 0.1, 16: 0.9})[0].n_clusters == 5  # 16 is no tie
    best, *others = choose._settle(answers, {5: 0.1, 10: 0.2, 16: 0.9})
    assert best.n_clusters == 10
    assert others[0].n_clusters == 5
    assert "5 clusters (0.69)" in choose._doubt(best, others, table)


RISING = tuple(Candidate(k, score, 0.0) for k, score in [(2, 0.1), (20, 0.52), (37, 0.63), (49, 0.69), (50, 0.67)])


def test_a_number_beside_the_largest_is_no_peak_unless_agreement_falls_behind_it() -> None:
    doubt = choose._doubt(RISING[3], [RISING[1]], RISING)
    assert doubt.startswith(
        "two halves agree about as well on the largest number that was tried, 50 (0.67), as on 49 (0.69): set"
    )
    fallen = (*RISING[:4], Candidate(50, 0.69 - choose.TIE, 0.0))
    assert choose._doubt(fallen[3], [fallen[1]], fallen) == ""
    inside = (*RISING[:2], Candidate(37, 0.75, 0.0), Candidate(50, 0.74, 0.0))
    assert choose._doubt(inside[2], [inside[1]], inside) == ""  # 50 is another answer


def test_the_largest_number_is_not_called_the_best_where_only_its_silhouette_is() -> None:
    table = (*RISING[:2], Candidate(37, 0.83, 0.0), Candidate(50, 0.80, 0.0))
    best, *others = choose._settle(choose._answers(table), {37: 0.5, 50: 0.6, 20: 0.1, 2: 0.1})
    doubt = choose._doubt(best, others, table)
    assert doubt.startswith(
        "two halves agree about as well on 37 clusters (0.83) as on the largest number that was tried, 50"
    )


def test_uneven_blobs_are_found_or_the_second_opinion_raises_doubt() -> None:
    """Halves of few rows agree better on the three large ones than on all five."""
    rows = blobs(5, n=3000, d=48)
    sizes = [600, 300, 200, 150, 120]
    rows = torch.cat([rows[blob::5][:size] for blob, size in enumerate(sizes)])
    choice = choose_clusters(rows, 2, 12, seed=0)
    assert choice.n_clusters == 5 or not choice.clear
    assert 5 in [choice.n_clusters, *(other.n_clusters for other in choice.runners_up)]


def test_silhouette_is_scikit_learns() -> None:
    rows = blobs(4, n=200, spread=2.0)
    for k in (2, 4, 9):
        labels = spherical_kmeans(rows, k, seed=0, n_init=choose.SECOND_STARTS).labels
        expected = silhouette_score(rows.numpy(), labels.numpy(), metric="cosine")
        assert choose._silhouette(rows, k, 0) == pytest.approx(expected, abs=1e-4)
    assert choose._silhouette(F.normalize(torch.ones(20, 4), dim=1), 3, 0) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "low", "high", "advice"),
    [(99, 1, 5, "2 or more"), (99, 6, 5, "smaller number first"), (99, 2, 25, "at most 24"), (20, 8, 9, "32 or more")],
)
def test_impossible_ranges_say_what_to_ask_for(rows: int, low: int, high: int, advice: str) -> None:
    with pytest.raises(InputError, match=advice):
        choose_clusters(blobs(4, n=rows), low, high, seed=0)


def test_values_that_are_not_finite_are_refused() -> None:
    features = blobs(3)
    features[5, 5] = math.nan
    with pytest.raises(InputError, match="NaN"):
        choose_clusters(features, 2, 5, seed=0)


@pytest.mark.parametrize("clear", [True, False])
def test_plot_writes_an_image(tmp_path: Path, clear: bool) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    candidates = tuple(Candidate(k, 1 / (1 + abs(k - 6)), 0.05) for k in range(2, 20))
    choice = Choice(6, candidates, (candidates[7],), clear=True, reason="")
    plot(dataclasses.replace(choice, clear=clear), tmp_path / "k.png")
    with image.open(tmp_path / "k.png") as drawn:
        assert drawn.size[0] > 500
        assert len(drawn.convert("RGB").getcolors(2**20)) > 10


def test_the_clearer_of_two_spaces_is_the_more_stable() -> None:
    random = np.random.default_rng(0)
    kinds = np.repeat(np.arange(4), 60)
    clear = 6 * np.eye(4)[kinds] @ random.normal(size=(4, 200)) + random.normal(size=(240, 200))
    again = clear @ random.normal(size=(200, 150)) / 14
    vague = random.normal(size=(240, 200))
    first, second, third = compare_spaces([clear, again, vague], 4, seed=0)
    assert first.stability == pytest.approx(1)
    assert second.stability > 0.9 > 0.3 > third.stability
    assert first.sizes == second.sizes == (60, 60, 60, 60)
    assert sum(third.sizes) == 240
    alone, other = compare_spaces([clear, again], 4, seed=0)
    assert (alone.found_again, other.overlap) == (4, pytest.approx((1, 1, 1, 1)))
    assert third.found_again == 0


def test_an_overlap_is_the_share_of_common_rows() -> None:
    own = F.one_hot(torch.tensor([0, 0, 0, 1, 1, 1]), 2).double()
    other = F.one_hot(torch.tensor([1, 1, 1, 1, 0, 0]), 2).double()
    assert _overlap(own, other).tolist() == pytest.approx([3 / 4, 2 / 3])


def test_too_few_rows_to_compare_on_are_refused() -> None:
    with pytest.raises(InputError, match="add images, to 40 or more"):
        compare_spaces([np.eye(12), np.eye(12)], 10, seed=0)
