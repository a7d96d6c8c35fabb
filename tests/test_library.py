# SPDX-License-Identifier: AGPL-3.0-only
"""The package as a library: its public names, and what importing it costs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

import glm5inspect
from glm5inspect import TensorRole, classify, open_source, take_census


def modules_after(statement: str) -> set[str]:
    """Return the modules that a statement loads, in a Python of its own."""
    code = f"import sys; before = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before, sep='\\n')"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("name", glm5inspect.__all__)
def test_public_names(name: str) -> None:
    """Every public name is there, documented, and the very object of the module it lives in."""
    found = getattr(glm5inspect, name)
    assert found.__name__ == name
    assert found.__doc__
    assert getattr(import_module(found.__module__), name) is found
    assert name in dir(glm5inspect)


def test_names_are_unique_and_sorted() -> None:
    """The list of public names is one that a person can look something up in."""
    assert sorted(set(glm5inspect.__all__)) == glm5inspect.__all__


def test_version() -> None:
    """The version is a plain string of three numbers."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", glm5inspect.__version__)


@pytest.mark.parametrize("name", ["census", "no_such_name", "__wrapped__", "rich", ""])
def test_unknown_names(name: str) -> None:
    """What is not public is an error that names it, as for any module."""
    with pytest.raises(AttributeError, match=f"module 'glm5inspect' has no attribute '{name}'"):
        glm5inspect.__getattr__(name)


def test_unknown_import() -> None:
    """An import of an unknown name fails like any other."""
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from glm5inspect import no_such_name")  # noqa: S102 - a name that a linter would refuse


def test_import_is_light() -> None:
    """Importing the package loads none of its modules; a name loads only what it needs."""
    assert {name for name in modules_after("import glm5inspect") if name.startswith("glm5inspect")} == {"glm5inspect"}
    loaded = modules_after("from glm5inspect import classify; classify('x'); dir(__import__('glm5inspect'))")
    assert {name for name in loaded if name.startswith("glm5inspect")} == {"glm5inspect", "glm5inspect.roles"}
    assert loaded.isdisjoint({"json", "rich", "typer", "numpy", "safetensors", "huggingface_hub"})


def test_no_public_name_loads_the_command_line() -> None:
    """The whole library does without the packages of the command line."""
    loaded = modules_after("from glm5inspect import *")
    assert "glm5inspect.census" in loaded
    assert loaded.isdisjoint({"glm5inspect.cli", "rich", "typer", "numpy", "safetensors", "huggingface_hub"})


def test_documented_use() -> None:
    """Opening a source gives an inventory of tensors that can be looked up and classified."""
    source = open_source("snapshot:reference")
    tensor = source.inventory().tensors["lm_head.weight"]
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("BF16", (154_880, 4_096), 1_268_776_960)
    assert classify(tensor.name) is TensorRole.LM_HEAD
    report = take_census(source).judged(glm5inspect.Policy())
    assert (report.ok, report.findings) == (True, ())
