# SPDX-License-Identifier: AGPL-3.0-only
"""Account for every tensor of a GLM-5.3-Flash checkpoint before anyone loads a byte.

The public names of the library. They are imported when first asked for, so that a start of the command line costs no
more than it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5inspect.catalogue import Code, Severity
    from glm5inspect.census import take_census
    from glm5inspect.dsa import verify_dsa
    from glm5inspect.errors import Glm5InspectError
    from glm5inspect.header import TensorRecord
    from glm5inspect.inventory import Group, Inventory, Source
    from glm5inspect.mtp import find_mtp
    from glm5inspect.report import Finding, Policy, Report, SourceInfo
    from glm5inspect.resolve import open_source
    from glm5inspect.roles import (
        Accounting,
        TensorRole,
        account,
        classify,
        is_mtp_only_name,
        is_norm,
        is_text_model,
        layer_index,
        normalize,
    )

__version__ = "0.1.0"

__all__ = [
    "Accounting",
    "Code",
    "Finding",
    "Glm5InspectError",
    "Group",
    "Inventory",
    "Policy",
    "Report",
    "Severity",
    "Source",
    "SourceInfo",
    "TensorRecord",
    "TensorRole",
    "account",
    "classify",
    "find_mtp",
    "is_mtp_only_name",
    "is_norm",
    "is_text_model",
    "layer_index",
    "normalize",
    "open_source",
    "take_census",
    "verify_dsa",
]

_HOMES = {
    "catalogue": ("Code", "Severity"),
    "census": ("take_census",),
    "dsa": ("verify_dsa",),
    "errors": ("Glm5InspectError",),
    "header": ("TensorRecord",),
    "inventory": ("Group", "Inventory", "Source"),
    "mtp": ("find_mtp",),
    "report": ("Finding", "Policy", "Report", "SourceInfo"),
    "resolve": ("open_source",),
    "roles": (
        "Accounting",
        "TensorRole",
        "account",
        "classify",
        "is_mtp_only_name",
        "is_norm",
        "is_text_model",
        "layer_index",
        "normalize",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted([*globals(), *__all__])
