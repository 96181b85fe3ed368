"""Imports between Python packages: the arrows that ARCHITECTURE.md draws, and no circle of files or folders.

Every import counts, also those inside functions and those for type checkers alone. A package's `__init__` that exports
names of its own files is not an arrow between folders.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker_edge", "sources", "sinks", "actions", "pipelines", "fleet_console", "headwater_cli")

Graph = Mapping[str, frozenset[str]]


def modules(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """Module name to file, with the stub of the native module for the module itself."""
    found = {}
    for package in packages:
        for path in (root / package).rglob("*.py*"):
            place = path.relative_to(root)
            if path.suffix in (".py", ".pyi") and place.parts[:2] != ("broker_edge", "core"):
                found[".".join(place.with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imports(files: Mapping[str, Path]) -> Graph:
    """Module to the modules that it imports."""
    return {name: frozenset(_imported(name, path, files)) for name, path in files.items()}


def _imported(name: str, path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                asked = [one.name for one in node.names]
            case ast.ImportFrom():
                asked = [f"{_base(name, path, node)}.{one.name}" for one in node.names]
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str() as text)]):
                asked = [text]
            case _:
                continue
        for text in asked:
            while text and text not in files:
                text = text.rpartition(".")[0]
            if text and text != name:
                yield text


def _base(name: str, path: Path, node: ast.ImportFrom) -> str:
    """The module after `from`; a dot stands for the package that the file is in."""
    if node.level == 0:
        return str(node.module)
    parts = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def exported(graph: Graph, files: Mapping[str, Path]) -> Graph:
    """The graph without the arrows by which a package exports the names of its own files."""
    return {
        name: frozenset(other for other in others if files[name].stem != "__init__" or not other.startswith(f"{name}."))
        for name, others in graph.items()
    }


def folders(graph: Graph, files: Mapping[str, Path]) -> Graph:
    """The same arrows between folders."""

    def of(name: str) -> str:
        return ".".join(files[name].relative_to(ROOT).parent.parts) if files[name].is_relative_to(ROOT) else name

    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        found.setdefault(of(name), set()).update(of(other) for other in others if of(other) != of(name))
    return {name: frozenset(others) for name, others in found.items()}


def reached(graph: Graph, start: str) -> frozenset[str]:
    """What can be reached from `start` by one arrow or more."""
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += graph.get(one, ())
    return frozenset(seen)


def circles(graph: Graph) -> list[str]:
    """Everything that can be reached from itself."""
    return sorted(name for name in graph if name in reached(graph, name))


def drawn() -> Graph:
    """The arrows in ARCHITECTURE.md."""
    block = re.search(r"```text\n(headwater_cli.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    assert block is not None
    lines = [line.partition("->") for line in block[1].splitlines()]
    return {left.strip(): frozenset(right.split()) for left, _, right in lines}


FILES = modules(ROOT, PACKAGES)
IMPORTS = imports(FILES)


def test_every_arrow_between_folders_is_drawn() -> None:
    drawing = drawn()
    for name, others in folders(IMPORTS, FILES).items():
        assert others <= reached(drawing, name), f"{name} imports {sorted(others - reached(drawing, name))}"


def test_every_folder_is_in_the_drawing_and_every_arrow_of_it_is_used() -> None:
    drawing, real = drawn(), folders(IMPORTS, FILES)
    assert set(real) == set(drawing) | {one for others in drawing.values() for one in others}
    for name, others in drawing.items():
        assert others <= real[name], f"nothing in {name} imports {sorted(others - real[name])}"


def test_there_is_no_circle_of_files() -> None:
    assert circles(exported(IMPORTS, FILES)) == []


def test_there_is_no_circle_of_folders() -> None:
    assert circles(folders(IMPORTS, FILES)) == circles(drawn()) == []


def test_other_packages_import_no_private_module() -> None:
    for name, others in IMPORTS.items():
        for other in others:
            package, _, rest = other.partition(".")
            is_private = any(part.startswith("_") and not part.startswith("__") for part in rest.split("."))
            assert not is_private or name.startswith(package), f"{name} imports {other}"


def test_a_circle_and_a_hidden_import_are_found(tmp_path: Path) -> None:
    texts = {
        "__init__": "",
        "one": "from a.two import f\n",
        "two": "def f():\n    import a.three\n",
        "three": "import importlib\nfrom importlib import import_module\nimport_module('a.one')\n",
        "four": "from a import one\n",
    }
    (tmp_path / "a").mkdir()
    for name, text in texts.items():
        (tmp_path / "a" / f"{name}.py").write_text(text)
    assert circles(imports(modules(tmp_path, ["a"]))) == ["a.one", "a.three", "a.two"]
