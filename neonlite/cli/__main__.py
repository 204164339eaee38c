"""``python -m neonlite.cli`` is the neonlite command."""

import sys

from neonlite.cli import main

if __name__ == "__main__":
    sys.exit(main())
