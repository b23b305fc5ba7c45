"""The benchmark `methods`: what methods share and what is their own, the table, and what a second call runs again."""

import csv
import importlib
import io
import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from benchmarks import methods, one_method
from benchmarks.methods import Options, configured, measure, recipe_of
from benchmarks.methods_table import Row, Table, joined
from benchmarks.one_method import Failure, Job, Result, read
from command_line import benchmark, benchmark_worked, colours_file
from twincluster.clustering import CLASSICS, classic, cluster_by, score
from twincluster.core import InputError
from twincluster.data import from_array, open_source
from twincluster.methods import Outcome
from twincluster.methods.peers.contrastive import Moco
from twincluster.model import Model
from twincluster.runs import Run

MOMENT = 0.001  # minutes; a run gets a second at least


class Falling(Moco):
    """A method that does not survive its first step."""

    def losses(self, *_: Any) -> Outcome:
        raise RuntimeError("a tensor | fell over\nand broke")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were begun; they run here instead of in processes of their own, which take seconds to start."""
    names: list[str] = []

    def here(job: Job, file: Path, folder: Path) -> int:
        names.append(file.stem)
        one_method.leave(job, file, folder)
        return 0

    monkeypatch.setattr(methods, "in_process", here)
    return names


@pytest.fixture
def some_digits(tmp_path: Path, digits: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> Path:
    images, labels = digits
    chosen = np.flatnonzero(labels < 3)[:120]
    np.savez(tmp_path / "some.npz", images=images[chosen], labels=labels[chosen])
    return tmp_path / "some.npz"


def by_name(table: Table) -> dict[str, Row]:
    return {row.name: row for row in table.rows}


def test_the_table_is_that_of_the_runs_and_a_second_call_runs_only_what_is_new(
    tmp_path: Path, some_digits: Path, begun: list[str]
) -> None:
    out = tmp_path / "bench"
    falling = f"{__name__}:Falling"
    asked = Options(str(some_digits), MOMENT, methods=[falling, "moco", "cc", "k-means"], backbone="small", out=out,
                  settings=["train.batch_size=24", "train.image_size=8"])  # fmt: skip
    rows = by_name(measure(asked))
    assert list(rows) == ["moco", "cc", falling, "k-means on pixels"]
    log = f"results/{falling.replace(':', '.')}-0.log"
    assert rows[falling].failures == {0: Failure("RuntimeError: a tensor | fell over", log)}
    listing = open_source(some_digits)
    assert listing.labels is not None
    for name, rate in (("moco", 0.03), ("cc", 0.0003)):
        result, run = rows[name].results[0], Run.open(out / "trained" / f"{name}-0")
        found = score(listing.labels, run.read_assignments().clusters)
        assert (result.acc, result.nmi, result.ari) == (found.acc, found.nmi, found.ari)
        config, shape = run.config, run.shape
        assert (config.train.backbone, config.train.batch_size, config.train.image_size) == ("small", 24, 8)
        assert (config.n_clusters, config.optimiser.learning_rate) == (3, rate)
        epochs = run.read_metrics()
        assert result.epochs == pytest.approx(24 * sum(row["steps"] for row in epochs) / shape.n_samples)
        assert result.seconds == epochs[-1]["seconds"]
        assert result.images_per_second == pytest.approx(result.epochs * shape.n_samples / result.seconds)
        assert not run.checkpoint.exists()
    markdown = (out / "methods.md").read_text()
    failed = f"failed: RuntimeError: a tensor / fell over (see {log})"
    assert f"| {falling} | - | - | - | - | - | - | - | {failed} |" in markdown
    assert "some.npz, 120 images, 3 clusters; small, 8 px, batch 24, float32 on CPU" in markdown
    assert (out / "methods.png").read_bytes().startswith(b"\x89PNG")
    assert begun == [f"{falling.replace(':', '.')}-0", "moco-0", "cc-0", "k-means-on-pixels-0"]

    begun.clear()
    again = by_name(measure(replace(asked, methods=[falling, "moco", "k-means"], seeds=2)))
    assert begun == [f"{falling.replace(':', '.')}-{seed}" for seed in (0, 1)] + ["moco-1", "k-means-on-pixels-1"]
    assert again["moco"].results[0] == rows["moco"].results[0]
    assert again[falling].note() == f"failed: RuntimeError: a tensor | fell over (see {log})"  # tried again, ...
    assert not (out / "trained" / begun[0]).exists()  # ... from the beginning
    assert Run.open(out / "trained" / "moco-1").config.seed == 1

    begun.clear()
    with pytest.raises(InputError, match="moco-0.json was measured with another train.minutes: choose another --out"):
        measure(replace(asked, methods=["moco"], minutes=2.0))
    (out / "results" / "moco-0.json").write_text("{")
    with pytest.raises(InputError, match="moco-0.json cannot be read as a result: delete it"):
        measure(replace(asked, methods=["moco"]))
    assert begun == []


def test_what_is_in_the_folder_stays_in_the_table(tmp_path: Path, some_digits: Path, begun: list[str]) -> None:
    out, falling = tmp_path / "bench", f"{__name__}:Falling"
    words = ["methods", "--data", some_digits, "--minutes", MOMENT, "--out", out, "--set"]
    benchmark_worked(*words, "train.image_size=8", "--methods", f"k-means,{falling},cc")
    first = (out / "methods.csv").read_text().splitlines()
    told = benchmark_worked(*words, "train.image_size=8", "--methods", "moco", "--seeds", 2).out
    head, *lines = (out / "methods.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["moco", "cc", falling, "k-means on pixels"]
    assert [head, *lines[1:]] == first
    assert len((out / "methods-seeds.csv").read_text().splitlines()) == 1 + 5
    markdown = (out / "methods.md").read_text()
    assert "seeds 0 to 1, fewer for some: mean (lowest to highest)" in markdown
    assert told.startswith("1 of 2: moco, seed 0, ACC")
    assert told.endswith(f"\n\n{markdown}\nfailed: {falling}; the logs that the notes name are in {out}\n")

    begun.clear()
    told = benchmark_worked(*words, "train.image_size=12", "--methods", "ward").out
    assert begun == ["Ward-on-pixels-0"]
    left = f"cc-0.json, k-means-on-pixels-0.json, moco-0.json, moco-1.json, {falling.replace(':', '.')}-0.json\n"
    assert f"not in the table, since measured with another train.image_size, hardware: {left}" in told
    assert [line.partition(",")[0] for line in (out / "methods.csv").read_text().splitlines()[1:]] == ["Ward on pixels"]
    assert "failed" not in told


OWN_METHOD = """
from dataclasses import dataclass

from twincluster.methods.peers.contrastive import Moco, MocoSettings


@dataclass(frozen=True)
class Settings(MocoSettings):
    temperature: float = 0.5


class Mine(Moco):
    settings_type = Settings
"""


def test_a_method_whose_code_or_defaults_changed_is_refused(
    tmp_path: Path, some_digits: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # edits within a second look alike to its cache
    monkeypatch.delitem(sys.modules, "of_a_user", raising=False)

    def edit(text: str) -> None:
        (tmp_path / "of_a_user.py").write_text(text)
        monkeypatch.delitem(sys.modules, "of_a_user", raising=False)
        importlib.invalidate_caches()

    edit(OWN_METHOD)
    asked = Options(str(some_digits), MOMENT, methods=["of_a_user:Mine"], out=tmp_path, settings=["train.image_size=8"])
    measure(asked)
    file = tmp_path / "results" / "of_a_user.Mine-0.json"
    assert json.loads(file.read_text())["job"]["config"]["own"]["temperature"] == 0.5
    measure(asked)
    assert begun == ["of_a_user.Mine-0"]
    edit(OWN_METHOD.replace("0.5", "0.7"))
    what = f"{file} was measured with another own.temperature, code of of_a_user:Mine: choose another --out, or delete"
    with pytest.raises(InputError, match=re.escape(what)):
        measure(asked)
    edit(OWN_METHOD + "    weight = 2\n")
    with pytest.raises(InputError, match="another code of of_a_user:Mine: choose another --out, or delete that file"):
        measure(asked)
    file.unlink()  # as it says
    assert by_name(measure(asked))["of_a_user:Mine"].results
    assert begun == ["of_a_user.Mine-0"] * 2


def test_code_that_changes_while_others_run_is_a_failure(tmp_path: Path, some_digits: Path) -> None:
    asked = Options(str(some_digits), MOMENT)
    listing = open_source(some_digits)
    shared, images = methods._shared(asked, listing)
    job = methods._maker(asked, shared, listing, images)(f"{__name__}:Falling", 0)
    with pytest.raises(InputError, match="Falling was changed after the command began: give it again"):
        one_method.work(replace(job, code="of before"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_begun_otherwise_is_not_gone_on_with(
    tmp_path: Path, some_digits: Path, begun: list[str]
) -> None:
    asked = Options(str(some_digits), MOMENT, methods=["moco"], out=tmp_path, settings=["train.image_size=8"])
    measure(asked)
    file, run = tmp_path / "results" / "moco-0.json", tmp_path / "trained" / "moco-0"
    one_method.write(file, read(file)[0])  # as a death before the first checkpoint leaves them
    assert by_name(measure(asked))["moco"].results
    one_method.write(file, read(file)[0])  # as an interrupt does
    (run / "checkpoint").mkdir()
    other = replace(asked, settings=["train.image_size=8", "own.temperature=0.3"])
    with pytest.raises(InputError, match="moco-0.json was begun with another own.temperature: choose another --out"):
        measure(other)
    file.unlink()
    measure(other)
    assert Run.open(run).config.groups["own"]["temperature"] == 0.3


def test_classics_also_cluster_the_features_of_a_run(tmp_path: Path, some_digits: Path, begun: list[str]) -> None:
    asked = Options(str(some_digits), MOMENT, methods=["moco"], out=tmp_path, settings=["train.image_size=8"])
    measure(asked)
    run = tmp_path / "trained" / "moco-0"
    table = measure(replace(asked, methods=list(CLASSICS), features=run))
    titles = list(classic.TITLES.values())
    assert {"k-means", "average linkage", "DBSCAN", "GMM", "BIRCH"} < set(titles)
    assert [row.name for row in table.rows] == [
        "moco", *(f"{title} on {what}" for what in ("pixels", "features of moco-0") for title in titles)
    ]  # fmt: skip
    listing = open_source(some_digits)
    assert listing.array is not None
    assert listing.labels is not None
    model = Model.load(Run.open(run), "cpu")
    features = model.embed(model.open(listing)).numpy()
    rows = by_name(table)
    for what, data in (("features of moco-0", features), ("pixels", listing.array.reshape(120, -1) / 255)):
        wanted = score(listing.labels, KMeans(3, n_init=10, random_state=0).fit_predict(data).astype(int))
        assert rows[f"k-means on {what}"].results[0].nmi == pytest.approx(wanted.nmi, abs=0.02)
        take_k = titles[:7]  # the others find another number of clusters
        assert all(rows[f"{title} on {what}"].results[0].acc > 0.5 for title in take_k)
    with (run / "model.safetensors").open("ab") as model:
        model.write(b" ")
    with pytest.raises(InputError, match="features-of-moco-0-0.json was measured with another model"):
        measure(replace(asked, methods=["k-means"], features=run))


def test_what_does_not_scale_sees_a_sample_and_says_so(
    tmp_path: Path, some_digits: Path, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(classic.LARGEST, "ward", 50)
    rows = by_name(measure(Options(str(some_digits), MOMENT, methods=["ward", "k-means"], out=tmp_path)))
    assert rows["Ward on pixels"].note() == "on 50 of 120"
    assert rows["k-means on pixels"].note() == ""
    pixels = np.random.default_rng(0).normal(size=(120, 4))
    first, same, other = (cluster_by("ward", pixels, 3, seed) for seed in (0, 0, 1))
    assert (first >= 0).sum() == (other >= 0).sum() == 50
    assert np.array_equal(first, same)
    assert not np.array_equal(first >= 0, other >= 0)


def test_nmf_takes_negative_features_and_is_not_plain_k_means(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]],
) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 3
    rows = np.eye(3)[labels] @ random.uniform(0, 5, (3, 8)) + random.normal(0, 0.1, (90, 8)) - 3
    assert rows.min() < 0
    assert score(labels, cluster_by("nmf", rows, 3)).acc == 1
    pixels = digits[0][:300].reshape(300, -1) / 255
    assert score(cluster_by("k-means", pixels, 10), cluster_by("nmf", pixels, 10)).acc < 0.9
    with pytest.raises(InputError, match="there is no classic system 'wards', did you mean 'ward'"):
        cluster_by("wards", rows, 3)


@pytest.mark.parametrize("name", CLASSICS)
def test_classics_find_clouds_that_lie_apart(name: str) -> None:
    """Noise, which some of them know, is one more cluster."""
    random = np.random.default_rng(0)
    labels = np.arange(150) % 3
    rows = 8 * np.eye(3)[labels] + random.normal(0, 0.4, (150, 3))
    clusters = cluster_by(name, rows, 3)
    assert set(clusters) <= set(range(4))
    assert score(labels, clusters).acc > 0.9


def test_noise_is_a_cluster_of_its_own() -> None:
    rows = np.concatenate([np.random.default_rng(0).normal(0, 0.1, (40, 2)) + 9 * (np.arange(40) % 2)[:, None],
                           [[900.0, 0.0], [0.0, 900.0]]])  # fmt: skip
    clusters = cluster_by("dbscan", rows, 2)
    assert sorted(np.bincount(clusters)) == [2, 20, 20]
    assert clusters[-2:].tolist() == [2, 2]


def test_a_method_brings_what_is_its_own_and_shares_the_rest() -> None:
    digits = open_source("digits")
    shared, _ = methods._shared(Options("digits", 3.0, settings=["own.temperature=9.0", "augment.rotate=3.0"]), digits)
    assert (shared.train.minutes, shared.n_clusters, shared.augment.rotate) == (3.0, 10, 3.0)
    assert shared.train.epochs == 100_000 // 1797  # no recipe's: a result is kept when only that number changes
    overrides: dict[str, Any] = {"own": {"hidden": 7}}
    moco = configured("moco", 4, shared, digits, overrides)
    unknown = from_array(np.zeros((4, 8, 8), np.uint8), "others", labels=np.arange(4))  # that no recipe is for
    ablation = configured("tcc-without-l1", 4, shared, unknown, overrides)
    assert (moco.seed, *(moco.groups["own"][name] for name in ("hidden", "ema")), moco.optimiser.warmup) == (
        4,
        7,
        0.99,
        0.0,
    )
    assert moco.train == ablation.train == shared.train
    assert moco.augment == ablation.augment == shared.augment
    assert (ablation.optimiser.name, ablation.groups["tcc"]["cluster_queue"]) == ("adam", 0)
    photographs = from_array(np.zeros((4, 32, 32, 3), np.uint8), "cifar10", labels=np.arange(4))
    cc = configured("cc", 0, shared, photographs, {})
    assert (cc.augment.crop_area, cc.train.batch_size) == ((0.08, 1.0), shared.train.batch_size)
    stranger = configured("simclr:Simclr", 0, shared, digits, {})
    assert (stranger.optimiser, stranger.method) == (shared.optimiser, "simclr:Simclr")


@pytest.mark.parametrize(
    "method, name, recipe",
    [
        ("anchored", "digits", "digits"),
        ("anchored", "cifar10", "cifar10"),
        ("anchored", "photographs/", "default"),
        ("tcc", "cifar100", "paper-cifar100"),
        ("tcc", "imagenet_dogs", "paper-imagenet-dogs"),
        ("tcc-without-p", "digits", "paper-digits"),
        ("tcc-without-p", "mnist", "paper-cifar10"),
        ("deepcluster_v2", "digits", "deepcluster-v2-cifar10"),
        ("simclr:Simclr", "cifar10", None),
    ],
)
def test_recipes_are_found_by_method_and_data(method: str, name: str, recipe: str | None) -> None:
    found = recipe_of(method, from_array(np.zeros((4, 8, 8), np.uint8), name))
    assert (found.name if found else None) == recipe


def result(acc: float, **others: Any) -> Result:
    return Result(
        **{"acc": acc, "nmi": acc / 2, "ari": -0.1, "seconds": 60.0, "memory": 10**9, "on_gpu": True} | others
    )


def test_mean_and_spread_over_seeds() -> None:
    results = {0: result(0.5, images_per_second=1000.0, epochs=3.0), 1: result(0.8, memory=3 * 10**9, note="one, two")}
    failures = {2: Failure("no luck", "results/moco-2.log")}
    table = Table("toy", (Row("moco", results, failures), Row("k", {0: result(0.25, on_gpu=False)}, {})))
    first, second = table.to_markdown().splitlines()[-2:]
    spread = "0.650 (0.500 to 0.800) | 0.325 (0.250 to 0.400) | -0.100 (-0.100 to -0.100)"
    note = "seed 1: one, two; seed 2: failed: no luck (see results/moco-2.log)"
    assert first == f"| moco | {spread} | 1,000 | 3.0 | 60.0 | 3.00 GB GPU | {note} |"
    assert second == "| k | 0.250 | 0.125 | -0.100 | - | - | 60.0 | 1.00 GB |  |"
    line, other = csv.DictReader(io.StringIO(table.to_csv()))
    assert (line["seeds"], line["failed"], line["acc_min"], line["acc_max"]) == ("2", "1", "0.5", "0.8")
    assert float(line["acc_mean"]) == pytest.approx(0.65)
    assert [float(line[f"{name}_std"]) for name in ("acc", "nmi", "ari")] == pytest.approx(
        [np.std([0.5, 0.8], ddof=1), np.std([0.25, 0.4], ddof=1), 0]
    )
    assert [other[f"{name}_std"] for name in ("acc", "nmi", "ari")] == ["", "", ""]
    assert (line["memory_bytes"], line["memory_of"], line["note"]) == (str(3 * 10**9), "gpu", note)


def test_every_seed_has_a_line(tmp_path: Path) -> None:
    results = {1: result(0.8, images_per_second=1000.0, epochs=3.5, note="one, two"), 0: result(0.5, on_gpu=False)}
    Table("toy", (Row("moco", results, {2: Failure("no luck", "results/moco-2.log")}),), tmp_path).write()
    head, *lines = (tmp_path / "methods-seeds.csv").read_text().splitlines()
    assert head == "method,seed,acc,nmi,ari,images_per_second,epochs,seconds,memory_bytes,memory_of,note"
    assert lines == [
        "moco,0,0.5,0.25,-0.1,,,60.0,1000000000,resident,",
        'moco,1,0.8,0.4,-0.1,1000.0,3.5,60.0,1000000000,gpu,"one, two"',
        "moco,2,,,,,,,,,failed: no luck (see results/moco-2.log)",
    ]


@pytest.mark.parametrize(
    "notes, note",
    [
        (["uniform (0.137, chance is 0.100)", "uniform (0.142, chance is 0.100)"],
         "both seeds: uniform (0.137 to 0.142, chance is 0.100)"),
        (["collapsed: 4 of 10 are empty", "", "collapsed: 1 of 10 is empty"],
         "seeds 0 and 2: collapsed: 1 to 4 of 10 are empty"),
        (["holds 63% of 1,000", "holds 71% of 1,000", "holds 9% of 1,000"], "all 3 seeds: holds 9% to 71% of 1,000"),
        (["on 50 of 120", "on 50 of 120"], "on 50 of 120"),
        (["diverged", "holds 99%"], "seed 0: diverged; seed 1: holds 99%"),
        (["", ""], ""),
        (["runs/a-0 is gone", "runs/a-1 is gone"], "seed 0: runs/a-0 is gone; seed 1: runs/a-1 is gone"),
    ],
)  # fmt: skip
def test_seeds_that_say_the_same_say_it_once(notes: list[str], note: str) -> None:
    assert Row("m", {seed: result(0.5, note=text) for seed, text in enumerate(notes)}, {}).note() == note


def test_of_several_logs_the_first_is_named() -> None:
    told = {seed: (f"failed: KeyError: {seed}", f"results/m-{seed}.log") for seed in (1, 0)}
    assert joined(told) == "both seeds: failed: KeyError: 0 to 1 (see results/m-0.log)"


@pytest.mark.stress
def test_a_process_of_its_own(tmp_path: Path, some_digits: Path) -> None:
    job = Job({"n_clusters": 3, "seed": 0}, str(some_digits), None, None, "", "", classic="k-means")
    found = methods.run_job(job, tmp_path / "k.json", tmp_path / "run")
    assert isinstance(found, Result), (tmp_path / "k.log").read_text()
    assert found.acc > 0.8


def test_the_process_is_given_its_job_and_its_death_is_no_result(
    tmp_path: Path, some_digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job({"n_clusters": 3, "seed": 0}, str(some_digits), None, None, "", "", classic="k-means")
    file, killed = tmp_path / "results" / "k.json", tmp_path / "killed"
    file.parent.mkdir()
    killed.write_text('#!/bin/sh\necho "$@"\ncat\nkill -9 $$\n')
    killed.chmod(0o755)
    file.write_text("the result of before is no answer")
    monkeypatch.setattr(sys, "executable", str(killed))
    failure = Failure("the process ended with signal 9, perhaps for want of memory", "results/k.log")
    assert methods.run_job(job, file, tmp_path / "run") == failure
    assert read(file) == (job, failure)
    arguments, given = (tmp_path / "results" / "k.log").read_text().splitlines()
    assert arguments == f"-m benchmarks.one_method {file} {tmp_path / 'run'}"
    monkeypatch.setattr(sys, "argv", ["one_method.py", *arguments.split()[2:]])
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    one_method.main()
    content = json.loads(file.read_text())
    assert content["job"] == asdict(job)
    found = Result(**content["result"])
    assert found.acc > 0.8
    assert found.memory is not None
    assert found.memory > 10**8  # torch alone takes more


def test_mistakes_are_told_at_once(tmp_path: Path) -> None:
    data = colours_file(tmp_path)
    for words, complaint in [
        (("--methods", "mocko"), "there is no method 'mocko', did you mean 'moco'?"),
        (("--methods", "nothing:Here"), "the method nothing:Here cannot be imported"),
        (("--labels", "none"), "colours.npz has no labels to score against: give --labels"),
        (("--set", "method=cc"), "--set method: name the methods with --methods"),
        (("--set", "train.minuts=3"), "no setting 'train.minuts', did you mean 'train.minutes'?"),
        (("--methods", "k-means", "--features", tmp_path), "is not a run: it has no config.json"),
    ]:
        assert complaint in benchmark("methods", "--data", data, "--out", tmp_path / "out", *words).complaint
    assert not (tmp_path / "out").exists()
