# SPDX-License-Identifier: AGPL-3.0-only
"""How to reach the Hub: what the command line has options for, and so is imported at every start."""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_JOBS = 8
DEFAULT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """How to reach the Hub.

    Attributes:
        token: ``None`` for the one that ``huggingface_hub`` finds (``HF_TOKEN``, ``hf auth login``), if any.
        jobs: How many requests may be open at once.
        timeout: Seconds of silence after which a request has failed.
        cache_dir: Where headers are kept; ``None`` for ``GLM5INSPECT_CACHE``, else the user's cache folder.
        use_cache: Whether headers are kept at all.
        offline: Whether to use what is cached only; ``HF_HUB_OFFLINE`` says the same.
    """

    token: str | None = field(default=None, repr=False)
    jobs: int = DEFAULT_JOBS
    timeout: float = DEFAULT_TIMEOUT
    cache_dir: str | None = None
    use_cache: bool = True
    offline: bool = False
