"""A run as ONNX files, which onnxruntime serves without torch."""

import copy
import dataclasses
import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bype.data.files import FileError, new_folder, read_json, to_json, write_synced
from bype.data.manifest import PIXELS
from bype.data.sources.base import require_package
from bype.export.graphs import Graph, Port, graphs_of
from bype.run.opened import TrainedRun, require_run

FORMAT = "bype-onnx"
FORMAT_VERSION = 1
_ROWS = 2
"""Of the examples that a graph is traced with; a single row could be taken for a constant."""


@torch.no_grad()
def export_onnx(run: TrainedRun, out: Path | str, *, force: bool = False) -> list[Path]:
    """Write a run's encoder, decoder, prior, likelihood and sampler as ONNX files to a new folder.

    ``model.json`` in the folder says what goes in and out of each file. The first dimension of every input is the
    batch, of any size. Components of the prior are constants in the files, so neither the run nor its data are needed
    any more. The folder appears when it is complete.

    Parameters
    ----------
    run
        The run.
    out
        The folder; it must not exist yet.
    force
        Replace the folder if it holds an export, and nothing else.

    Returns
    -------
    list of Path
        The files.
    """
    require_run(run)
    require_package("onnxscript")
    out = Path(out)
    _require_free(out, force)
    if run.model.device.type != "cpu":  # the graphs are traced on the CPU
        run = dataclasses.replace(run, model=copy.deepcopy(run.model).cpu())
    graphs = graphs_of(run.model, run.model.prior_distribution(), run.config.latent_dim)
    files = {f"{name}.onnx": to_onnx(graph) for name, graph in graphs.items()}
    files["model.json"] = to_json(_description(run, graphs, files))
    _require_free(out, force)
    with new_folder(out, replace=() if force else None) as partial:
        for name, content in files.items():
            write_synced(partial / name, content)
    return [out / name for name in files]


def to_onnx(graph: Graph) -> bytes:
    """Return the ONNX file of a graph, with a batch of any size."""
    batch = torch.export.Dim("batch", max=2**31 - 1)  # torch 2.6 does not take the largest integer
    with warnings.catch_warnings(), _silent(logging.getLogger("torch.onnx")):
        warnings.simplefilter("ignore")  # the exporter's own, on its future and on operators that no model here has
        program = torch.onnx.export(
            graph.module,
            (tuple(port.example(_ROWS) for port in graph.inputs),),
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            dynamic_shapes=(tuple({0: batch} for _ in graph.inputs),),
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("this version of torch has no exporter to ONNX; take torch 2.6 or later")
    for node in program.model.graph:
        node.metadata_props.clear()  # lines of source code with their paths
    proto = program.model_proto
    for port in (*proto.graph.input, *proto.graph.output):
        port.type.tensor_type.shape.dim[0].dim_param = "batch"  # torch 2.6 gives it a name of its own
    return proto.SerializeToString()


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _require_free(out: Path, force: bool) -> None:
    """Refuse a place where something is, unless it is an export that may be replaced."""
    if not out.exists():
        return
    if not _is_export(out):
        raise FileError(f"{out} exists and holds no export; choose another folder")
    if not force:
        raise FileError(
            f"{out} holds an export already; choose another folder, or replace it with --force (in Python: force=True)"
        )


def _is_export(folder: Path) -> bool:
    path = folder / "model.json"
    content = read_json(path) if path.is_file() else None
    return isinstance(content, dict) and content.get("format") == FORMAT


def _description(run: TrainedRun, graphs: dict[str, Graph], files: dict[str, bytes]) -> dict[str, Any]:
    """Return the content of model.json."""
    data = run.data
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "bype": metadata.version("bype"),
        "model": run.fingerprint,
        "step": run.step,
        "data": data.source,
        "data_shape": data.shape,
        "data_dtype": data.dtype,
        "from_bytes": "(byte + 0.5) / 256" if data.dtype in PIXELS else None,
        "columns": data.names,
        "latent_dim": run.config.latent_dim,
        "log_likelihood_is": run.model.likelihood.value_kind,
        "files": {
            f"{name}.onnx": {
                "does": graph.text,
                "sha256": hashlib.sha256(files[f"{name}.onnx"]).hexdigest(),
                "inputs": [_port(port) for port in graph.inputs],
                "outputs": [_port(port) for port in graph.outputs],
            }
            for name, graph in graphs.items()
        },
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "shape": ["batch", *port.shape], "dtype": port.dtype, "is": port.text}
