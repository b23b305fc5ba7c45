"""Which way imports point: a module imports from the layers below its own, or from its own package (docs/code.md).

Imports inside functions count like those at the top of a file; those for type checkers alone do not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import twincluster

SOURCE = Path(twincluster.__file__).parent

# Lowest first. A package stands for all of its modules but those that are named themselves. Parts of one layer know
# nothing of each other.
LAYERS = (
    "errors interrupts",
    "child collector disk draws kernels losses memory own_code images.decode images.augment images.inputs "
    "methods.peer_losses methods.generative_losses",
    "config evaluate images parallel",
    "backbones clusters known recipe training.schedule",
    "encoders options provenance",
    "features methods whole_numbers",
    "derive inference results training",
    "edits engine opening updates.drift",
    "resuming",
    "pipeline progress stored",
    "findings estimator on_ray",
    "inputs",
    "report",
    "explorer export updates",
    "bench",
    "reproduce",
    "cli",
    "__main__",
)
UPWARDS = {
    ("edits", "inputs"),  # Edits.features computes what it is asked for from the images of the run
    ("__init__", "estimator"),  # the package's own name for it, looked up on first use
}
LEVEL = {unit: level for level, units in enumerate(LAYERS) for unit in units.split()}
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def unit_of(module: str) -> str:
    """The entry of LAYERS that a module belongs to; the package twincluster itself has none."""
    return module if module in LEVEL else module.partition(".")[0]


def imports_of(text: str) -> Iterator[str]:
    """The modules of ours that a file imports, `bench.train` for twincluster.bench.train; not for type checkers."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, module = name.partition(".")
            if package == "twincluster" and (known := module if module in MODULES else module.rpartition(".")[0]):
                yield known


def wrong(module: str, text: str) -> list[str]:
    """Imports of a module that do not point down."""
    own = unit_of(module)
    return [
        imported
        for imported in imports_of(text)
        if (other := unit_of(imported)).partition(".")[0] != own.partition(".")[0]
        and (own, other) not in UPWARDS
        and not LEVEL.get(other, len(LAYERS)) < LEVEL.get(own, -1)
    ]


def test_every_module_has_a_layer_and_every_layer_its_modules() -> None:
    assert {unit_of(module) for module in MODULES} - set(LEVEL) == {"__init__"}
    assert [unit for unit in LEVEL if unit not in MODULES] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down(module: str) -> None:
    assert wrong(module, MODULES[module].read_text(encoding="utf-8")) == []


def test_parts_of_a_package_in_layers_of_their_own_do_not_look_up() -> None:
    """Which a package may do within: but what stands lower by itself is imported from far below the rest."""
    apart = [unit for unit in LEVEL if "." in unit]
    looking_up = {
        (unit, imported)
        for unit in apart
        for imported in imports_of(MODULES[unit].read_text(encoding="utf-8"))
        if LEVEL[unit_of(imported)] > LEVEL[unit]
    }
    assert looking_up == set()


def test_exceptions_are_needed() -> None:
    found = {(unit_of(name), unit_of(other)) for name in MODULES for other in imports_of(MODULES[name].read_text())}
    assert found >= UPWARDS


def test_an_import_that_points_up_is_found_wherever_it_stands() -> None:
    assert wrong("losses", "from twincluster.config import Config") == ["config"]
    assert wrong("methods.tcc", "def step():\n    from twincluster import draws, engine") == ["engine"]
    assert wrong("pipeline", "import twincluster.cli.runs") == ["cli.runs"]
    assert wrong("memory", "try:\n    from twincluster import losses\nfinally:\n    pass") == ["losses"]
    hidden = "if TYPE_CHECKING:\n    from twincluster.engine import Trainer\nelse:\n    from twincluster import cli"
    assert wrong("losses", hidden) == ["cli"]
