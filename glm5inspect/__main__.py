# SPDX-License-Identifier: AGPL-3.0-only
"""The way in: run the command line, and let nothing but a bug of our own end in a traceback."""

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and exit with its code; see `glm5inspect.options.Exit`."""
    try:
        from glm5inspect.cli import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    # The answer is given; an interrupt while Python puts itself away would only add a traceback to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
