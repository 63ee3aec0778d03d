"""``python -m bype`` in a folder of its own for each process: the first words, up to ``--``. Started by torchrun."""

import os
import sys

from bype.cli import main

if __name__ == "__main__":
    end = sys.argv.index("--")
    os.chdir(sys.argv[1:end][int(os.environ["RANK"])])
    sys.exit(main(sys.argv[end + 1 :]))
