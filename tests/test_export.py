"""Exported files against the library, for every network and every prior, and where there is no torch."""

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bype
from bype.cli import main
from bype.data.examples import StoreSource
from bype.data.files import FileError
from bype.data.scaling import Scaling
from bype.data.sources.base import SourceError
from bype.export import onnx as exporting
from bype.export.graphs import Graph, Port, graphs_of
from bype.models import LatentModel, dense_vae

pytest.importorskip("onnxscript", reason="needs onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

D = 3
IMAGE = (1, 8, 8)
GUIDE = Path(__file__).parent.parent / "docs" / "guide" / "deployment.md"
OUTPUT = {"rtol": 1e-5, "atol": 1e-5}  # the promise; both sides compute in float32, in another order
NATS = {"rtol": 0, "atol": 1e-3}  # the promise for sums over dimensions and components


@pytest.fixture(scope="module", autouse=True)
def one_registry() -> Iterator[None]:
    """Let the exporter list its operators once: it would do so for every file, in half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
        registry = registration.ONNXRegistry
        patch.setattr(registry, "from_torchlib", staticmethod(functools.cache(registry.from_torchlib)))
        yield


def images(count: int) -> Tensor:
    return torch.rand(count, *IMAGE, generator=torch.Generator().manual_seed(count))


def pseudocoreset() -> bype.Pseudocoreset:
    weights = torch.tensor([1.0, 4.0, 0.0, 2.0, 3.0])  # one of them counts for nothing
    return bype.Pseudocoreset(images(5), total=10, weights=weights)


PRIORS = {
    "gaussian": lambda: bype.GaussianPrior(D),
    "vamp": lambda: bype.VampPrior(images(6)),
    "exemplar": lambda: bype.ExemplarPrior(bype.TensorSource(images(20)), num_exemplars=10),
    "nearest exemplar": lambda: bype.NearestExemplarPrior(bype.TensorSource(images(20)), 10, D, num_neighbours=3),
    "pseudocoreset": lambda: bype.PseudocoresetPrior(pseudocoreset()),
    "joint": lambda: bype.JointPseudocoresetPrior(pseudocoreset()),
    "tracked": lambda: bype.TrackedPseudocoresetPrior(pseudocoreset(), D, 2),
}


def table_model() -> LatentModel:
    """The network of ``bype fit``, with a linear path and with columns in units of their own."""
    points = bype.Pseudocoreset(torch.randn(4, 5), total=9, data_range=None)
    likelihood = bype.LearnedGaussian(5, mean_range=None)
    model = dense_vae((5,), bype.PseudocoresetPrior(points), likelihood, latent_dim=D, hidden=8)
    model.scaling = Scaling(5)
    model.scaling.fit(lambda: [torch.randn(50, 5) * torch.tensor([1.0, 10.0, 0.1, 3.0, 7.0]) + 5])
    return model


NETWORKS = {
    "vae": lambda: bype.mlp_vae(IMAGE, PRIORS["vamp"](), bype.Bernoulli(), D, 8),
    "dense": table_model,
    "hvae": lambda: bype.mlp_hvae(IMAGE, PRIORS["pseudocoreset"](), None, D, 8),
    "convhvae": lambda: bype.conv_hvae(IMAGE, PRIORS["gaussian"](), bype.DiscretisedLogistic(), D, 8),
    "residual": lambda: bype.residual_vae(IMAGE, PRIORS["exemplar"](), bype.LearnedGaussian(), D),
}


def frozen(model: LatentModel) -> LatentModel:
    """Return the model as an opened run has it; weights that start at zero are moved away from it."""
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    for buffer in (b for name, b in model.named_buffers() if name.endswith(("projection", "loadings"))):
        nn.init.normal_(buffer, std=0.3)
    return model.requires_grad_(False)


class Together(nn.Module):
    """Several graphs as one, since tracing takes most of the time."""

    def __init__(self, graphs: list[Graph], inputs: tuple[Port, ...]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(graph.module for graph in graphs)
        self.names = [[port.name for port in graph.inputs] for graph in graphs]
        self.inputs = [port.name for port in inputs]

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        known = dict(zip(self.inputs, inputs, strict=True))
        found = [part(tuple(known[name] for name in names)) for part, names in zip(self.parts, self.names, strict=True)]
        return tuple(value for values in found for value in (values if isinstance(values, tuple) else (values,)))


def run_together(graphs: list[Graph], known: dict[str, Tensor]) -> list[Tensor]:
    """Export graphs as one file, and run it with onnxruntime."""
    inputs = tuple({port.name: port for graph in graphs for port in graph.inputs}.values())
    outputs = [port for graph in graphs for port in graph.outputs]
    ports = tuple(Port(f"{number}_{port.name}", port.shape, "") for number, port in enumerate(outputs))
    session = onnxruntime.InferenceSession(exporting.to_onnx(Graph(Together(graphs, inputs), "", inputs, ports)))
    found = session.run(None, {port.name: known[port.name].numpy() for port in inputs})
    return [torch.from_numpy(value) for value in found]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network(network, monkeypatch):
    monkeypatch.setattr("bype.networks.residual._NUM_BLOCKS", 1)  # more of the same would only take time
    torch.manual_seed(0)
    model, count = frozen(NETWORKS[network]()), 7
    x = model.to_data_units(torch.randn(count, 5)) if network == "dense" else images(count)
    prior = model.prior_distribution()
    graphs = graphs_of(model, prior, D)

    # The library draws in this order: the component, the top level, the level below.
    draws = torch.Generator().manual_seed(1)
    mixed = not isinstance(model.prior, bype.GaussianPrior)
    uniform = torch.rand(count, dtype=torch.float64, generator=draws if mixed else None)
    is_table = len(model.data_shape) == 1
    noise, lower = (torch.randn(count, size, generator=draws) for size in (D, 5 if is_table else D))
    posterior = model.encode(model.to_model_units(x))
    z = posterior.mean + noise * torch.exp(posterior.log_variance / 2)
    known = {"examples": x, "latents": z, "uniform": uniform, "noise": noise, "noise_z1": lower, "noise_x": lower}
    mean, log_variance, embedding, decoded, log_prior, log_x, new = run_together(list(graphs.values()), known)

    torch.testing.assert_close(mean, posterior.mean, **OUTPUT)
    torch.testing.assert_close(embedding, bype.embed(model, x), **OUTPUT)
    torch.testing.assert_close(log_variance, posterior.log_variance, **OUTPUT)
    torch.testing.assert_close(log_prior, prior.log_prob(z), **NATS)
    expected = bype.sample(model, count, prior=prior, generator=torch.Generator().manual_seed(1))  # rows with noise
    torch.testing.assert_close(new, expected, **OUTPUT)
    # A bound of one draw is its log weight. It draws the top level first.
    draws.manual_seed(1)
    if mixed:
        torch.rand(count, dtype=torch.float64, generator=draws)
    bound = bype.importance_weighted_bound(model, x, 1, prior=prior, generator=draws)
    log_q = -0.5 * (noise.square() + log_variance + np.log(2 * np.pi)).sum(1)
    torch.testing.assert_close((log_x + log_prior - log_q).double(), bound.log_likelihood, rtol=1e-5, atol=1e-3)
    if len(model.levels) == 1:  # then decoding has no noise
        output = model.likelihood.mean(model.decode(z))
        torch.testing.assert_close(decoded, model.to_data_units(model.unflatten(output)), **OUTPUT)


def test_every_prior():
    torch.manual_seed(0)
    known = {"latents": torch.randn(9, D), "uniform": torch.rand(9, dtype=torch.float64), "noise": torch.randn(9, D)}
    graphs, expected = [], []
    for prior in PRIORS.values():
        model = frozen(bype.mlp_vae(IMAGE, prior(), None, D, 8))
        distribution = model.prior_distribution()
        found = graphs_of(model, distribution, D)
        graphs += [found["prior"], found["sampler"]]
        expected.append((model, distribution))
    outputs = run_together(graphs, known)
    for number, (model, distribution) in enumerate(expected):
        log_prior, new = outputs[2 * number : 2 * number + 2]
        torch.testing.assert_close(log_prior, distribution.log_prob(known["latents"]), **NATS)
        z = known["noise"]
        if not isinstance(model.prior, bype.GaussianPrior):  # by the definition of a draw
            ends = np.cumsum(distribution.log_weights.double().exp().numpy())
            chosen = [next(m for m, end in enumerate(ends) if end > u * ends[-1]) for u in known["uniform"].tolist()]
            component = distribution.component(torch.tensor(chosen))
            z = component.mean + z * torch.exp(component.log_variance / 2)
        torch.testing.assert_close(new, model.unflatten(model.likelihood.mean(model.decode(z))), **OUTPUT)


def test_narrow_components_far_from_the_origin():
    """In float32, squares of these latents would cost whole nats."""
    model = frozen(bype.mlp_vae(IMAGE, bype.GaussianPrior(D), None, D, 8))
    means = 300 + torch.randn(4, D, generator=torch.Generator().manual_seed(0))
    mixture = bype.mixtures.NormalMixture(means, torch.tensor(-8.0), torch.zeros(4))
    z = means + 0.02
    density = graphs_of(model, mixture, D)["prior"].module
    squares = (z.double()[:, None] - means.double()).square().sum(2) * np.exp(8.0)
    log_peak = -0.5 * D * (np.log(2 * np.pi) - 8.0) - np.log(4)
    torch.testing.assert_close(density((z,)), torch.logsumexp(log_peak - 0.5 * squares, 1).float(), **NATS)


@pytest.fixture(scope="module")
def served(trained_gaussian: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two levels, exported by the command."""
    folder = tmp_path_factory.mktemp("served")
    assert main(["export", str(trained_gaussian), "--out", str(folder / "model")]) == 0
    return folder


def test_the_files_are_what_the_description_says(served):
    described = json.loads((served / "model" / "model.json").read_text())
    names = sorted(path.name for path in (served / "model").iterdir())
    assert names == sorted([*described["files"], "model.json"])
    for name, file in described["files"].items():
        content = (served / "model" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert b".py" not in content, "the exporter leaves paths of source files"
        session = onnxruntime.InferenceSession(content)
        for ports, said in ((session.get_inputs(), file["inputs"]), (session.get_outputs(), file["outputs"])):
            kinds = {"tensor(float)": "float32", "tensor(double)": "float64"}
            assert [(p.name, p.shape, kinds[p.type]) for p in ports] == [
                (port["name"], port["shape"], port["dtype"]) for port in said
            ]
        for rows in (1, 4):
            given = {p["name"]: np.zeros((rows, *p["shape"][1:]), p["dtype"]) for p in file["inputs"]}
            for value, port in zip(session.run(None, given), file["outputs"], strict=True):
                assert value.shape == (rows, *port["shape"][1:])


def test_the_example_of_the_guide_needs_no_torch(served, trained_gaussian, tmp_path):
    run = bype.TrainedRun.open(trained_gaussian)
    x = StoreSource(run.store().split("test")).read(np.arange(5))
    np.save(tmp_path / "x.npy", x.numpy())
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    without = "import sys; sys.modules['torch'] = None; sys.modules['bype'] = None\n"
    (tmp_path / "deployment.py").write_text(without + script)
    command = [sys.executable, "deployment.py", str(served / "model"), "x.npy"]
    subprocess.run(command, check=True, cwd=tmp_path, env=dict(os.environ), timeout=300)
    found = np.load(tmp_path / "served.npz")
    np.testing.assert_allclose(found["embedding"], bype.embed(run.model, x).numpy(), **OUTPUT)
    # The script has its own draws: its estimates must be among those that the library makes of a hundred draws.
    noise = torch.Generator().manual_seed(0)
    bounds = [bype.importance_weighted_bound(run.model, x, 100, generator=noise).log_likelihood for _ in range(50)]
    spread, middle = torch.std_mean(torch.stack(bounds), 0)
    assert ((torch.from_numpy(found["log_likelihood"]) - middle).abs() < 5 * spread).all()
    assert found["new"].shape == (16, 1, 12, 12)
    assert found["new"].std() > 0.01


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "to_onnx", lambda graph: graph.text.encode())


@pytest.mark.usefixtures("quick")
def test_nothing_is_overwritten(trained_bype, tmp_path):
    run, out = bype.TrainedRun.open(trained_bype), tmp_path / "model"
    assert [path.parent for path in bype.export_onnx(run, out)] == [out] * 6
    before = (out / "model.json").stat().st_mtime_ns
    with pytest.raises(FileError, match="--force"):
        bype.export_onnx(run, out)
    assert (out / "model.json").stat().st_mtime_ns == before
    assert main(["export", str(trained_bype), "--out", str(out), "--force"]) == 0
    assert (out / "model.json").stat().st_mtime_ns != before
    (out / "notes.md").write_text("mine")
    with pytest.raises(FileError, match=r"also holds notes\.md"):
        bype.export_onnx(run, out, force=True)
    assert (out / "notes.md").read_text() == "mine"
    (out / "notes.md").rename(out / "mine.onnx")  # its ending does not make it ours
    with pytest.raises(FileError, match=r"also holds mine\.onnx"):
        bype.export_onnx(run, out, force=True)
    assert (out / "mine.onnx").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(FileError, match="holds no export"):
        bype.export_onnx(run, other, force=True)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]


@pytest.mark.usefixtures("quick")
def test_a_failure_leaves_the_old_export(trained_bype, tmp_path, monkeypatch):
    run, out = bype.TrainedRun.open(trained_bype), tmp_path / "model"
    bype.export_onnx(run, out)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_synced", full)
    with pytest.raises(OSError, match="No space"):
        bype.export_onnx(run, out, force=True)
    assert len(list(out.iterdir())) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_missing_extra_says_how_to_install_it(trained_bype, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SourceError, match="pip install onnxscript"):
        bype.export_onnx(bype.TrainedRun.open(trained_bype), tmp_path / "model")
    assert not (tmp_path / "model").exists()
