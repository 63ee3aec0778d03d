"""``python -m bype`` is the command line."""

import sys

from bype.cli import main

sys.exit(main())
