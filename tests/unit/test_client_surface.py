"""The promises of `import broker_edge`: the documented names, the exception tree in its docstring, no heavy imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys

import broker_edge
from broker_edge import errors


def test_the_public_names_are_the_exported_ones() -> None:
    loaded = {name: getattr(broker_edge, name) for name in broker_edge.__all__}
    named = {
        name for name in vars(broker_edge) if not name.startswith("_") and not inspect.ismodule(vars(broker_edge)[name])
    }
    assert named - {"TYPE_CHECKING", "annotations"} == set(loaded)
    assert sorted(broker_edge.__all__) == broker_edge.__all__


def test_what_type_checkers_see_is_what_is_exported() -> None:
    tree = ast.parse(inspect.getsource(broker_edge))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {(line.module, name.name) for line in block.body if isinstance(line, ast.ImportFrom) for name in line.names}
    assert {name for _, name in seen} == set(broker_edge.__all__)
    for module, name in seen:
        assert getattr(importlib.import_module(str(module)), name) is getattr(broker_edge, name)


def test_the_exception_tree_is_the_one_in_the_docstring() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__.partition("\n\nNothing here")[0]))
    defined = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert drawn == set(defined)
    assert drawn <= set(broker_edge.__all__)
    assert all(issubclass(kind, errors.HeadwaterError) for kind in defined.values())


def test_importing_the_client_or_the_command_line_imports_no_spark_pandas_or_delta() -> None:
    heavy = ["pyspark", "pandas", "delta", "deltalake", "numpy.testing", "gmqtt", "yaml", "pydantic"]
    code = f"import sys, broker_edge, headwater_cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_importing_the_errors_imports_no_flight_library() -> None:
    code = "import sys, broker_edge.errors; print([n for n in ('pyarrow', 'cryptography') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
