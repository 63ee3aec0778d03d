"""
Several processes (shown, not run)
==================================

The same training on four processes, or on several machines, is the same command under
PyTorch's launcher::

    bype data prepare fashion-mnist --out store
    torchrun --standalone --nproc-per-node 4 \\
        -m bype train fashion-mnist/vae/bype --data store --out run

Every process takes a part of each batch, so the batch size means the same as with one
process. If the run is killed, the same command resumes it from its newest checkpoint, and
the result is the same to the bit. :doc:`More </scaling/running>`.

The script below does it from Python. Start it with ``torchrun --standalone
--nproc-per-node 4 several_processes.py``.
"""

import bype
from bype.distributed import open_group

with open_group() as group:
    config = bype.TrainingConfig(length="20 epochs", warm_up="10 epochs", batch_size=400)
    outcome = bype.train(config, "store", "run", group=group)
    if group.is_first:
        print(outcome.state, outcome.best)

# %%
# Embedding a large store needs no launcher: its parts are independent, and each job
# takes some of them::
#
#     bype embed run --data big-store --split train --out folder --shard 0/64
