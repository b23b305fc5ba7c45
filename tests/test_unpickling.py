"""Nothing is ever unpickled: a stranger's run folder, array or label file cannot run code."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest

import twincluster
from command_line import TINY, colours, command, worked
from twincluster.core import InputError
from twincluster.runs import Run


class Dangerous:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Dangerous(tmp_path / "harm")))
    assert (tmp_path / "harm").exists()


def test_a_strangers_run_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", colours()[0])
    fit = ("fit", tmp_path / "new.npy", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    worked(*fit)
    run, trap = Run(tmp_path / "run"), pickle.dumps(Dangerous(tmp_path / "harm"))
    for name in ("model.pt", "model.pkl", "config.pkl", "metrics.jsonl", "checkpoint/state.safetensors"):
        (run.folder / name).write_bytes(trap)
    np.save(tmp_path / "trap.npy", np.array([Dangerous(tmp_path / "harm")] * 9, dtype=object), allow_pickle=True)
    predict = ("predict", run.folder, tmp_path / "new.npy", "--out", tmp_path / "new.csv")
    assert command(*predict).status == 0
    assert command("predict", run.folder, tmp_path / "trap.npy", "--out", tmp_path / "new.csv").status == 2
    assert command("evaluate", run.folder, "--labels", tmp_path / "trap.npy").status == 2
    assert command(*fit, "--resume").status == 2
    with pytest.raises(InputError, match="metrics.jsonl is damaged in line 1"):
        run.read_metrics()
    for name in ("model.safetensors", "config.json", "assignments.csv"):
        (run.folder / name).write_bytes(trap)
        assert command(*predict).status == 2
        assert command("evaluate", run.folder).status == 2
    assert not (tmp_path / "harm").exists()


def test_no_source_file_unpickles() -> None:
    package = Path(twincluster.__file__).parent
    found = [f"{file.name}:{line}" for file in package.rglob("*.py") for line in unpickling(file.read_text())]
    assert found == []
    guilty = "import pickle\nfrom joblib import load\ntorch.load(f)\nnp.load(f, allow_pickle=True)\nnp.load(f)\n"
    guilty += "torch.load(f, weights_only=True)\ntorch.load(f, weights_only=False)\n"
    assert unpickling(guilty) == [1, 2, 3, 4, 7]


def unpickling(source: str) -> list[int]:
    """Lines that import a module that unpickles, call torch.load for more than weights, or ask numpy to."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        guilty = any(name.split(".")[0] in ("pickle", "joblib", "marshal", "shelve", "dill") for name in modules)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {named.arg: ast.unparse(named.value) for named in node.keywords}
            guilty |= called in ("torch.jit.load", "torch.package.PackageImporter", "eval")
            guilty |= called == "torch.load" and options.get("weights_only") != "True"
            guilty |= options.get("allow_pickle", "False") != "False"
        if guilty:
            lines.append(node.lineno)
    return sorted(lines)
