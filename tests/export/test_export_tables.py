"""Tables: the rows of an edited run as csv, and as parquet with an embedding and a place on a map."""

import shutil
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
from photo_runs import make_run, row_of
from PIL import Image

from command_line import command, worked
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run, apply_edits


def test_csv_has_the_clusters_as_they_were_corrected(run: Run, tmp_path: Path) -> None:
    done = worked("export", run.folder, tmp_path / "out" / "all.csv", "--to", "csv")
    assert done.out == f"14 rows in {tmp_path / 'out' / 'all.csv'}\n"
    frame = pandas.read_csv(tmp_path / "out" / "all.csv", keep_default_na=False)
    model, state = run.read_assignments(), Edits(run).state
    assert list(frame.columns) == ["path", "cluster", "confidence", "status", "name"]
    assert list(frame.path) == list(model.paths)
    by_path = frame.set_index("path")
    assert by_path.loc["a/0.png", ["cluster", "name"]].tolist() == ["3", "odd ones"]
    assert by_path.loc["a/1.png", ["cluster", "name", "status"]].tolist() == ["", "", "junk"]
    assert by_path.loc["a/empty.png", "status"] == "unreadable: empty file"
    kept = row_of(run, "b/3.png")
    assert frame.cluster[kept] == str(model.clusters[kept])
    assert frame.name[kept] == state.names[int(model.clusters[kept])]
    assert frame.confidence[kept] == f"{model.confidence[kept]:.4f}"


def test_csv_without_edits_is_the_models_table(run: Run, tmp_path: Path) -> None:
    (run.folder / "edits.jsonl").unlink()
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    assert (tmp_path / "all.csv").read_bytes() == (run.folder / "assignments.csv").read_bytes()


def test_the_tables_of_a_run_are_not_replaced(run: Run, own_photos: Path) -> None:
    before = {file: file.read_bytes() for file in run.folder.glob("*.csv")}
    assert {file.name for file in before} == {"assignments.csv", "stamps.csv", "contents.csv", "problems.csv"}
    for file in before:
        assert "is one of the run's own tables" in command("export", run.folder, file, "--to", "csv").complaint
        assert "is one of the run's own tables" in command("predict", run.folder, own_photos, "--out", file).complaint
    assert before == {file: file.read_bytes() for file in run.folder.glob("*.csv")}


def test_a_list_is_not_replaced_by_what_is_predicted_of_it(run: Run, own_photos: Path) -> None:
    listed = own_photos / "list.csv"
    listed.write_text("path,label\na/0.png,x\n")
    assert "is SOURCE itself" in command("predict", run.folder, listed, "--out", own_photos / "a/../list.csv").complaint
    assert listed.read_text() == "path,label\na/0.png,x\n"


def test_nothing_in_a_csv_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    names = ("=1+1.png", "+1.png", "-1.png", "@sum.png", "plain.png")
    (tmp_path / "photos").mkdir()
    for name in names:
        Image.new("RGB", (12, 12), "red").save(tmp_path / "photos" / name)
    run = make_run(tmp_path / "run", tmp_path / "photos")
    Edits(run).move([0], name='=HYPERLINK("http://127.0.0.1","x")')
    done = worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    assert "5 cells that a spreadsheet would run as formulas are escaped" in done.out
    frame = pandas.read_csv(tmp_path / "all.csv", keep_default_na=False)
    for column in ("path", "name"):
        assert not frame[column].str.match(r"[=+\-@\t\r]").any()
    assert sorted(str(Path(path)) for path in frame.path) == sorted(names)  # still the same paths
    assert frame.name[0] == """'=HYPERLINK("http://127.0.0.1","x")"""
    assert run.read_assignments().paths[0] in names  # the run's own table stays as it was


@pytest.mark.parametrize("place, method", [("pca", "PCA"), ("tsne", "t-SNE"), ("auto", "t-SNE")])
def test_parquet_opens_in_pandas(run: Run, tmp_path: Path, place: str, method: str) -> None:
    done = worked("export", run.folder, tmp_path / "all.parquet", "--to", "parquet", "--map", place)
    assert f"x and y by {method}" in done.out
    frame = pandas.read_parquet(tmp_path / "all.parquet")
    assert list(frame.columns) == ["path", "cluster", "confidence", "status", "name", "file", "x", "y", "embedding"]
    images = RunImages(run).training
    assert images is not None
    expected = inference.embed(load_network(run), images.pixels, images.usable).numpy()
    assert np.allclose(np.stack(frame.embedding[images.usable]), expected, atol=1e-6)
    assert str(frame.cluster.dtype) == "Int32"  # not floats, although some are missing
    final = apply_edits(run.read_assignments(), Edits(run).state).clusters
    assert frame.cluster.fillna(-1).tolist() == final.tolist()
    unread = row_of(run, "a/empty.png")
    assert frame.loc[unread, ["embedding", "x", "y", "cluster"]].isna().all()
    assert frame.loc[images.usable, ["x", "y"]].notna().all().all()
    assert len({(x, y) for x, y in zip(frame.x[images.usable], frame.y[images.usable], strict=True)}) > 5
    for row, file in frame.file.dropna().items():  # the name that is no UTF-8 cannot be written
        if row != unread:
            assert Image.open(file).size == (12, 12)
    assert frame.file.isna().sum() == 1
    field = pa.parquet.read_schema(tmp_path / "all.parquet").field("embedding")
    assert pa.types.is_large_list(field.type)
    assert field.type.value_type == pa.float32()


def test_parquet_without_images_is_refused_and_csv_is_not(run: Run, own_photos: Path, tmp_path: Path) -> None:
    shutil.rmtree(own_photos)
    said = command("export", run.folder, tmp_path / "all.parquet", "--to", "parquet").complaint
    assert said.startswith("--to parquet needs the images, but ")
    assert said.endswith("put them back, or choose --to csv")
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")


def test_parquet_of_a_folder_that_has_lost_one_image(run: Run, own_photos: Path, tmp_path: Path) -> None:
    (own_photos / "b" / "4.png").unlink()
    done = worked("export", run.folder, tmp_path / "all.parquet", "--to", "parquet", "--map", "pca")
    assert "; 1 rows have no embedding, because " in done.out
    frame = pandas.read_parquet(tmp_path / "all.parquet")
    gone = row_of(run, "b/4.png")
    assert frame.embedding.isna()[gone]
    assert frame.embedding.notna().sum() == 12


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("x.txt", "--to", "csv"), "expected a file name that ends in .csv"),
        (("x.csv", "--to", "parquet"), "expected a file name that ends in .parquet"),
        (("x.csv", "--to", "csv", "--mode", "copy"), "--mode belongs to --to folders"),
        (("x.csv", "--to", "csv", "--dry-run"), "--dry-run belongs to --to folders"),
        (("x", "--to", "folders", "--map", "pca"), "--map belongs to --to parquet"),
        (("x", "--to", "folders", "--labels", "folders"), "--labels belongs to --to huggingface"),
        (("x", "--to", "folders", "--undo", "--dry-run"), "--undo undoes a move"),
        (("x", "--to", "onnx"), "ends in .onnx"),
    ],
)
def test_options_that_make_no_sense(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in command("export", run.folder, *arguments).complaint


def test_images_that_came_after_a_split_are_compared_with_its_parts(run: Run, own_photos: Path, tmp_path: Path) -> None:
    edits = Edits(run)
    images = RunImages(run).training
    assert images is not None
    network = load_network(run)
    largest = max(edits.state.sizes(), key=lambda cluster: len(edits.state.members(cluster)))
    state = edits.split(largest, 2, lambda rows: inference.embed(network, images.pixels, rows).numpy())
    parts = sorted(set(state.names) - {0, 1, 2, 3})
    small = state.members(parts[1])[0]  # of the part that nothing is put into without looking
    shutil.copy(own_photos / run.read_assignments().paths[small], own_photos / "a" / "later.png")
    worked("update", run.folder, own_photos)
    assert Edits(run).state.guessed.any()
    done = worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    assert "added after a split" not in done.out
    frame = pandas.read_csv(tmp_path / "all.csv").set_index("path")
    assert frame.cluster["a/later.png"] == parts[1]
    worked("export", run.folder, tmp_path / "all.parquet", "--to", "parquet", "--map", "pca")
    assert pandas.read_parquet(tmp_path / "all.parquet").set_index("path").embedding["a/later.png"] is not None
    (own_photos / "a" / "later.png").unlink()
    done = worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    assert "; 1 added after a split of their cluster" in done.out
