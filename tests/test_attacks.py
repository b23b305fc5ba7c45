"""A hundredth of `make attack`: no fault may be found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("folders", "kills", "images", "requests", "interrupts", "pairs", "soak")


def attack(name: str, scale: float, seed: int = 0) -> dict[str, object]:
    words = [sys.executable, "-m", "attacks", name, "--seed", str(seed), "--scale", str(scale)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == 0
    return found


@pytest.mark.stress
@pytest.mark.parametrize("name", NAMES)
def test_an_attack_finds_no_fault(name: str) -> None:
    attack(name, 0.01)


def test_an_attack_says_what_it_has_done() -> None:
    assert attack("images", 0.001)["mutated images"] == 200


def test_an_attack_that_finds_a_fault_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from attacks import __main__ as attacks
    from attacks import images

    def attack(seed: int, count: int, tell: object) -> dict[str, int]:
        assert callable(tell)
        tell(f"images seed {seed}: a fault")
        return {"faults": 1}

    monkeypatch.setattr(images, "attack", attack)
    monkeypatch.setattr(sys, "argv", ["attacks", "images", "--seed", "7"])
    assert attacks.main() == 1
    assert capsys.readouterr().err == "images seed 7: a fault\n"
