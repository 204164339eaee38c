"""The logger of neonlite, with neon's level DISPLAY."""

import logging
from typing import Any

DISPLAY = 41  # above ERROR, so that messages are shown without a configuration of logging


class DisplayLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger "neonlite" of the standard library, with neon's method ``display``."""

    def display(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message that is shown by default.

        Parameters
        ----------
        msg : str
            The message, or its format.
        *args
            The values of the format.
        **kwargs
            Passed to ``logging.Logger.log``.
        """
        self.log(DISPLAY, msg, *args, **kwargs)


logging.addLevelName(DISPLAY, "DISPLAY")
logger = DisplayLogger(logging.getLogger("neonlite"), {})
