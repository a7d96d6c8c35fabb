# SPDX-License-Identifier: AGPL-3.0-only
"""What each finding means, how it usually comes about, and what to do: for `explain` and for the README."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5inspect.catalogue import Code
from glm5inspect.explanations import differences, files, modules, values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5inspect.explanations.explanation import Explanation

_BY_CODE = files.EXPLANATIONS | differences.EXPLANATIONS | modules.EXPLANATIONS | values.EXPLANATIONS
EXPLANATIONS: Mapping[Code, Explanation] = {code: _BY_CODE[code] for code in Code}
"""Every code, explained, in the order of the catalogue."""
