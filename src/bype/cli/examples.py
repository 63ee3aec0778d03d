"""Reading the examples that a user names, and writing examples to files."""

import io
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bype.cli.data import say_findings
from bype.cli.options import UsageError
from bype.system import replaceable

if TYPE_CHECKING:
    from torch import Tensor

    from bype.data.store import Split, Store
    from bype.run.opened import TrainedRun


@contextmanager
def split_of(run: "TrainedRun", data: Path | None, name: str | None) -> "Iterator[tuple[Store, Split]]":
    """Open a split of a store, by default of the run's own; or of a user's data, in a store that is removed at the end.

    If no split is named, it is test, or else validation, or else train; data without splits are all taken.
    """
    from bype.console import progress_bar
    from bype.data.prepare import prepare
    from bype.data.sources import SourceOptions, open_source
    from bype.data.store import is_store

    if data is None or is_store(data):
        store = run.store(data)
        yield store, store.split(name or store.default_split)
        return
    source = open_source(data, SourceOptions(shape=run.data.shape, columns=run.data.columns_to_find()))
    run.require_kind(data, source)
    with _ended_by_signals_as_by_errors(), tempfile.TemporaryDirectory(prefix="bype-") as folder:
        made = Path(folder) / "store"
        with progress_bar("preparing") as progress:
            prepared = prepare(source, made, validation=0, test=0, is_for_training=False, progress=progress)
        say_findings(prepared)
        if name is not None and name not in prepared.manifest.splits:
            raise UsageError(f"{data} has no split {name}; leave out --split")
        store = run.store(made)
        yield store, store.split(name or store.default_split)


@contextmanager
def _ended_by_signals_as_by_errors() -> Iterator[None]:
    """Let a request to end, or a closed terminal, end the command as an error does: nothing is left behind."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signals = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, leave) for number in replaceable(signals)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def named_examples(
    run: "TrainedRun", names: tuple[str, ...], data: Path | None, split: str | None, most: int = 0
) -> "Tensor":
    """Return the examples (n, *data_shape) that a user names, by row number of a split or as image files.

    If none is named, return ``most`` rows that are evenly spread: stores are often sorted by class.
    """
    import numpy as np
    import torch

    from bype.data.examples import StoreSource, as_model_input, spread_rows
    from bype.data.sources.image_files import read_image_file
    from bype.plates import is_image_shape

    chosen = None
    for name in names:
        if re.fullmatch(r"-[0-9]+", name):
            raise UsageError(f"rows are counted from 0; there is no row {name}")
    if not names or any(name.isdecimal() for name in names):
        store = run.store(data)
        chosen = store.split(split or store.default_split)
        names = names or tuple(map(str, spread_rows(len(chosen), most).tolist()))

    def example(name: str) -> "Tensor":
        if chosen is not None and name.isdecimal():
            if int(name) >= len(chosen):
                raise UsageError(
                    f"split {chosen.name} has rows 0 to {len(chosen) - 1}, not {name}; rows of the split are not those "
                    f"of your file: bype score prints both"
                )
            return StoreSource(chosen).read(np.array([int(name)]))[0]
        if not is_image_shape(run.data.shape):
            raise UsageError(f"{name!r} is not a row number; this run was trained on features: name a row of its store")
        if not Path(name).exists():
            raise UsageError(f"there is no file {name!r}; name an image file, or a row number of the split")
        return as_model_input(torch.from_numpy(read_image_file(Path(name), run.data.shape).copy()))

    return torch.stack([example(name) for name in names])


def save_lines(lines: "list[Tensor]", out: Path, shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Write lines of examples, each (n, *shape): a plate as .png, or all examples in order as .npy or .csv.

    A table with ``names`` of its columns begins with a line of them.
    """
    import csv

    import numpy as np

    from bype.data.files import write_atomic
    from bype.plates import is_image_shape, plate, png, to_bytes

    arrays = [line.cpu().numpy() for line in lines]
    content = io.BytesIO()
    if out.suffix == ".png" and is_image_shape(shape):
        content.write(png(plate([to_bytes(line) for line in arrays]), scale=max(1, 96 // shape[-1])))
    elif out.suffix == ".npy":
        np.save(content, np.concatenate(arrays).astype(np.float32))
    elif out.suffix == ".csv" and len(shape) == 1:
        if names:
            head = io.StringIO()
            csv.writer(head, lineterminator="\n").writerow(names)
            content.write(head.getvalue().encode())
        np.savetxt(content, np.concatenate(arrays), delimiter=",", fmt="%.9g")
    else:
        kinds = ".png or .npy" if is_image_shape(shape) else ".csv or .npy" if len(shape) == 1 else ".npy"
        raise UsageError(f"cannot write examples of shape {shape} to {out}; choose a name that ends in {kinds}")
    write_atomic(out, content.getvalue())
