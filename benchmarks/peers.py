"""Is another library's VAE better? Train the VAE and the VAMP of pythae on sets of own_data.py.

pythae is no dependency of this project. Give it an environment of its own, and run there::

    python -m venv peers && peers/bin/pip install torch==2.13.0 . && peers/bin/pip install --no-deps pythae==0.1.2
    peers/bin/pip install cloudpickle imageio 'pydantic>=2' scipy tqdm
    peers/bin/python benchmarks/peers.py --images FOLDER --faces FOLDER --minutes 5 --out results/own-data-peers
    python benchmarks/peers.py --out results/own-data-peers --page

``--images`` and ``--faces`` are as in own_data.py. A set is prepared as by ``bype fit``; if its examples are not those
of our record, the script stops. What is the same: the examples, the number of latents and of components, flips and
shifts, batch size, minutes. Minutes are counted in processor time of one thread, so that other work on the machine
takes nothing away.

How a peer is tuned: pythae's loss is half the squared error plus KL. That is Gaussian noise of variance 1, too wide for
pixels in [0, 1], and most latents would stay unused. So the loss gets the variance that fits the validation examples at
that time, unless variance 1 does better. This, then the network (dense or convolutional), then the learning
rate are chosen by short trainings of the VAE, which are not counted. The validation examples decide, by -ELBO with the
variance that suits them best. The same -ELBO decides which step is kept. Then one variance for all pixels is fitted to
the validation examples, and -log p(x) of the test examples is estimated with it: the same pixels, (byte + 0.5) / 256,
the same Gaussian density and the same number of draws as ours.

pythae's trainer is not used, so nothing is saved or loaded, and training can end by the clock.
"""

import argparse
import copy
import dataclasses
import importlib.metadata
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bype.data.augment import Augmentation
from bype.data.examples import StoreSource, spread_rows
from bype.data.prepare import prepare, with_workable_size
from bype.data.sources import SourceOptions
from bype.data.store import Store
from bype.evaluation.representation import knn_accuracy
from bype.likelihoods import PIXEL_RANGE
from measure import commit, head, machine
from own_data import image_sets

SETS = ("photographs", "faces", "clothes-5000")
KINDS = ("VAE", "VAMP")
OURS = Path("results/own-data")
TRIAL_SHARE, VALIDATE_EVERY = 0.2, 0.02
"""The length of a trial, and the time between two looks at the validation examples, as shares of the minutes."""
CHUNK_ROWS, BLOCK_EXAMPLES = 2048, 16
FITTING_DRAWS = 100
Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is chosen on validation examples."""

    variance: float | None = None
    """Of the noise in training; ``None`` for the one that fits the validation examples at that time."""
    network: str = "mlp"
    learning_rate: float = 1e-3


CHOICES: dict[str, tuple[Any, ...]] = {
    "variance": (None, 1.0),
    "network": ("mlp", "conv"),
    "learning_rate": (3e-4, 1e-3, 3e-3),
}


@dataclass(frozen=True, eq=False)
class Draws:
    """What the importance weights of any variance are made of, for K draws of the latents of B examples."""

    squared_error: Tensor
    """(K, B), of the decoder's mean, summed over pixels."""
    log_ratio: Tensor
    """(K, B), log p(z) - log q(z | x)."""
    num_pixels: int

    def log_weights(self, variance: float) -> Tensor:
        """Return log p(x, z) - log q(z | x), (K, B)."""
        noise = self.squared_error / variance + self.num_pixels * math.log(2 * math.pi * variance)
        return self.log_ratio - 0.5 * noise

    def log_likelihood(self, variance: float) -> Tensor:
        """Return the importance-weighted estimate of log p(x), (B,)."""
        return self.log_weights(variance).logsumexp(0) - math.log(len(self.log_ratio))

    @property
    def error_of_a_pixel(self) -> float:
        """The mean squared error of a pixel, which is the variance with the largest ELBO."""
        return float(self.squared_error.mean()) / self.num_pixels

    def negative_elbo(self) -> float:
        """Return -ELBO with the variance that makes it smallest."""
        return -float(self.log_weights(self.error_of_a_pixel).mean())

    def best_variance(self) -> float:
        """Return the variance with the largest likelihood, to within one percent."""
        tried = (self.error_of_a_pixel * np.geomspace(0.05, 2, 400)).tolist()
        return max(tried, key=lambda variance: float(self.log_likelihood(variance).mean()))


@torch.no_grad()
def draw(model: Any, x: Tensor, count: int, seed: int = 0) -> Draws:
    """Draw latents of examples (B, *shape) from the encoder's posterior, and decode them."""
    generator = torch.Generator().manual_seed(seed)
    model.eval()
    errors, ratios = [], []
    per_block = BLOCK_EXAMPLES if count > 1 else len(x)
    for block in torch.split(x, per_block):
        encoded = model.encoder(block)
        mean, log_variance = encoded.embedding, encoded.log_covariance
        step = max(1, CHUNK_ROWS // len(block))
        found: list[tuple[Tensor, Tensor]] = []
        for first in range(0, count, step):
            noise = torch.randn(min(step, count - first), *mean.shape, generator=generator, dtype=mean.dtype)
            z = mean + noise * (0.5 * log_variance).exp()
            log_posterior = -0.5 * (log_variance + noise.square()).sum(-1)
            log_prior = model.log_prior(z.flatten(0, 1)).reshape(log_posterior.shape)
            made = model.decoder(z.flatten(0, 1)).reconstruction.clamp(*PIXEL_RANGE)
            error = (made.reshape(len(z), *block.shape) - block).square().flatten(2).sum(-1)
            found.append((error, log_prior - log_posterior))
        errors.append(torch.cat([error for error, _ in found]).double())
        ratios.append(torch.cat([ratio for _, ratio in found]).double())
    return Draws(torch.cat(errors, 1), torch.cat(ratios, 1), math.prod(x.shape[1:]))


@dataclass(frozen=True, eq=False)
class Trained:
    """A model at its best step, and how it got there."""

    model: Any
    negative_elbo: float
    """Of the validation examples."""
    kept_step: int
    steps: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Data:
    """The examples of a set, and what our run chose for it."""

    train: Tensor
    validation: Tensor
    augmentation: Augmentation
    latent_dim: int
    components: int
    batch_size: int


def train(kind: str, setting: Setting, data: Data, seconds: float, seed: int) -> Trained:
    """Train for some seconds of processor time, the learning rate falling to zero, and keep the best step."""
    from pythae_models import build

    torch.manual_seed(seed)
    pseudo_inputs = data.train[torch.from_numpy(spread_rows(len(data.train), data.components))]
    model = build(kind, setting.network, data.latent_dim, pseudo_inputs)
    model.noise_variance = setting.variance or draw(model, data.validation, 1).error_of_a_pixel
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.learning_rate)
    best = Trained(copy.deepcopy(model), math.inf, 0, 0, 0.0)
    order, step, start, looked = torch.empty(0, dtype=torch.int64), 0, time.process_time(), 0.0
    while (share := (time.process_time() - start) / seconds) < 1:
        if len(order) == 0:
            order = torch.randperm(len(data.train))
        rows, order = order[: data.batch_size], order[data.batch_size :]
        x = data.augmentation(data.train[rows], torch.rand(len(rows), 3))
        optimizer.param_groups[0]["lr"] = setting.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
        model.train()
        loss = model({"data": x}).loss
        if not bool(torch.isfinite(loss)):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        used = (time.process_time() - start) / seconds
        if used - looked >= VALIDATE_EVERY or used >= 1:
            looked = used
            held_out = draw(model, data.validation, 1)
            model.noise_variance = setting.variance or held_out.error_of_a_pixel
            if (value := held_out.negative_elbo()) < best.negative_elbo:
                best = Trained(copy.deepcopy(model), value, step, 0, 0.0)
    return dataclasses.replace(best, steps=step, seconds=time.process_time() - start)


def choose(data: Data, seconds: float, seed: int) -> tuple[Setting, list[Record]]:
    """Choose a setting by short trainings of the VAE, one choice after the other."""
    tried: dict[Setting, float] = {}

    def score(setting: Setting) -> float:
        if setting not in tried:
            tried[setting] = train("VAE", setting, data, seconds, seed).negative_elbo
            print(f"  {setting}: {tried[setting]:,.1f}", flush=True)
        return tried[setting]

    best = Setting()
    for name, values in CHOICES.items():
        best = min((dataclasses.replace(best, **{name: value}) for value in values), key=score)
    trials = [{**dataclasses.asdict(setting), "negative_elbo": round(value, 2)} for setting, value in tried.items()]
    return best, trials


def means(model: Any, x: Tensor) -> Tensor:
    """Return the latent means."""
    with torch.no_grad():
        return torch.cat([model.eval().encoder(chunk).embedding for chunk in torch.split(x, CHUNK_ROWS)])


def measure(trained: Trained, data: Data, store: Store, ours: Record) -> Record:
    """Score a peer on the test examples on which ours was scored."""
    model, density = trained.model, ours["evaluation"]["density"]
    split = store.split("test")
    rows = spread_rows(len(split), density["num_images"])
    x = StoreSource(split).read(rows)
    variance = draw(model, data.validation[:500], FITTING_DRAWS).best_variance()
    draws = draw(model, x, density["num_samples"])
    scores = draws.log_likelihood(variance)
    sizes = 1 / draws.log_weights(variance).softmax(0).square().sum(0)
    with torch.no_grad():
        chunks = torch.split(means(model, x), CHUNK_ROWS)
        made = torch.cat([model.decoder(chunk).reconstruction for chunk in chunks]).clamp(*PIXEL_RANGE)
    accuracy = None
    if split.has_labels:
        known = [store.split(name) for name in ("train", "validation")]
        labels = np.concatenate([part.labels(np.arange(len(part))) for part in known])
        references = means(model, torch.cat([data.train, data.validation])).numpy()
        accuracy = knn_accuracy(references, labels, means(model, x).numpy(), split.labels(rows))["5"]
    return {
        "num_images": len(x),
        "num_samples": density["num_samples"],
        "variance": variance,
        "negative_log_likelihood": {
            "value": -float(scores.mean()),
            "error": float(scores.std() / math.sqrt(len(scores))),
        },
        "negative_elbo": -float(draws.log_weights(variance).mean()),
        "kl": -float(draws.log_ratio.mean()),
        "median_effective_sample_size": float(sizes.median()),
        "knn_accuracy": accuracy,
        "squared_error": float((made - x).square().flatten(1).sum(1).mean()),
    }


def record_file(out: Path, name: str, kind: str, seed: int) -> Path:
    """Return where a record is kept."""
    return out / f"{name}-{kind.lower()}-{seed}.json"


def run(name: str, folder: Path, ours: Record, minutes: float, out: Path) -> None:
    """Prepare a set as ``bype fit`` does, choose a setting, train both models, and keep the records."""
    seed, config = ours["seed"], ours["config"]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) / "store"
        prepare(folder, place, with_workable_size(folder, SourceOptions())[0], seed=seed)
        store = Store(place)
        if store.manifest.fingerprint != ours["data"]["fingerprint"]:
            raise SystemExit(f"{name}: these are not the examples of our record; give the folders it was made from")
        read = {key: StoreSource(store.split(key)) for key in ("train", "validation")}
        x = {key: source.read(np.arange(len(source))) for key, source in read.items()}
        augmentation = Augmentation(config["flips"], config["shifts"])
        data = Data(
            **x, augmentation=augmentation, latent_dim=config["latent_dim"], components=config["components"],
            batch_size=config["batch_size"],
        )  # fmt: skip
        files = {kind: record_file(out, name, kind, seed) for kind in KINDS}
        if known := [json.loads(file.read_text()) for file in files.values() if file.exists()]:
            setting, trials = Setting(**known[0]["setting"]), known[0]["trials"]
        else:
            setting, trials = choose(data, 60 * minutes * TRIAL_SHARE, seed)
        for kind, file in files.items():
            if file.exists():
                continue
            start = time.monotonic()
            trained = train(kind, setting, data, 60 * minutes, seed)
            record = {
                "set": name,
                "model": kind,
                "seed": seed,
                "minutes": minutes,
                "processor_seconds": round(trained.seconds, 1),
                "seconds": round(time.monotonic() - start, 1),
                "commit": commit(),
                "machine": {"platform": platform.platform(), "versions": machine()},
                "pythae": importlib.metadata.version("pythae"),
                "data": {"fingerprint": store.manifest.fingerprint},
                "latent_dim": data.latent_dim,
                "components": data.components if kind == "VAMP" else None,
                "augmentation": dataclasses.asdict(augmentation),
                "setting": dataclasses.asdict(setting),
                "trials": trials,
                "steps": trained.steps,
                "kept_step": trained.kept_step,
                "validation_negative_elbo": trained.negative_elbo,
                "test": measure(trained, data, store, ours),
            }
            out.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record, indent=1) + "\n")
            print(f"{name} {kind}: {record['test']}", flush=True)


def pages(out: Path, ours_folder: Path) -> Iterator[str]:
    """Print the table of docs/results/own-data.md from the records."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    yield from head(
        "images", "seed", "model", "−log p(x)", "its error", "kNN (K = 5), %", "squared error", "steps", "step kept",
        "network", "variance in training", "learning rate",
    )  # fmt: skip
    for name, seed in sorted({(record["set"], record["seed"]) for record in records}):
        ours = json.loads((ours_folder / f"{name}-{seed}.json").read_text())
        found = ours["evaluation"]
        measured = {
            "negative_log_likelihood": found["density"]["negative_log_likelihood"],
            "knn_accuracy": found["representation"]["knn_accuracy"]["5"],
            "squared_error": found["baseline"]["own_squared_error"],
        }
        last = ["", f"{ours['step']:,}", "dense", "learned", f"{ours['config']['learning_rate']:g}"]
        yield _line(name, seed, "ours", measured, last)
        for record in records:
            if (record["set"], record["seed"]) == (name, seed):
                chosen = record["setting"]
                last = [f"{record['steps']:,}", f"{record['kept_step']:,}", chosen["network"]]
                last += [
                    "fitted" if chosen["variance"] is None else f"{chosen['variance']:g}",
                    f"{chosen['learning_rate']:g}",
                ]
                yield _line(name, seed, f"pythae's {record['model']}", record["test"], last)


def _line(name: str, seed: int, model: str, found: Record, last: list[str]) -> str:
    nats = found["negative_log_likelihood"]
    first = [name, str(seed), model, f"{nats['value']:,.1f}", f"{nats['error']:,.1f}"]
    first += [f"{100 * found['knn_accuracy']:.1f}", f"{found['squared_error']:.2f}"]
    return f"| {' | '.join([*first, *last])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="the folder with fashion-mnist and cifar10")
    parser.add_argument("--faces", type=Path, help="a folder of faces")
    parser.add_argument("--ours", type=Path, default=OURS, help="read our records from this folder")
    parser.add_argument("--out", type=Path, required=True, help="write records to this folder; what is there is kept")
    parser.add_argument("--seed", type=int, default=0, help="take our records of this seed")
    parser.add_argument("--minutes", type=float, default=2.5, help="train each model for so long")
    parser.add_argument("--only", default="", help="run sets whose name contains this")
    parser.add_argument("--page", action="store_true", help="print the table of the page and stop")
    options = parser.parse_args()
    if options.page:
        print("\n".join(pages(options.out, options.ours)))
        return 0
    torch.set_num_threads(1)
    for name, make in image_sets(options.images, options.faces).items():
        done = all(record_file(options.out, name, kind, options.seed).exists() for kind in KINDS)
        if name not in SETS or options.only not in name or done:
            continue
        ours = json.loads((options.ours / f"{name}-{options.seed}.json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            run(name, make(Path(folder) / name), ours, options.minutes, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
