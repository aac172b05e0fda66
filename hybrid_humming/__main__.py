"""`python -m hybrid_humming` is the command `hybrid-humming`."""

import sys

from hybrid_humming.cli import main

if __name__ == "__main__":
    sys.exit(main())
