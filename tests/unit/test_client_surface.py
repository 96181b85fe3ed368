"""What `import broker_edge` promises: the documented names, the exception tree of its docstring, nothing heavy."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import broker_edge
from broker_edge import errors


def test_the_public_names_are_the_exported_ones() -> None:
    named = {
        name for name in vars(broker_edge) if not name.startswith("_") and not inspect.ismodule(vars(broker_edge)[name])
    }
    assert named == set(broker_edge.__all__)
    assert sorted(broker_edge.__all__) == broker_edge.__all__


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
    code = f"import sys, broker_edge, broker_edge.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
