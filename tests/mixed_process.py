"""``python -m bype`` where process 1 computes as an older processor would. Started by torchrun.

The first word is what process 1 is limited to, as PyTorch names it: ``avx2``, or ``default`` for no vector unit at all.
"""

import os
import sys

if os.environ.get("RANK") == "1":
    limit = sys.argv[1]
    os.environ["ATEN_CPU_CAPABILITY"] = limit
    if limit == "avx2":
        os.environ["MKL_ENABLE_INSTRUCTIONS"] = os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

from bype.cli import main  # PyTorch reads the environment when it is loaded

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
