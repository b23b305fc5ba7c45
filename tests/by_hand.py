"""Files of a run changed by hand, and runs as versions without checksums have written them."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file in place, without its checksum, as its error message advises."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    path.write_text(json.dumps(content))


def json_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file without their checksums."""
    rows = [json.loads(line, parse_constant=_refuse) for line in path.read_text().splitlines()]
    assert all(len(row.pop("checksum")) == 32 for row in rows)
    return rows


def strip_checksums(run: Path) -> None:
    """Make the files of a run folder those of a version without checksums."""
    (run / "checksums.json").unlink(missing_ok=True)
    for path in run.glob("*.json"):
        change_json(path, lambda content: None)
    for path in run.glob("*.jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in json_rows(path)))
    for path in run.rglob("*.safetensors"):
        whole = path.read_bytes()
        (length,) = struct.unpack("<Q", whole[:8])
        header = json.loads(whole[8 : 8 + length])
        del header["__metadata__"]["sha256"]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
    if (edits := run / "edits.jsonl").is_file():  # which name the model by its bytes
        start, *rest = edits.read_text().splitlines(keepends=True)
        model = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()[:32]
        edits.write_text(json.dumps(json.loads(start) | {"model": model}) + "\n" + "".join(rest))


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not strict JSON")
