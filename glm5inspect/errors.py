# SPDX-License-Identifier: AGPL-3.0-only
"""The ways in which a question can go unanswered.

*Could not answer* is one of these exceptions (the command line makes it exit code 3); *answered: no* is a
`glm5inspect.report.Finding`. Every message is one sentence that says where, what, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm5inspect.catalogue import Code


class Glm5InspectError(Exception):
    """Say that the question could not be answered, and why."""


class UsageError(Glm5InspectError):
    """Say that what the caller asked for contradicts itself."""


class SourceError(Glm5InspectError):
    """Say that a SOURCE could not be found, opened or read."""


class IndexFileError(Glm5InspectError):
    """Say that a shard index is malformed, or names a file outside the checkpoint."""


class ConfigError(Glm5InspectError):
    """Say that a configuration file is not a JSON object."""


class SnapshotError(Glm5InspectError):
    """Say that a snapshot file is malformed, or that an inventory cannot be written as one."""


class HeaderError(Glm5InspectError):
    """Say why the header of one shard was refused.

    Attributes:
        code: The ``header-*`` entry of the catalogue.
        reason: What is wrong, without the name of the shard.
        shard: Name of the shard file.
    """

    def __init__(self, code: Code, reason: str, *, shard: str) -> None:
        super().__init__(f"{shard}: {reason}")
        self.code = code
        self.reason = reason
        self.shard = shard


class OutputError(Glm5InspectError):
    """Say that an output file could not be written."""
