"""Writing a model for use without torch."""

from dataclasses import dataclass
from pathlib import Path

from bype.cli.options import Force, MaybePath, RunFolder, parse
from bype.cli.output import result


@dataclass(frozen=True)
class _Export:
    run: RunFolder
    out: Path
    """Write encoder.onnx, decoder.onnx, prior.onnx, likelihood.onnx, sampler.onnx and model.json to this new folder"""
    data: MaybePath = None
    """Look here for the store that the run was trained on, if it has moved; only an exemplar prior needs it"""
    force: Force = False


def export(words: list[str]) -> int:
    """Write ONNX files."""
    options = parse(_Export, words, "bype export", "Write ONNX files, which onnxruntime serves without torch.")
    from bype.export.onnx import export_onnx
    from bype.run.opened import TrainedRun

    files = export_onnx(TrainedRun.open(options.run, options.data), options.out, force=options.force)
    size = sum(path.stat().st_size for path in files)
    print(f"{', '.join(path.name for path in files)} in {options.out}, {size / 1e6:.1f} MB")
    result(out=options.out, files=[path.name for path in files], bytes=size)
    return 0
