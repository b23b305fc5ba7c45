"""`twincluster encode`: shards that survive kills, and folders of them as a source of fit, predict and update."""

import json
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from command_line import colours, command, worked
from small_encoders import colour_encoder, own_weights
from twincluster.core import InputError, hold
from twincluster.data import COLUMNS, open_images, open_source
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import Encoder, encode, encode_folder, load_encoder
from twincluster.nn.feature_shards import Encoding
from twincluster.run_images import RunImages
from twincluster.runs import Run

QUICK = ("-k", "3", "--epochs", "2", "--device", "cpu", "--set", "train.batch_size=16")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """150 files of three colours, one of them cut short."""
    folder = tmp_path / "many"
    for number, (image, label) in enumerate(zip(*colours(150), strict=True)):
        path = folder / f"kind-{label}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    path.write_bytes(path.read_bytes()[:60])
    return folder


@pytest.fixture
def encoded(tmp_path: Path, photo_folder: Path) -> Path:
    """The folder of small pictures, encoded."""
    worked("encode", photo_folder, tmp_path / "encoded", "--backbone", f"small:{own_weights(tmp_path)}")
    return tmp_path / "encoded"


def in_shards(
    source: Path, out: Path, encoder: Encoder | None = None, stop_after: int = 0, **options: bool
) -> Encoding:
    """Encode in shards of 64 images; stop once so many images are done."""

    def progress(done: int, total: int) -> None:
        if stop_after and done >= stop_after:
            raise KeyboardInterrupt

    listing = open_source(source)
    return encode_folder(listing, encoder or colour_encoder(), out, shard_rows=64, progress=progress, **options)


def contents(folder: Path) -> list[list[dict[str, object]]]:
    return [parquet.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))]


def rows(path: Path) -> list[list[str]]:
    """Path, cluster and status of each row of a table."""
    cells = [line.split(",") for line in path.read_text().splitlines()[1:]]
    return [[cell[0], cell[1], cell[3]] for cell in cells]


def test_fit_predict_and_update_take_an_encoded_folder(tmp_path: Path, photo_folder: Path, encoded: Path) -> None:
    run = tmp_path / "run"
    worked("fit", encoded, *QUICK, "--labels", "folders", "--out", run)
    table = rows(run / "assignments.csv")
    assert [path for path, _, _ in table] == list(open_source(photo_folder).paths)
    assert [path for path, _, status in table if status != "ok"] == ["blue-rings/truncated.jpg", "red-rows/empty.png"]
    for source in (encoded, photo_folder):
        worked("predict", run, source, "--out", tmp_path / "new.csv")
        assert rows(tmp_path / "new.csv") == table
    assert "0 new, 0 changed" in worked("update", run, photo_folder).out
    assert "0 new, 0 changed" in worked("update", run, encoded).out
    shutil.copy(photo_folder / table[0][0], photo_folder / "another.png")
    assert "1 new, 0 changed" in worked("update", run, photo_folder).out
    assert rows(run / "assignments.csv")[-1][:2] == ["another.png", table[0][1]]


def test_the_report_shows_the_original_files_and_then_thumbnails(tmp_path: Path, photo_folder: Path) -> None:
    out, run, weights = tmp_path / "encoded", tmp_path / "run", f"small:{own_weights(tmp_path)}"
    worked("encode", photo_folder, out, "--backbone", weights, "--thumbnails")
    worked("fit", out, *QUICK, "--out", run)
    row = open_source(photo_folder).paths.index("green-columns/03.jpeg")
    original, _ = RunImages(Run.open(run)).pictures()
    assert original is not None
    assert row in original
    shown = original[row]
    photo_folder.rename(tmp_path / "elsewhere")
    small, _ = RunImages(Run.open(run)).pictures()
    assert small is not None
    assert shown.shape == small[row].shape
    assert 0 < np.abs(shown.astype(int) - small[row]).mean() < 20


def test_without_originals_and_thumbnails_the_report_says_so(
    tmp_path: Path, photo_folder: Path, encoded: Path
) -> None:  # fmt: skip
    worked("fit", encoded, *QUICK, "--out", tmp_path / "run")
    photo_folder.rename(tmp_path / "elsewhere")
    pictures, why = RunImages(Run.open(tmp_path / "run")).pictures()
    assert pictures is None
    assert "no longer where they were encoded" in why
    (tmp_path / "run" / "report.html").unlink()
    worked("report", tmp_path / "run")


def test_features_and_hashes_are_those_of_a_fit(tmp_path: Path, many: Path) -> None:
    in_shards(many, tmp_path / "out")
    listing = open_source(tmp_path / "out")
    images = encode(open_images(open_source(many), side=12), colour_encoder())
    assert listing.array is not None
    assert listing.array.dtype == np.float16
    readable = images.usable
    assert len(readable) == 149
    assert np.array_equal(listing.array[readable], images.pixels[readable].astype(np.float16))
    opened = open_images(listing)
    assert opened.status == images.status
    assert np.array_equal(opened.usable, readable)
    assert not listing.array[np.setdiff1d(np.arange(150), readable)].any()


def test_the_perceptual_hash_survives_a_resize_and_tells_pictures_apart(tmp_path: Path, photo_folder: Path) -> None:
    picture = Image.open(photo_folder / "green-columns" / "03.jpeg").convert("RGB")
    shutil.rmtree(photo_folder)
    photo_folder.mkdir()
    picture.save(photo_folder / "a.png")
    picture.resize((90, 90)).save(photo_folder / "b.jpg", quality=70)
    picture.rotate(90).save(photo_folder / "c.png")
    in_shards(photo_folder, tmp_path / "out")
    one, copy, other = (int(row["perceptual"]) for row in contents(tmp_path / "out")[0])  # type: ignore[call-overload]
    assert (one ^ copy).bit_count() <= 6
    assert (one ^ other).bit_count() >= 16


def test_an_interrupted_encoding_writes_only_what_is_missing(tmp_path: Path, many: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        in_shards(many, out, stop_after=100)
    assert [path.name for path in out.iterdir() if path.suffix != ".json"] == ["shard-00000.parquet"]
    first = (out / "shard-00000.parquet").stat().st_mtime_ns
    assert "not completely encoded" in command("fit", out, *QUICK, "--out", tmp_path / "run").complaint
    assert in_shards(many, out).written == 2
    assert (out / "shard-00000.parquet").stat().st_mtime_ns == first
    assert in_shards(many, out).written == 0
    in_shards(many, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    assert (out / "encoded.json").read_text() == (tmp_path / "whole" / "encoded.json").read_text()


def test_a_killed_encoding_is_continued(tmp_path: Path, many: Path) -> None:
    out, weights = tmp_path / "out", own_weights(tmp_path)
    program = (
        "import os; from pathlib import Path; from twincluster.data import open_source\n"
        "from twincluster.nn import encode_folder, load_encoder\n"
        f"encode_folder(open_source({str(many)!r}), load_encoder('small:{weights}'), Path({str(out)!r}), shard_rows=64,"
        " progress=lambda done, total: done >= 128 and os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert in_shards(many, out, load_encoder(f"small:{weights}")).written == 2
    assert sorted(path.name for path in out.iterdir()) == [
        "encoded.json",
        *(f"shard-0000{n}.parquet" for n in range(3)),
    ]


def test_a_changed_file_changes_only_its_shard(tmp_path: Path, many: Path) -> None:
    in_shards(many, tmp_path / "out")
    before = open_source(tmp_path / "out").encoded
    Image.new("RGB", (12, 12), "red").save(many / "kind-1" / "001.png")
    assert in_shards(many, tmp_path / "out").written == 1
    after = open_source(tmp_path / "out").encoded
    assert before is not None
    assert after is not None
    assert before.fingerprint != after.fingerprint
    for path in (many / "kind-2").iterdir():
        path.unlink()
    assert in_shards(many, tmp_path / "out").data.rows == 100
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2


def test_archives_and_lists_are_encoded(tmp_path: Path, many: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for path in sorted(many.rglob("*.png"))[:20]:
            archive.add(path, path.name)
    (tmp_path / "list.txt").write_text("\n".join(str(path) for path in sorted(many.rglob("*.png"))[:20]))
    for name in ("s.tar", "list.txt"):
        in_shards(tmp_path / name, tmp_path / f"{name}-out")
        opened = open_images(open_source(tmp_path / f"{name}-out"))
        whole = open_images(open_source(tmp_path / name), side=128)
        assert opened.listing.paths == whole.listing.paths
        assert opened.pictures is not None
        assert all(np.array_equal(opened.pictures[row], whole.pixels[row]) for row in whole.usable)


def test_arrays_are_encoded(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", colours(100)[0])
    name = f"small:{own_weights(tmp_path)}"
    said = json.loads(worked("encode", tmp_path / "images.npy", tmp_path / "out", "--backbone", name, "--json").out)
    assert (said["inputs"], said["readable"], said["written"], said["problems"]) == (100, 100, 1, {})
    worked("fit", tmp_path / "out", *QUICK, "--out", tmp_path / "run")
    worked("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    assert rows(tmp_path / "new.csv") == rows(tmp_path / "run" / "assignments.csv")
    np.save(tmp_path / "rows.npy", np.ones((5, 3), np.float32))
    assert "nothing to encode" in command("encode", tmp_path / "rows.npy", tmp_path / "no").complaint


def test_the_estimator_fits_an_encoded_folder(photo_folder: Path, encoded: Path) -> None:
    model = TwinContrastClustering(3, epochs=2, device="cpu", settings={"train.batch_size": 16}).fit(str(encoded))
    assert np.array_equal(model.predict(str(photo_folder)), model.labels_)


def test_a_second_encoder_is_refused(tmp_path: Path, many: Path) -> None:
    taken, done = threading.Event(), threading.Event()

    def other() -> None:
        with hold(tmp_path / "out", "encoding"):
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    taken.wait(60)
    try:
        with pytest.raises(InputError, match="is being written by"):
            in_shards(many, tmp_path / "out")
    finally:
        done.set()
        thread.join()


def test_another_encoder_is_refused(tmp_path: Path, photo_folder: Path, encoded: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    name = f"small:{shutil.copy(own_weights(tmp_path), other)}"
    run = tmp_path / "run"
    assert "was encoded with encoder" in command("encode", photo_folder, encoded, "--backbone", name).complaint
    said = command("fit", encoded, *QUICK, "--backbone", name, "--out", run).complaint
    assert f"not of {name}" in said
    worked("fit", photo_folder, *QUICK, "--backbone", name, "--out", run)
    said = command("predict", run, encoded, "--out", tmp_path / "no.csv").complaint
    assert f"not of {name}" in said
    images = np.random.default_rng(0).integers(0, 255, (40, 12, 12, 3)).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    worked("fit", tmp_path / "images.npy", *QUICK, "--recipe", "cpu", "--out", tmp_path / "pixels")
    said = command("predict", tmp_path / "pixels", encoded, "--out", tmp_path / "no.csv").complaint
    assert "takes images or rows of its own" in said


def damages(folder: Path) -> Iterator[str]:
    """Damage an encoded folder in one way after another, and yield what has to be said."""
    shard, index = folder / "shard-00000.parquet", folder / "encoded.json"
    whole, table, text = shard.read_bytes(), parquet.read_table(shard), index.read_text()
    place = parquet.read_metadata(shard).row_group(0).column(len(COLUMNS)).data_page_offset + 64
    shard.write_bytes(whole[: len(whole) // 2])
    yield "is damaged"
    shard.write_bytes(whole[:place] + bytes(byte ^ 1 for byte in whole[place : place + 64]) + whole[place + 64 :])
    yield "is damaged"
    shard.unlink()
    yield "is missing"
    for column in ("features", "path", "status"):
        parquet.write_table(table.drop_columns([column]), shard)
        yield f"no column {column}"
    parquet.write_table(table.slice(0, 10), shard)
    yield "10 rows"
    wrong = table.set_column(table.schema.get_field_index("stamp"), "stamp", table["bytes"])
    parquet.write_table(wrong, shard)
    yield "column stamp has the type int64"
    shard.write_bytes(whole)
    index.write_text("{")
    yield "cannot be read"
    content = json.loads(text)
    del content["checksum"]
    content["shards"][0]["file"] = "../../etc/passwd"
    index.write_text(json.dumps(content))
    yield "is not in this folder"


def test_damaged_folders_are_refused_in_one_line(tmp_path: Path, encoded: Path) -> None:
    said = [
        (wanted, command("fit", encoded, *QUICK, "--out", tmp_path / "run").complaint) for wanted in damages(encoded)
    ]
    assert len(said) == 10
    assert [(wanted, line) for wanted, line in said if wanted not in line] == []


def test_a_damaged_shard_is_written_again(tmp_path: Path, many: Path) -> None:
    in_shards(many, tmp_path / "out")
    shard = tmp_path / "out" / "shard-00001.parquet"
    before, whole = contents(tmp_path / "out"), shard.read_bytes()
    shard.write_bytes(whole[:-100])
    assert in_shards(many, tmp_path / "out").written == 1
    assert contents(tmp_path / "out") == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path, many: Path) -> None:
    assert "is not an encoded folder" in command("encode", many, many).complaint


def test_a_full_disk_is_said_in_one_line_and_can_be_continued(tmp_path: Path, photo_folder: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    name = f"small:{own_weights(tmp_path)}@200"
    try:
        said = command("encode", photo_folder, place / "out", "--backbone", name).complaint
        assert f"the disk at {place} is full" in said
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        worked("encode", photo_folder, place / "out", "--backbone", name)
        assert len(open_source(place / "out").paths) == 62
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
