"""Weights of encoders: downloads that are cut off, wrong or refused, and folders for machines without a network."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from command_line import colours, command, worked
from small_onnx import colour_model
from twincluster.config import KNOWN, encoder_names
from twincluster.core import InputError
from twincluster.nn import downloads, load_encoder
from twincluster.runs import Run

QUICK = ("--epochs", "1", "--device", "cpu", "--set", "train.batch_size=16", "--set", "augment.neighbours=3")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server of one file, which may misbehave."""

    content = b""
    digest = ""  # that it states; "": none
    cut = 0  # bytes after which it closes each connection; 0: never
    status = 200
    ranges = True  # whether it honours Range
    commit = COMMIT
    delay = 0.0  # seconds before it sends anything

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, Range

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def offer(self, path: Path) -> str:
        """Serve this file; return its SHA-256."""
        self.content = path.read_bytes()
        self.digest = hashlib.sha256(self.content).hexdigest()
        return self.digest


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, wanted = self.server, self.headers.get("Range")
        hub.asked.append((self.command, self.path, wanted))
        if hub.status != 200:
            self.send_error(hub.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and hub.ranges else 0
        if start >= len(hub.content) and start:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(hub.content) - start))
        if hub.digest:
            self.send_header("X-Linked-ETag", f'"{hub.digest}"')
        self.send_header("X-Repo-Commit", hub.commit)
        self.end_headers()
        if body:
            time.sleep(hub.delay)
            end = min(len(hub.content), start + hub.cut) if hub.cut else len(hub.content)
            self.wfile.write(hub.content[start:end])
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Stands for the hub, in a thread of its own."""
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    monkeypatch.setattr(downloads, "SILENCE", 5.0)
    monkeypatch.setattr(downloads, "TRIES", 2)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def some_file(folder: Path, size: int = 300_000) -> Path:
    path = folder / "some.bin"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    return path


def test_a_file_is_downloaded_once_and_recorded(tmp_path: Path, own_cache: Path, hub: Hub) -> None:
    digest = hub.offer(some_file(tmp_path))
    path = downloads.get_weights("tinyvit-5m")
    assert path.read_bytes() == hub.content
    assert path.parent == own_cache / "encoders"
    record = json.loads(path.with_suffix(".json").read_text())
    assert (record["sha256"], record["commit"]) == (digest, COMMIT)
    repository = KNOWN["tinyvit-5m"].repository
    assert [entry[1] for entry in hub.asked] == [
        f"/{repository}/resolve/main/model.safetensors", f"/{repository}/resolve/{COMMIT}/model.safetensors"
    ]  # fmt: skip
    assert downloads.get_weights("tinyvit-5m") == path
    assert len(hub.asked) == 2
    path.write_bytes(b"other")
    with pytest.raises(InputError, match="is damaged: its SHA-256 is not"):
        downloads.get_weights("tinyvit-5m")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_is_cut_again_and_again_still_brings_the_file(tmp_path: Path, hub: Hub, ranges: bool) -> None:
    hub.offer(some_file(tmp_path))
    hub.cut, hub.ranges = 100_000, ranges
    if ranges:
        assert downloads.get_weights("tinyvit-5m").read_bytes() == hub.content
        assert [entry[2] for entry in hub.asked[1:]] == [None, "bytes=100000-", "bytes=200000-"]
    else:  # each begins anew and gets as far
        with pytest.raises(InputError, match=r"the connection was cut|IncompleteRead"):
            downloads.get_weights("tinyvit-5m")


def test_a_server_that_is_silent_for_too_long_counts_as_gone(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.offer(some_file(tmp_path))
    hub.delay = 0.5
    assert downloads.get_weights("tinyvit-5m").read_bytes() == hub.content
    hub.delay = 2.0
    monkeypatch.setattr(downloads, "SILENCE", 0.3)
    with pytest.raises(InputError, match="tinyvit-21m is not on this machine and cannot be downloaded .*timed out"):
        downloads.get_weights("tinyvit-21m")


def test_a_stopped_download_goes_on_in_the_next_process(tmp_path: Path, own_cache: Path, hub: Hub) -> None:
    hub.offer(some_file(tmp_path))
    (own_cache / "encoders").mkdir()
    (own_cache / "encoders" / "tinyvit-5m.safetensors.partial").write_bytes(hub.content[:1234])
    assert downloads.get_weights("tinyvit-5m").read_bytes() == hub.content
    assert hub.asked[-1][2] == "bytes=1234-"
    assert not list((own_cache / "encoders").glob("*.partial"))


def test_a_file_with_another_hash_is_removed(tmp_path: Path, own_cache: Path, hub: Hub) -> None:
    hub.offer(some_file(tmp_path))
    hub.digest = "0" * 64
    with pytest.raises(InputError, match="tinyvit-5m: what .* sent has the SHA-256 .*, not 0000"):
        downloads.get_weights("tinyvit-5m")
    assert not list((own_cache / "encoders").iterdir())
    hub.digest = ""
    with pytest.raises(InputError, match="states no SHA-256"):
        downloads.get_weights("tinyvit-5m")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "dinov3-small cannot be downloaded: .* answers 404 Not Found"),
        (403, "given only to those who accept its licence .DINOv3 licence.: download model.safetensors from .*, save"),
        (503, "dinov3-small cannot be downloaded: .* answers 503"),
    ],
)
def test_a_hub_that_refuses_is_explained_in_one_line(hub: Hub, status: int, said: str) -> None:
    hub.status = status
    with pytest.raises(InputError, match=said) as raised:
        downloads.get_weights("dinov3-small")
    assert "\n" not in str(raised.value)


def test_without_a_network_the_remedy_is_a_folder(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clip-b32.safetensors"
    some_file(tmp_path).rename(path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    refused = command("encoders", "fetch", "clip-b32").complaint
    assert "`twincluster encoders fetch clip-b32 --to FOLDER` and set TWINCLUSTER_MODELS=FOLDER here" in refused
    monkeypatch.setenv("TWINCLUSTER_MODELS", str(tmp_path))
    assert downloads.get_weights("clip-b32") == path
    assert worked("encoders", "fetch", "clip-b32").out == f"{path}\n"
    listed = json.loads(worked("encoders", "--json").out)
    assert {row["name"]: row["present"] for row in listed}["clip-b32"]
    assert {row["name"] for row in listed} == {"pretrained", *KNOWN}
    monkeypatch.setenv("TWINCLUSTER_MODELS", str(tmp_path / "nowhere"))
    assert "which is no folder" in command("encoders", "fetch", "clip-b32").complaint


def test_an_onnx_file_from_an_address_is_fetched_checked_and_used(tmp_path: Path, own_cache: Path, hub: Hub) -> None:
    digest = hub.offer(colour_model(tmp_path / "net.onnx", ("n", 3, 24, 24)))
    name = f"onnx:{hub.address}/net.onnx"
    with pytest.raises(InputError, match="end the address in #sha256=HEX"):
        load_encoder(name)
    with pytest.raises(InputError, match="net.onnx: what .* sent has the SHA-256"):
        downloads.fetch(f"{name}#sha256={'1' * 64}")
    np.save(tmp_path / "images.npy", colours(90)[0])
    worked("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "run", "--backbone",
           f"{name}#sha256={digest}", *QUICK)  # fmt: skip
    assert Run.open(tmp_path / "run").config.train.encoder == f"{name}#sha256={digest}"
    hub.status = 500  # from now on it is not asked
    worked("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    said = worked("encoders", "fetch", f"{name}#sha256={digest}", "--to", tmp_path / "models").out
    assert str(tmp_path / "models" / f"{digest}.onnx") in said


def test_the_run_of_a_stranger_downloads_nothing_until_the_user_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub
) -> None:
    digest = hub.offer(colour_model(tmp_path / "net.onnx", ("n", 3, 24, 24)))
    name = f"onnx:{hub.address}/net.onnx#sha256={digest}"
    np.save(tmp_path / "images.npy", colours(90)[0])
    fit = ("fit", tmp_path / "images.npy", "-k", "3", "--out", tmp_path / "run", *QUICK)
    worked(*fit, "--backbone", name)
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(tmp_path / "another"))  # as on a machine that has never seen the file
    monkeypatch.setattr(encoder_names, "_trusted", set())
    hub.asked.clear()
    predict = ("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[train]\nencoder = "{name}"\n')
    np.save(tmp_path / "more.npy", 255 - colours(20)[0])
    update = ("update", tmp_path / "run", tmp_path / "more.npy")
    by_recipe = ("fit", tmp_path / "images.npy", "-k", "3", "--recipe", recipe, "--out", tmp_path / "two")
    for words in (predict, update, by_recipe):
        refused = command(*words).complaint
        assert f"if you trust it, run `twincluster encoders fetch '{name}'`" in refused
    assert not hub.asked
    worked("encoders", "fetch", name)
    monkeypatch.setattr(encoder_names, "_trusted", set())
    worked(*predict)


def test_a_folder_for_another_machine_holds_weights_and_record(tmp_path: Path, hub: Hub) -> None:
    hub.offer(some_file(tmp_path))
    downloads.get_weights("tinyvit-5m")
    worked("encoders", "fetch", "tinyvit-5m", "--to", tmp_path / "carried")
    assert sorted(path.name for path in (tmp_path / "carried").iterdir()) == [
        "tinyvit-5m.json", "tinyvit-5m.safetensors"
    ]  # fmt: skip
    refused = command("encoders", "fetch", "tinyvit").complaint
    assert "nothing to fetch for 'tinyvit', did you mean 'tinyvit-5m'" in refused
    assert "--to is where to fetch" in command("encoders", "--to", tmp_path).complaint


def test_a_known_encoder_is_built_by_timm_from_the_file(tmp_path: Path, hub: Hub) -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model("tiny_vit_5m_224", num_classes=21841).eval()
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, tmp_path / "weights.bin")
    hub.offer(tmp_path / "weights.bin")
    encoder = load_encoder("tinyvit-5m")
    assert (encoder.side, encoder.version) == (224, hub.digest[:16])
    images = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(images), pre_logits=True)
        torch.testing.assert_close(encoder.network(images), expected)


def test_weights_of_another_network_are_refused(tmp_path: Path, hub: Hub) -> None:
    pytest.importorskip("timm")
    save_file({"some": torch.zeros(3)}, tmp_path / "weights.bin")
    hub.offer(tmp_path / "weights.bin")
    with pytest.raises(InputError, match="does not hold the weights of tinyvit-5m") as raised:
        load_encoder("tinyvit-5m")
    assert "\n" not in str(raised.value)
