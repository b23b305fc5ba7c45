"""`benchmarks growth` at toy sizes: what it varies is what the step has, and units are counted as by hand."""

from pathlib import Path

import pytest
import torch

from benchmarks import growth
from benchmarks.__main__ import main
from benchmarks.train import configure

TINY = ["train.image_size=8", "train.backbone=small", "train.batch_size=16"]


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, values in [
        ("QUEUES", (64, 128)), ("CLUSTERS", (5, 10)), ("GROWING", (2, 4)), ("IMAGES", (200, 400)), ("STEPS", 1),
    ]:  # fmt: skip
        monkeypatch.setitem(getattr(growth, table), "cpu", values)


def test_growth_prints_a_line_for_every_point_and_plots_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    assert main(["growth", "--device", "cpu", "--plot", str(tmp_path / "growth.svg"), *settings]) == 0
    title, *tables = capsys.readouterr().out.strip().split("\n\n")
    assert title.startswith("growth of tcc, small, 8 px, batch 16, float32, not compiled on CPU")
    first_column = [[row.split()[0] for row in table.splitlines()[1:]] for table in tables]
    wanted = [["J", 64, 128], ["L", 60, 120], ["K", 5, 10], ["K", 2, 4], ["N", 200, 400], ["N", 200, 400]]
    assert first_column == [[str(value) for value in column] for column in wanted]
    assert (tmp_path / "growth.svg").read_text().count("<path") > 10


def test_queues_are_as_long_as_asked_however_few_the_images() -> None:
    base = configure("paper-cifar10", "tcc", "cpu", TINY)
    config = growth._with(base, 20, instance_queue=5000, cluster_queue=400)
    tcc = config.groups["tcc"]
    assert (tcc["instance_queue"], tcc["cluster_queue"], config.n_clusters) == (5000, 400, 20)
    assert growth.step_cost(config)[1] > 4 * 128 * 5000  # bytes of Q alone


def test_a_line_that_runs_out_of_memory_ends_there_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(config: int) -> tuple[float, int]:
        if config > 2:
            raise torch.cuda.OutOfMemoryError
        return 0.5, 10

    monkeypatch.setattr(growth, "step_cost", cost)
    line = growth._steps("a step", "J", [1, 2, 3, 4], lambda value: value, lambda value: 10 * value, "row")  # type: ignore[arg-type, return-value]
    assert line.title == "a step (out of memory at 3)"
    assert line.points == (growth.Point(1, 0.5, 10, 10), growth.Point(2, 0.5, 10, 20))


def test_the_last_column_is_what_each_added_bit_of_work_takes() -> None:
    points = growth.Point(10, 1.0, 0, 100), growth.Point(20, 1.5, 2 * 10**9, 200), growth.Point(40, 1.5, 0, 400)
    rows = growth.Line("a step", "J", points, "N·J").rows()
    assert [row.split() for row in rows[2:]] == [
        ["10", "1,000.00"], ["20", "1,500.00", "2.00", "5000000.000"], ["40", "1,500.00", "0.000"]
    ]  # fmt: skip
