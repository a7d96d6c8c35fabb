# SPDX-License-Identifier: AGPL-3.0-only
"""A start is cheap, and modules import in one direction only."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import tiny, write_checkpoint

import glm5inspect

ROOT = Path(glm5inspect.__file__).parent
HEAVY = {"huggingface_hub", "numpy", "rich", "safetensors"}

LAYERS = (
    (
        "catalogue",
        "encodings",
        "explanations.explanation",
        "roles",
        "scope",
        "stored",
        "strict_json",
        "values",
        "values.decoding",
        "verification",
    ),
    (
        "errors",
        "explanations.differences",
        "explanations.files",
        "explanations.modules",
        "explanations.values",
        "report",
        "sources",
        "sources.hub_options",
        "sources.workers",
    ),
    ("explanations", "flaws", "sources.address", "sources.base", "sources.hub_faults"),
    (
        "accepting",
        "families",
        "geometry",
        "header",
        "index",
        "layers",
        "second_opinion",
        "sources.hub_answers",
        "sources.hub_setup",
        "summary",
    ),
    ("architecture", "expect", "inventory", "sources.header_cache", "sources.hub_client", "sources.local"),
    ("against", "binding", "checkpoint", "dsa_block", "integrity", "renaming", "snapshot", "sources.hub"),
    ("fingerprint", "modules", "values.selection"),
    ("values.reading", "values.statistics"),
    ("values.checks",),
    ("values.look",),
    ("config_changes", "dialects"),
    ("changes", "quantization", "quantization.expressions", "quantization.schemes", "understanding"),
    ("quantization.regexes",),
    ("quantization.patterns",),
    ("quantization.declared", "quantization.judging", "quantization.remedy", "quantization.unused"),
    ("quantization.check",),
    ("census", "classification", "difference", "dsa", "explain", "keeping", "listing", "mtp", "recording", "resolve"),
    ("verify",),
    ("overview",),
    ("output", "streams"),
    ("render.blocks", "render.markup", "render.wording", "render.json_report", "render.progress"),
    ("render.console", "render.differences", "render.pictures", "render.verification"),
    ("render.content",),
    ("render.html_section",),
    (
        "render.flat_csv",
        "render.github",
        "render.html_page",
        "render.junit",
        "render.markdown",
        "render.sarif",
        "render.table",
    ),
    ("render.text",),
    ("render",),
    ("completion",),
    ("options", "shells"),
    ("program", "running"),
    ("cli",),
    ("__main__",),
)
"""Every module but the package itself, lowest first; one imports only from rows above its own."""

THIRD_PARTY = {
    "cli": {"typer"},
    "options": {"typer"},
    "program": {"typer"},
    "running": {"typer"},
    "shells": {"typer"},
    "render.console": {"rich"},
    "render.table": {"rich"},
    "second_opinion": {"safetensors"},
    "values.checks": {"numpy"},
    "values.decoding": {"numpy"},
    "values.statistics": {"numpy"},
    "render.progress": {"rich"},
    "sources.address": {"huggingface_hub"},
    "sources.hub_client": {"huggingface_hub"},
    "sources.hub_faults": {"huggingface_hub"},
    "sources.hub_setup": {"huggingface_hub"},
}
"""Who may import what besides the standard library."""


def module_name(path: Path) -> str:
    """Return the name of a module below the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"}


def imports(path: Path, *, for_types: bool = False) -> set[str]:
    """Return the full names of the modules that a file imports when it runs, wherever in it the import stands."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            package, _, inner = node.module.partition(".")
            for alias in node.names:
                is_module = package == "glm5inspect" and f"{inner}.{alias.name}".strip(".") in MODULES
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def modules_loaded(code: str, *arguments: str) -> set[str]:
    """Run code in a process of its own, and return the top-level modules it has imported at its end."""
    script = f"""
import sys
try:
    {code}
except SystemExit:
    pass
print(" ".join(sorted(name.partition(".")[0] for name in sys.modules)), file=sys.stderr)
"""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--version"],
        ["classify", "lm_head.weight"],
        ["classify", "lm_head.weight", "--format", "json"],
        ["show", "snapshot:reference", "lm_head.weight"],
        ["explain", "dsa-shape"],
        ["cache", "info", "--format", "json"],
        ["census", "CHECKPOINT", "--format", "json"],
    ],
    ids=lambda arguments: " ".join(arguments) or "no command",
)
def test_a_quick_command_starts_quickly(arguments: list[str], tmp_path: Path) -> None:
    """What needs no table with borders imports nothing heavy."""
    folder = write_checkpoint(tmp_path / "checkpoint", tiny())
    typed = [str(folder) if argument == "CHECKPOINT" else argument for argument in arguments]
    loaded = modules_loaded("from glm5inspect.__main__ import main; main()", *typed)
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_importing_the_command_line_is_cheap() -> None:
    """Nor does the module of the command line import anything heavy."""
    loaded = modules_loaded("import glm5inspect.cli")
    assert "typer" in loaded
    assert not HEAVY & loaded


def test_a_table_needs_rich_and_nothing_else_heavy(checkpoint: Path) -> None:
    """The probe above sees what is imported: a census as a table does import Rich."""
    assert {"rich"} == HEAVY & modules_loaded(
        "from glm5inspect.__main__ import main; main()", "census", str(checkpoint)
    )


def test_every_module_has_a_place() -> None:
    """The table of layers names each module once; a new module gets a place in it."""
    placed = [name for layer in LAYERS for name in layer]
    assert sorted(placed) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name: str) -> None:
    """A module imports from lower layers only, late imports included; so there is no cycle either."""
    height = {member: number for number, layer in enumerate(LAYERS) for member in layer}
    own = {found.removeprefix("glm5inspect.") for found in imports(MODULES[name]) if found.startswith("glm5inspect.")}
    assert {found for found in own if height[found] >= height[name]} == set()


@pytest.mark.parametrize("name", MODULES)
def test_third_party_packages_stay_in_their_room(name: str) -> None:
    """Only the command line knows Typer, only tables and the progress bar know Rich; the core knows neither."""
    packages = {found.partition(".")[0] for found in imports(MODULES[name], for_types=True)}
    assert packages - sys.stdlib_module_names - {"glm5inspect"} == THIRD_PARTY.get(name, set())


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"cli", "running", "__main__"}))
def test_nothing_below_the_command_line_speaks_for_itself(name: str) -> None:
    """Printing, exiting and the standard streams are the command line's; only the bar asks for a terminal."""
    nodes = list(ast.walk(ast.parse(MODULES[name].read_text())))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    assert not {"print", "input", "exit", "quit", "sys.exit", "os._exit"} & called
    assert not {"sys.stdout", "sys.stderr", "sys.stdin", "sys.argv"} & used
    assert not any(attribute.endswith(".isatty") for attribute in used) or name == "render.progress"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=module_name)
def test_modules_stay_readable(path: Path) -> None:
    """A module that grows to 420 lines wants a seam."""
    assert len(path.read_text().splitlines()) < 420


def test_the_package_offers_its_names_without_importing_them() -> None:
    """`import glm5inspect` imports none of its modules, and every public name is there when asked for."""
    code = (
        "import glm5inspect, json, sys;"
        "loaded = [name for name in sys.modules if name.startswith('glm5inspect.')];"
        "print(json.dumps([loaded, [name for name in glm5inspect.__all__ if not hasattr(glm5inspect, name)]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], []]
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = glm5inspect.nonsense
    assert {*glm5inspect.__all__} <= {*dir(glm5inspect)}
