"""Mistakes in a method of a user's own, made in the example of the docs: what is said of them, and who is blamed."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command_line import Done, colours_file, command
from small_runs import make
from twincluster.core import InputError
from twincluster.core import user_code as own_code
from twincluster.methods import import_method
from twincluster.methods.base import RECORDED
from twincluster.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SMALL = ("--clusters", 3, "--device", "cpu", "--set", "train.batch_size=16", "--set", "train.image_size=8")
RETURN = "        return Outcome("
BEFORE_LOSSES = "    def losses("
AFTER_EPOCH = "    def after_epoch(self, epoch, batches, optimiser):\n"
LOSS = "            loss=peer_losses.nt_xent(one, two, self.settings.temperature),\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """On the path of Python, for `mistaken.py`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two files of one second would be taken for the same
    yield tmp_path
    sys.modules.pop("mistaken", None)


def line_of(words: str, text: str) -> int:
    return text[: text.index(words)].count("\n") + 1


def write(folder: Path, right: str, wrong: str) -> str:
    """The example with something else in one place."""
    assert EXAMPLE.count(right) == 1, right
    (folder / "mistaken.py").write_text(EXAMPLE.replace(right, wrong), encoding="utf-8")
    return EXAMPLE.replace(right, wrong)


def fit(folder: Path, method: str = "mistaken:Simclr") -> Done:
    return command("fit", colours_file(folder), *SMALL, "--epochs", 1, "--method", method, "--out", folder / "run")


def last_line(done: Done) -> str:
    """After the traceback."""
    assert done.status == 1, done
    assert "Traceback (most recent call last):" in done.err
    return done.err.splitlines()[-1].removeprefix("twincluster: ")


@pytest.mark.parametrize(
    "right,wrong,told",
    [
        (RETURN, "        {}['mine']\n" + RETURN, "KeyError: 'mine'"),
        (RETURN, "        self.mine\n" + RETURN, "AttributeError: 'Simclr' object has no attribute 'mine'"),
        (RETURN, "        unit @ unit[:1]\n" + RETURN, "RuntimeError: "),
        (RETURN, "        raise ValueError\n" + RETURN, "ValueError"),
    ],
)
def test_a_fault_of_a_step_is_of_the_method(folder: Path, right: str, wrong: str, told: str) -> None:
    line = line_of(wrong, write(folder, right, wrong))
    assert last_line(fit(folder)).startswith(f"the method mistaken:Simclr failed (mistaken.py, line {line}): {told}")


@pytest.mark.parametrize(
    "right,wrong,told",
    [
        ("def embed(", "def embedding(", "NotImplementedError: SimclrNetwork has no embed"),
        ("def losses(", "def loss(", "NotImplementedError: Simclr has no losses"),
        ("self.centres = ", "self.middles = ", "AttributeError: 'SimclrNetwork' object has no attribute 'centres'"),
        ('memory={"features"', 'memory={"feature"', "KeyError: 'features'"),
    ],
)
def test_what_a_method_lacks_is_of_the_method_though_no_line_of_it_failed(
    folder: Path, right: str, wrong: str, told: str
) -> None:
    write(folder, right, wrong)
    said = re.sub(r" \(mistaken.py, line \d+\)", "", last_line(fit(folder)))  # where it calls what it inherits
    assert said == f"the method mistaken:Simclr failed: {told}"


def test_where_only_the_backward_pass_fails_nobody_is_blamed_for_certain(folder: Path) -> None:
    wrong = "        power = one.exp()\n        total = power.sum()\n        power += 1  # exp needs what it gave\n"
    write(folder, f"{RETURN}\n{LOSS}", f"{wrong}{RETURN}\n            loss=total,\n")
    told = last_line(fit(folder))
    assert told.startswith("training mistaken:Simclr failed: RuntimeError: one of the variables needed for gradient")
    assert told.endswith("; if the method is not the cause, please report the lines above")


@pytest.mark.parametrize(
    "right,wrong,told",
    [
        (
            " assignment=q[: len(samples)]",
            " assignment=q[: len(samples), :2]",
            "assignment is (16, 2), expected (16, 3)",
        ),
        ("assignment=q[len(samples) :]", "assignment=q", "key_assignment is (32, 3), expected (16, 3)"),
        ("assignment=q[len(samples) :]", "assignment=None", "key_assignment is None, expected a tensor"),
        (" assignment=q[: len(samples)]", " assignment=q[0]", "assignment is (3,), expected (16, 3)"),
        (
            " assignment=q[: len(samples)]",
            " assignment=q[: len(samples)].long()",
            "assignment has dtype torch.int64, expected",
        ),
        (LOSS, "            loss=one.sum(1),\n", "loss is (16,), expected one number: take its mean or sum"),
        (LOSS, "            loss=one.sum().detach(),\n", "the loss has no gradient: it is detached, or depends on no "),
        (LOSS, "            loss=0.5,\n", "loss is a float, expected a tensor"),
        (RETURN, "        return None\n" + RETURN, "it returned None, expected an Outcome"),
        (RETURN, "        return unit, q\n" + RETURN, "it returned a tuple, expected an Outcome"),
        ("metrics={}", "metrics={'m': 0.5}", "metrics['m'] is a float, expected a tensor"),
        ("metrics={}", "metrics={'m': q[0]}", "metrics['m'] is (3,), expected one number"),
        ("metrics={}", "metrics={'m': q.sum().to('meta')}", "metrics['m'] is on meta, expected cpu"),
        ("metrics={}", "metrics=None", "metrics is None, expected a dict of tensors"),
        ("metrics={}", "metrics={'loss': q.sum()}", "metrics['loss'] has a name that every run records itself"),
        ("metrics={}", "metrics={'seconds': q.sum()}", "metrics['seconds'] has a name that every run records itself"),
        ("metrics={}", "metrics={1: q.sum()}", "the name of metrics[1] is an int, expected a str"),
    ],
)
def test_a_step_that_yields_something_else_is_refused(folder: Path, right: str, wrong: str, told: str) -> None:
    write(folder, right, wrong)
    assert fit(folder).complaint.startswith(f"mistaken:Simclr.losses: {told}")


@pytest.mark.parametrize(
    "wrong,told",
    [
        ("None", "it returned None, expected a dict of numbers, {} for none"),
        ("0.5", "it returned a float, expected a dict of numbers, {} for none"),
        ("{'m': None}", "'m' is None, expected a Python number: convert it to float, or leave it out"),
        ("{'m': torch.zeros(())}", "'m' is a Tensor, expected a Python number: convert it to float, or leave it out"),
        ("{'m': [0.5]}", "'m' is a list, expected a Python number: convert it to float, or leave it out"),
        ("{'m': float('nan')}", "'m' is nan: leave it out in epochs where it is not finite"),
        ("{'m': float('inf')}", "'m' is inf: leave it out in epochs where it is not finite"),
        ("{'m': 0.5, 'loss': 0.5}", "'loss' has a name that every run records itself: choose another name"),
        ("{'epoch': 1}", "'epoch' has a name that every run records itself: choose another name"),
        ("{'on_batch_acc': 1.0}", "'on_batch_acc' has a name that every run records itself: choose another name"),
        ("{1: 0.5}", "the name of 1 is an int, expected a str"),
    ],
)
def test_what_is_recorded_between_epochs_is_checked(folder: Path, wrong: str, told: str) -> None:
    write(folder, BEFORE_LOSSES, f"{AFTER_EPOCH}        return {wrong}\n\n{BEFORE_LOSSES}")
    assert fit(folder).complaint == f"mistaken:Simclr.after_epoch: {told}"


def test_numbers_between_epochs_are_recorded_beside_those_of_every_run(folder: Path) -> None:
    numbers = "{'m': 0.5, 'n': 2, 'empty': 1.0}"
    write(folder, BEFORE_LOSSES, f"{AFTER_EPOCH}        return {numbers}\n\n{BEFORE_LOSSES}")
    assert fit(folder).status == 0
    (row,) = Run(folder / "run").read_metrics()
    assert (row.pop("m"), row.pop("n"), row.pop("empty")) == (0.5, 2, 1.0)
    assert row.keys() == RECORDED


def test_a_loss_that_is_no_number(folder: Path) -> None:
    write(folder, LOSS, "            loss=one.sum() * float('nan'),\n")
    assert fit(folder).complaint == (
        "training diverged (the loss is NaN or infinite): lower the learning rate (optimiser.learning_rate) "
        "or look at the loss of mistaken:Simclr"
    )


def test_where_the_number_of_clusters_is_left_to_the_data_both_views_have_the_same() -> None:
    trainer = make("rows", "n_clusters=0", "clusters_between=[2,5]")
    next(trainer.feed.epoch(0))
    trainer.step()  # with a number of its own
    losses = trainer.losses
    wrong = {"key_assignment": torch.rand(8, 2)}
    trainer.losses = lambda *given: replace(losses(*given), **wrong)
    with pytest.raises(InputError, match=r"anchored.losses: key_assignment is \(8, 2\), expected \(8, 3\)"):
        trainer.step()
    wrong |= {"assignment": torch.rand(8)}
    with pytest.raises(InputError, match=r"anchored.losses: assignment is \(8,\), expected \(8, K\)"):
        trainer.step()


def test_a_fault_that_the_compiler_finds_has_its_line(folder: Path) -> None:
    text = f"{EXAMPLE}\n\ndef product(rows):\n    return rows @ rows\n"
    (folder / "mistaken.py").write_text(text, encoding="utf-8")
    import_method("mistaken:Simclr")
    with pytest.raises(RuntimeError) as caught:
        torch.compile(sys.modules["mistaken"].product, backend="eager")(torch.zeros(2, 3))
    line = line_of("return rows @ rows", text)
    said = own_code.blame(caught.value) or ""
    assert said.startswith(f"the method mistaken:Simclr failed (mistaken.py, line {line}): TorchRuntimeError: ")


@pytest.mark.parametrize(
    "wrong,told",
    [
        ("import numpyy", "({}): No module named 'numpyy'; install the missing package, or correct that line"),
        ("from twincluster import nothing", "({}): cannot import name 'nothing' from 'twincluster'"),
        ("import mistaken.part", "({}): No module named 'mistaken.part'; 'mistaken' is not a package; install the"),
        ("def f(:", "({}): syntax error, invalid syntax"),
        ("  import os", "({}): syntax error, unexpected indent"),
    ],
)
def test_what_keeps_a_module_from_being_imported(folder: Path, wrong: str, told: str) -> None:
    line = line_of(wrong, write(folder, "import torch\nimport", f"{wrong}\nimport torch\nimport"))
    said = fit(folder).complaint
    assert said.startswith("the method mistaken:Simclr cannot be imported " + told.format(f"mistaken.py, line {line}"))
    assert "PYTHONPATH" not in said


@pytest.mark.parametrize("name", ["missing:Simclr", "missing.part:Simclr", "mistaken.part:Simclr"])
def test_a_module_that_is_not_found(folder: Path, name: str) -> None:
    (folder / "mistaken.py").write_text(EXAMPLE, encoding="utf-8")
    assert fit(folder, name).complaint.endswith("install its package, or add its folder to PYTHONPATH")


@pytest.mark.parametrize("name", [":Simclr", ".mistaken:Simclr", "mistaken..part:Simclr"])
def test_what_is_no_name_of_a_module(folder: Path, name: str) -> None:
    said = fit(folder, name).complaint
    assert said == f"the method {name} cannot be imported: expected package.module:Class"


@pytest.mark.parametrize(
    "wrong,told",
    [
        ("nothing", "NameError: name 'nothing' is not defined"),
        ("int('a')", "ValueError: invalid literal for int() with base 10: 'a'"),
    ],
)
def test_another_error_while_a_module_is_imported(folder: Path, wrong: str, told: str) -> None:
    line = line_of(wrong, write(folder, "import torch\nimport", f"{wrong}\nimport torch\nimport"))
    said = last_line(fit(folder))
    assert said == f"the method mistaken:Simclr cannot be imported (mistaken.py, line {line}): {told}"


@pytest.mark.parametrize("body,said", [
    ("class Gone(BaseException): pass\nraise Gone('no GPU')", "Gone: no GPU"),
    ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ("raise GeneratorExit", "GeneratorExit"),
])  # fmt: skip
def test_a_module_that_ends_its_import_in_an_odd_way(folder: Path, body: str, said: str) -> None:
    (folder / "mistaken.py").write_text(body)
    line = body.count("\n") + 1
    assert fit(folder).complaint == (
        f"the method mistaken:Simclr cannot be imported (mistaken.py, line {line}): {said}; correct that line"
    )


def test_a_step_that_raises_what_is_no_exception(folder: Path) -> None:
    write(folder, BEFORE_LOSSES, "    def losses(self, *_):\n        raise GeneratorExit\n\n    def other(")
    assert last_line(fit(folder)).startswith("the method mistaken:Simclr failed (mistaken.py, line ")
