# SPDX-License-Identifier: AGPL-3.0-only
"""Make ``huggingface_hub`` ready, whatever the environment says, and keep it within bounds."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, Self

from glm5inspect import __version__
from glm5inspect.errors import SourceError
from glm5inspect.sources.hub_faults import AnswerError

if TYPE_CHECKING:
    from collections.abc import Callable


def set_up(token: str | None) -> tuple[str, bool, dict[str, str]]:
    """Import ``huggingface_hub``, and return its endpoint, whether it is offline, and the headers of every request.

    Raises:
        SourceError: A variable of the environment, or the file of the token, keeps it from working.
    """
    silence = StringIO()
    try:
        with redirect_stdout(silence):  # where the library says that one of its modules cannot be imported
            import huggingface_hub.file_download  # noqa: F401 - what may fail does so here
            from huggingface_hub import constants, get_session, is_offline_mode
            from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # lazily

            _be_quiet()
    except Exception as error:
        kind = type(error).__name__
        raise SourceError(f"huggingface_hub cannot be used ({kind}); check the HF_ variables that are set") from error
    try:
        headers: dict[str, str] = build_hf_headers(token=token, library_name="glm5inspect", library_version=__version__)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        path = constants.HF_TOKEN_PATH
        raise SourceError(f"{path}: the token cannot be read: {reason}; hf auth login, or set HF_TOKEN") from error
    if not headers.get("authorization", "").isascii():
        raise SourceError("the token of HF_TOKEN or hf auth login has characters that no token has; set another")
    endpoint = constants.ENDPOINT
    if not re.fullmatch(r"https?://[^/\s]+[^\s]*", endpoint):
        raise SourceError(f"HF_ENDPOINT is {without_password(endpoint)!r}, which is no address of a server")
    try:
        get_session()
    except ValueError as error:
        raise SourceError("no connection can be made; check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY") from error
    return endpoint, is_offline_mode(), headers


def _be_quiet() -> None:
    """Keep the progress bars and warnings of the library off the terminal, unless its user asks for them."""
    from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined] # lazily

    warnings.filterwarnings("ignore", module="huggingface_hub")
    if "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    if not {"HF_HUB_VERBOSITY", "HF_DEBUG"} & os.environ.keys():
        logging.set_verbosity_error()  # type: ignore[no-untyped-call] # of a library


def raise_for_status(response: Any) -> None:  # noqa: ANN401 - of the HTTP client
    """Raise what ``huggingface_hub`` makes of a status of 400 or more, by the headers alone: a body may be endless."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined] # lazily

    if response.status_code >= 400:  # noqa: PLR2004 - HTTP
        response.close()
        hf_raise_for_status(response)


def limit_download(size: int | None) -> type:
    """Return what the library takes for a progress bar, which stops a download at the size that was listed."""

    class Limit:
        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            self._came = initial

        def update(self, number: int = 1) -> None:
            self._came += number
            if size is not None and self._came > size:
                raise AnswerError(f"is longer than the {size:,} bytes listed; was it replaced?")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, _: str) -> Callable[..., None]:
            return lambda *_, **__: None

    return Limit


def without_password(endpoint: str) -> str:
    """Return an address as it may be shown."""
    head, at, host = endpoint.rpartition("@")
    return f"{head.partition('://')[0]}://{host}" if at else endpoint
