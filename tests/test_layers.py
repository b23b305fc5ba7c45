"""Which way imports point: a module imports from its own room, or from the front door of a room named before it.

docs/code.md says what each room is for. Imports inside functions count; those for type checkers alone do not.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import twincluster

SOURCE = Path(twincluster.__file__).parent

# Lowest first. A name without a folder is a module at the top. What stands in one line knows nothing of its neighbours.
ROOMS = (
    "core",
    "parallel",
    "config",
    "data",
    "clustering",
    "runs",
    "nn",
    "methods",
    "resolve",
    "training",
    "model",
    "fit",
    "run_images",
    "teacher",
    "update",
    "pages export",
    "estimator on_ray",
    "paper",
    "cli",
    "__main__",
)
LAZY = {("__init__", "estimator")}  # the package's own name for it, looked up on first use
MOST_AT_THE_TOP = 10
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms.split()}
MODULES = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}
DOORS = {room: SOURCE / room / "__init__.pyi" for room in LEVEL if (SOURCE / room).is_dir()}


def imports_of(text: str) -> Iterator[tuple[str, str]]:
    """Module and name of all that a file imports from us: `data`, `open_source`; not for type checkers."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found = [(str(node.module), alias.name) for alias in node.names]
        else:
            continue
        for module, name in found:
            package, _, inside = module.partition(".")
            if package == "twincluster" and not inside and name in MODULES:
                yield name, ""
            elif package == "twincluster" and inside:
                yield inside, name


def wrong(module: str, text: str) -> list[str]:
    """Imports of a module that do not point down, or pass by the front door of another room."""
    own = module.partition(".")[0]
    return [
        f"{imported}.{name}".rstrip(".")
        for imported, name in imports_of(text)
        if (other := imported.partition(".")[0]) != own
        and (own, other) not in LAZY
        and (not LEVEL.get(other, len(LEVEL)) < LEVEL.get(own, -1) or "." in imported)
    ]


def exports_of(room: str) -> list[tuple[str, str]]:
    """Module and name of all that the front door of a room offers."""
    tree = ast.parse(DOORS[room].read_text(encoding="utf-8"))
    found = [
        (str(node.module), alias.name) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    return [(module, name) for module, name in found if module.startswith("twincluster")]


def test_every_module_lies_in_a_room_or_is_one_of_few_at_the_top() -> None:
    assert {module.partition(".")[0] for module in MODULES} - set(LEVEL) == {"__init__"}
    assert [room for room in LEVEL if room not in MODULES] == []
    assert len([module for module in MODULES if "." not in module and module not in DOORS]) <= MOST_AT_THE_TOP


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_down_and_go_through_front_doors(module: str) -> None:
    assert wrong(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("room", sorted(DOORS))
def test_a_front_door_offers_what_its_room_has_and_nothing_private(room: str) -> None:
    door = import_module(f"twincluster.{room}")
    offered = exports_of(room)
    for module, name in offered:
        assert module.startswith(f"twincluster.{room}")
        assert not name.startswith("_")
        assert getattr(door, name) is not None
    own = [name for name, value in vars(door).items() if getattr(value, "__module__", "") == door.__name__]
    assert {name for _, name in offered} == set(door.__all__) - set(own)


def test_an_import_that_points_up_is_found_wherever_it_stands() -> None:
    assert wrong("config.schema", "from twincluster.data import Listing") == ["data.Listing"]
    assert wrong("methods.tcc", "def step():\n    from twincluster.training import Trainer") == ["training.Trainer"]
    assert wrong("fit", "import twincluster.cli.runs") == ["cli.runs"]
    assert wrong("nn.memory", "try:\n    from twincluster import fit\nfinally:\n    pass") == ["fit"]
    hidden = "if TYPE_CHECKING:\n    from twincluster.training import Trainer\nelse:\n    from twincluster import cli"
    assert wrong("methods.losses", hidden) == ["cli"]


def test_an_import_that_passes_by_a_front_door_is_found() -> None:
    assert wrong("fit", "from twincluster.runs.folder import Run") == ["runs.folder.Run"]
    assert wrong("runs.edits", "from twincluster.runs.folder import Run") == []
