"""Bad input: exit status 2, one line that says what to do, no traceback, and nothing left behind."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command_line import TINY, colours, command, worked
from twincluster.core import InputError, hold, hold_new
from twincluster.runs import Assignments

FIT = ("--clusters", 3, "--out", "run", *TINY)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test, with one of every bad thing."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    Path("empty").mkdir()
    Path("texts/more").mkdir(parents=True)
    Path("texts/letter.txt").write_text("dear")
    Path("texts/more/table.csv").write_text("a,b\n")
    Path("lone.png").touch()
    images, labels = colours()
    rows = np.random.default_rng(0).normal(size=(20, 4))
    np.save("images.npy", images)
    np.save("labels.npy", labels)
    np.save("rows.npy", rows)
    np.save("floats.npy", images / 255)
    np.save("wide.npy", images.astype(np.int32))
    np.save("deep.npy", np.linspace(0, 65535, images.size).reshape(images.shape).astype(np.uint16))
    np.save("complex.npy", rows.astype(complex))
    np.save("names.npy", np.array(["a", "b"]))
    rows[7, 2] = np.nan
    np.save("nan.npy", rows)
    rows[7, 2] = np.inf
    np.save("inf.npy", rows)
    np.save("one.npy", images[:1])
    Path("torn.npy").write_bytes(Path("images.npy").read_bytes()[:1000])
    Path("torn.npz").write_bytes(b"PK\x03\x04 and no more")
    Path("bad.toml").write_text("epochs = = 3\n")
    return place


# -- what SOURCE can be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source,complaint", [
    ("empty", "empty/ is empty: put images into it, or name another folder"),
    ("", "the source is empty: name a folder, an array, a list of paths or a data set"),
    ("texts", "texts/ contains no images (2 other files): name a folder with .jpg, .png or the like"),
    ("nowhere", "nowhere: no such file, folder or data set; check the path, or name a data set: digits, mnist, "),
    ("digit", "digit: no such file, folder or data set; did you mean digits?"),
    ("./text", "./text: no such file, folder or data set; did you mean texts?"),
    ("texts/mroe", "texts/mroe: no such file, folder or data set; did you mean texts/more?"),
    ("lone.png", "lone.png is a single image: name the folder it lies in"),
    ("bad.toml", "bad.toml: cannot tell what this is; expected a folder, .npy or .npz"),
    ("nan.npy", "nan.npy contains NaN or infinity in row 7: replace it or drop the row"),
    ("inf.npy", "inf.npy contains NaN or infinity in row 7: replace it or drop the row"),
    ("floats.npy", "multiply by 255 and cast, (images * 255).astype('uint8')"),
    ("wide.npy", "cast the values, images.astype('uint8')"),
    ("deep.npy", "of 0 to 65535: bring them to 0 .. 255 and cast, ((images.astype('float32') - 0) * 0.003891).clip(0"),
    ("complex.npy", "expected uint8 images (n,h,w[,c]) or float rows (n,d), got complex128 (20, 4)"),
    ("names.npy", "expected uint8 images (n,h,w[,c]) or float rows (n,d)"),
    ("one.npy", "one.npy has 1 sample, at least 2 are needed: add more images"),
    ("torn.npy", "torn.npy: not a readable array of plain numbers; save it again with numpy.save"),
    pytest.param(
        "torn.npz", "torn.npz: not a readable array of plain numbers; save it again with numpy.save",
        marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # numpy leaves it open
    ),
], ids=lambda value: value.split(":")[0])  # fmt: skip
def test_sources(source: str, complaint: str) -> None:
    assert complaint in command("fit", source, *FIT).complaint
    assert not Path("run").exists()


def test_the_home_of_nobody_is_refused_unless_a_folder_has_its_name() -> None:
    nobody = "~nobody-here is not a home folder: check the name, or write ./~nobody-here"
    assert nobody in command("fit", "~nobody-here/photos").complaint
    weights = command("fit", "images.npy", *FIT, "--backbone", "small:~nobody-here/w.safetensors").complaint
    assert "there is no such file; check the path" in weights
    absent = command("fit", "mnist", *FIT, "--data-root", "~nobody-here").complaint
    assert nobody in absent
    Path("~kept").mkdir()
    np.save("~kept/images.npy", np.load("images.npy"))
    worked("fit", "~kept", *FIT)


def test_predict_asks_the_same_of_its_source(workplace: Path) -> None:
    worked("fit", "images.npy", *FIT)
    for source in ("empty", "texts", "nowhere", "nan.npy", "floats.npy", "rows.npy"):
        command("predict", "run", source, "--out", "new.csv").complaint  # noqa: B018  (it checks itself)
        assert not Path("new.csv").exists()
    assert (
        "is not a run: it has no config.json" in command("predict", "empty", "images.npy", "--out", "a.csv").complaint
    )
    assert "is not a run: the folder does not exist" in command("evaluate", "nowhere").complaint
    assert "name that ends in .csv or .parquet" in command("predict", "run", "images.npy", "--out", "new.txt").complaint
    Path("folder.csv").mkdir()
    assert "folder.csv is a folder" in command("predict", "run", "images.npy", "--out", "folder.csv").complaint


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options,complaint", [
    (["--clusters", "1"], "--clusters is 1: expected at least 2"),
    (["--clusters", "0"], "--clusters is 0: expected at least 2"),
    (["--clusters", "-3"], "--clusters is -3: expected a number, a range such as 5-30, or auto"),
    (["--clusters", ""], "--clusters is : expected a number"),
    (["--clusters", "many"], "--clusters is many: expected a number, a range such as 5-30, or auto"),
    (["--clusters", "2-3-4"], "--clusters is 2-3-4: expected a number, a range such as 5-30, or auto"),
    (["--clusters", "1-4"], "--clusters is 1-4: expected at least 2"),
    (["--clusters", "9-4"], "--clusters is 9-4: write the smaller number first"),
    (["--clusters", "40-50"], "48 samples can show 12 clusters at most, not 40 or more"),
    (["--clusters", "auto", "--set", "method=tcc"], "tcc needs the number of clusters"),
    (["-k", "49", *TINY], "49 clusters need at least as many readable samples, got 48"),
    (["-k", "3", "--epochs", "1", "--minutes", "2"], "epochs and minutes both set the training length: choose one"),
    (["-k", "3", "--epochs", "0"], "--epochs: expected a whole number of at least 1, not 0"),
    (["-k", "3", "--epochs", "1.5"], "--epochs: expected a whole number of at least 1, not 1.5"),
    (["-k", "3", "--seed", "0.7"], "--seed: expected a whole number from 0 to 4294967295, not 0.7"),
    (["-k", "3", "--minutes", "-1"], "minutes is -1.0: expected a number above 0"),
    (["-k", "3", "--minutes", "nan"], "minutes is nan: expected a number above 0"),
    (["-k", "3", "--minutes", "inf"], "train.minutes is inf: expected a finite number"),
    (["-k", "3", "--seed", "-1"], "--seed: expected a whole number from 0 to 4294967295, not -1"),
    (["-k", "3", "--seed", "9" * 30], f"from 0 to 4294967295, not {'9' * 30}"),
    (["-k", "3", "--set", "seed=-1"], "the seed is -1: choose one from 0 to 4294967295"),
    (["-k", "3", "--recipe", "digit"], "no recipe 'digit', did you mean 'digits'?"),
    (["-k", "3", "--recipe", "zzz"], "no recipe 'zzz'; `twincluster recipes` lists them"),
    (["-k", "3", "--recipe", "zzz.toml"], "no recipe 'zzz.toml': the file does not exist"),
    (["-k", "3", "--recipe", "bad.toml"], "recipe bad.toml is not valid TOML"),
    (["-k", "3", "--method", "tcc", "--set", "tcc.alhpa=0.3"], "no setting 'tcc.alhpa', did you mean 'tcc.alpha'?"),
    (["-k", "3", "--set", "tcc.alpha"], "--set 'tcc.alpha': expected FIELD=VALUE, for example --set optimiser."),
    (["-k", "3", "--method", "tcc", "--set", "tcc.alpha=2"], "tcc.alpha is 2.0: expected a number from 0 to 1"),
    (["-k", "3", "--epochs", "1", "--method", "kmeans"], "there is no method 'kmeans': choose one of anchored, tcc"),
    (["-k", "3", "--set", "tcc.alpha=0.2"], "tcc.alpha has no effect on the method anchored: omit it, or choose "),
    (["-k", "3", "--method", "cc", *TINY], "anchored.hidden has no effect on the method cc"),
    (["-k", "3", "--recipe", "paper-cifar10", *TINY], "anchored.hidden has no effect on the method tcc"),
    (["-k", "3", *TINY, "--split", "train"], "images.npy has no train and test parts: leave out --split"),
    (["-k", "3", "--labels", "folders"], "images.npy has no folders to take labels from"),
    (["-k", "3", "--labels", "truth.csv"], "labels truth.csv: no such file"),
    (["-k", "3", "--labels", "one.npy"], "labels one.npy: expected 48 labels, one per input"),
    (["-k", "3", "--labels", "bad.toml"], "labels bad.toml: expected none, folders, or a .csv, .parquet or .npy file"),
], ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None)  # fmt: skip
def test_options(options: list[str], complaint: str) -> None:
    assert complaint in command("fit", "images.npy", "--out", "run", *options).complaint
    assert not Path("run").exists()


@pytest.mark.parametrize("words,complaint", [
    (["fit"], "twincluster fit needs SOURCE; see twincluster fit --help"),
    (["predict", "run"], "twincluster predict needs SOURCE; see twincluster predict --help"),
    (["predict", "run", "images.npy"], "twincluster predict needs --out; see twincluster predict --help"),
    (["evaluate"], "twincluster evaluate needs RUN; see twincluster evaluate --help"),
    (["fit", "digits", "--epoch", "3"], "Did you mean --epochs? See twincluster fit --help"),
    (["fit", "digits", "--epochs", "ten"], "a whole number of at least 1, not ten; see twincluster fit --help"),
    (["fit", "digits", "--epochs"], "--epochs requires an argument; see twincluster fit --help"),
    (["fit", "digits", "--device", "gpu"], "ee twincluster fit --help"),
    (["fit", "digits", "more"], "twincluster fit: unexpected argument 'more'; see twincluster fit --help"),
    (["fit", "a.jpg", "b.jpg", "c.jpg"], "unexpected argument 'b.jpg' and 1 more: name the folder instead of"),
    (["fti", "digits"], "no command 'fti', did you mean 'fit'? See twincluster --help"),
    (["fitt"], "no command 'fitt', did you mean 'fit'? See twincluster --help"),
    (["xyzzy"], "no command 'xyzzy': choose one of cut, demo, doctor, encode, encoders, evaluate, export"),
    (["texts"], "no command 'texts': to cluster its images, run twincluster fit texts; see twincluster --help"),
    (["--clusters", "3", "fit", "digits"], "no option '--clusters' before a command: write twincluster COMMAND"),
    (["--verison"], "no command '--verison', did you mean '--version'? See twincluster --help"),
], ids=" ".join)  # fmt: skip
def test_words_that_are_no_command(words: list[str], complaint: str) -> None:
    assert complaint in command(*words).complaint.replace('"', "")  # releases of cyclopts differ in quotation marks


@pytest.mark.parametrize("words,name", [([], "NAME"), (["train", "--steps", "3"], "train"), (["--help"], "NAME")])
def test_bench_says_where_the_benchmarks_are(words: list[str], name: str) -> None:
    complaint = command("bench", *words).complaint
    assert (
        complaint
        == f"benchmarks are not part of the package: run `python -m benchmarks {name}` in the source repository"
    )


# -- runs ------------------------------------------------------------------------------------------------------------


def content(folder: str) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}


def test_an_existing_run_is_left_alone() -> None:
    worked("fit", "images.npy", *FIT)
    before = content("run")
    again = command("fit", "images.npy", *FIT)
    assert again.complaint == "run exists and is not empty: choose another --out, or continue it with --resume"
    assert again.out == ""  # before the source is listed, fetched or decoded
    assert command("fit", "images.npy", "-k", 3, "--out", "texts", *TINY).complaint.endswith("choose another --out")
    assert command("fit", "images.npy", "-k", 3, "--out", "one.npy", *TINY).complaint.endswith("choose another --out")
    assert content("run") == before


def test_resume_for_another_length_says_what_that_means() -> None:
    worked("fit", "images.npy", *FIT)
    longer = worked("fit", "images.npy", *FIT[:4], *TINY[2:], "--epochs", 3, "--resume")
    assert "run was planned for 1 epoch and will now end after 3 epochs" in " ".join(longer.err.split())
    again = worked("fit", "images.npy", *FIT[:4], *TINY[2:], "--epochs", 3, "--resume")
    assert "planned" not in again.err
    before = content("run")
    shorter = command("fit", "images.npy", *FIT, "--resume").complaint
    assert shorter == "run has already trained for 3 epochs: set --epochs to 3 or more, or choose another --out"
    assert content("run") == before


def test_resume_with_something_else_says_what() -> None:
    worked("fit", "images.npy", *FIT)
    before = content("run")
    other = ("--set", "anchored.temperature=0.3", "--set", "augment.flip=0.1")
    done = command("fit", "images.npy", *FIT, *other, "--seed", 4, "--resume")
    assert done.complaint == (
        "run was started with another seed (0, now 4), augment.flip (0.5, now 0.1), anchored.temperature (0.2, now "
        "0.3): resume with the same settings"
    )
    many = command("fit", "images.npy", "-k", 3, "--out", "run", "--recipe", "digits", "--resume").complaint
    assert " more (perhaps another --recipe): resume with the same settings" in many
    clusters = command("fit", "images.npy", "-k", 4, "--out", "run", *TINY, "--resume").complaint
    assert clusters.startswith("run was started with another n_clusters")
    np.save("changed.npy", colours(seed=1)[0])
    assert "run was started on other data" in command("fit", "changed.npy", *FIT, "--resume").complaint
    assert content("run") == before


def test_resume_without_a_run() -> None:
    for out in ("nowhere", "empty", "texts"):
        done = command("fit", "images.npy", "-k", 3, "--out", out, *TINY, "--resume")
        assert done.complaint == f"{out} contains no run to resume: omit --resume"
    assert not Path("nowhere").exists()
    assert "name it, for example --out" in command("fit", "images.npy", "-k", 3, *TINY, "--resume").complaint


def test_a_path_through_a_file() -> None:
    done = command("fit", "images.npy", "-k", 3, "--out", "one.npy/run", *TINY)
    assert done.complaint == "one.npy is not a folder: choose another --out"
    done = command("predict", "run", "images.npy", "--out", "one.npy/new.csv")
    assert done.complaint == "one.npy is not a folder: choose another place"


def test_a_zero_byte_in_a_path() -> None:
    worked("fit", "images.npy", *FIT)
    for words in (
        ("fit", "images.npy", "-k", 3, "--out", "a\0b"), ("fit", "a\0b", "-k", 3), ("report", "a\0b"),
        ("fit", "images.npy", "-k", 3, "--labels", "a\0b"), ("predict", "run", "images.npy", "--out", "a\0b"),
        ("export", "run", "a\0b", "--to", "csv"), ("fit", "mnist", "-k", 3, "--data-root", "a\0b"),
    ):  # fmt: skip
        assert command(*words).complaint == r"'a\x00b' contains a zero byte, which is not allowed in a path: remove it"
    for write in (hold, hold_new):
        with pytest.raises(InputError, match="contains a zero byte"):
            write(Path("a\0b"), "training")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
@pytest.mark.parametrize("out", ["/proc/x", "/proc/self/x"])
def test_a_place_where_no_folder_can_be_made(out: str) -> None:
    said = command("fit", "images.npy", "-k", 3, "--out", out, *TINY).complaint
    assert re.fullmatch(r"\S+ (cannot be created or written to|is not writable).*: .*choose another --out", said)


def test_sizes_that_no_memory_holds() -> None:
    for number, size in enumerate((10**12, 10**14)):
        done = command("fit", "images.npy", "-k", 3, "--out", number, *TINY, "--set", f"anchored.hidden={size}")
        assert re.match(r"there is not enough memory.*: lower .* with --set", done.complaint)


def test_a_run_folder_that_is_deleted_while_it_is_trained() -> None:
    settings = [*TINY[TINY.index("--device") :], "--set", "train.checkpoint_minutes=0"]
    words = ["fit", "images.npy", "-k", "3", "--out", "run", "--epochs", "1000000", *settings]
    with subprocess.Popen([sys.executable, "-m", "twincluster", *words], stderr=subprocess.PIPE, text=True) as child:
        end = time.monotonic() + 120
        while not Path("run/metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.05)
        Path("run").rename("elsewhere")
        try:
            said = child.communicate(timeout=120)[1]
        finally:
            child.kill()
    assert (child.returncode, said.splitlines()[-1]) == (
        2, "twincluster: the folder run was deleted or moved while in use: start again"
    )  # fmt: skip
    assert "Traceback" not in said
    assert not Path("run").exists()


# -- files that cannot be read ---------------------------------------------------------------------------------------


def test_unreadable_files_stop_nothing_and_keep_their_rows(photo_folder: Path) -> None:
    done = worked("fit", photo_folder, *FIT)
    assert "62 inputs in photos/ (1 other file ignored), 3 clusters" in done.out
    assert "2 inputs could not be read (1 incomplete);" in done.out
    table = Assignments.read(Path("run/assignments.csv"))
    pictures = [file for file in photo_folder.rglob("*") if file.is_file() and file.name != "notes.txt"]
    assert sorted(table.paths) == sorted(file.relative_to(photo_folder).as_posix() for file in pictures)
    broken = {path: status for path, status in zip(table.paths, table.status, strict=True) if status != "ok"}
    assert set(broken) == {"blue-rings/truncated.jpg", "red-rows/empty.png"}
    done = worked("predict", "run", photo_folder, "--out", "new.csv")
    assert done.out == "62 rows in new.csv, 2 of them unreadable (1 incomplete)\n"
    assert Path("new.csv").read_text() == Path("run/assignments.csv").read_text()


def test_nothing_but_unreadable_files() -> None:
    Path("broken").mkdir()
    for name in ("a.png", "b.jpg", "c.webp"):
        Path("broken", name).touch()
    assert "none of the 3 images in broken/ can be read (a.png: empty file)" in command("fit", "broken", *FIT).complaint
    worked("fit", "images.npy", *FIT)
    assert worked("predict", "run", "broken", "--out", "new.csv").out == "3 rows in new.csv, 3 of them unreadable\n"
    assert Assignments.read(Path("new.csv")).paths == ("a.png", "b.jpg", "c.webp")


# -- as a shell sees it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("fit", "images.npy", "-k", "1"), ("fit", "empty", "-k", "3"), ("fit",)], ids=str
)
def test_a_real_process(arguments: tuple[str, ...]) -> None:
    source = Path(command.__code__.co_filename).parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-m", "twincluster", *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("twincluster: ")
    assert done.stderr.count("\n") == 1
