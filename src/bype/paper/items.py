"""Every table and figure of the paper, and one table more: which cells it consists of, and what is taken from each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bype.paper import published
from bype.paper.cells import DATA_LABELS, LABELS, NETWORK_LABELS, Cell
from bype.paper.published import Number

Measure = Literal["nll", "kl", "seconds", "error", "knn", "map", "curve", "plates", "sample", "interpolate"]


@dataclass(frozen=True)
class Classifier:
    """A classifier trained with generated examples; with a share of 1, on real ones alone."""

    way: Literal["posterior", "prior", "shifts"]
    real_share: float = 0.4


@dataclass(frozen=True)
class Line:
    """A number of a table, or a part of a figure."""

    labels: tuple[str, ...]
    cell: Cell
    """With seed 0; there is one for each seed."""
    measure: Measure
    published: Number | None = None
    classifier: Classifier | None = None
    """What the measure ``error`` is of."""


@dataclass(frozen=True)
class Item:
    """A table or a figure."""

    name: str
    title: str
    heads: tuple[str, ...]
    """What the labels of the lines are."""
    lines: tuple[Line, ...]
    note: str = ""

    @property
    def is_table(self) -> bool:
        """Whether this is a table."""
        return not self.name.startswith("figure")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells, with seed 0."""
        return tuple(dict.fromkeys(line.cell for line in self.lines))


_IMAGES = ("mnist", "fashion-mnist", "cifar10")
_PRIORS = ("gaussian", "vamp", "exemplar", "bype")
_OURS = ("ours-500", "ours-5000")
_OTHER_TRAINING = ("gaussian-decay", "gaussian-average", "vamp-average", "ours-500-average", "ours-5000-average")
_OWN = " Rows without a number of the paper are not in the paper."
_SIMPLEST = (
    " Two rows need no model. They are what generated examples have to beat: the same classifier on the real images "
    "alone (λ = 1), and on real images that are shifted by up to 2 pixels, anew in each step. Shifts use how pixels "
    "lie beside each other, which the paper's classifiers do not know."
)


def _labels(cell: Cell) -> tuple[str, ...]:
    return DATA_LABELS[cell.data], NETWORK_LABELS[cell.network], LABELS[cell.prior]


_NONE, _SHIFTS = Classifier("prior", 1.0), Classifier("shifts", 0.0)
"""Classifiers without a model."""


def _part(data: str, network: str, prior: str, measure: Measure) -> Line:
    cell = Cell(data, network, prior)
    return Line(_labels(cell), cell, measure)


def _density() -> Item:
    lines = [
        Line(_labels(cell), cell, "nll", published.DENSITY.get((data, network, prior)))
        for data in _IMAGES
        for network in ("vae", "hvae", "convhvae")
        for prior in (*_PRIORS, *_OURS, *(_OTHER_TRAINING if network == "vae" else ()))
        for cell in (Cell(data, network, prior),)
    ]
    note = (
        "Nats on the paper's scale." + _OWN + " *Averaged*: the model is averaged over about the last 2% of the steps, "
        "and the VampPrior starts at training images. *Decaying rate*: plain Adam with a learning rate that falls "
        "from 0.001 to 0 along half a cosine over 200 epochs, KL warm-up over 20, and no early stop."
    )
    title = "Density estimation: negative log-likelihood by data set, network and prior"
    return Item("table1", title, ("data", "network", "prior"), tuple(lines), note)


def _speed() -> Item:
    lines = []
    for data in _IMAGES:
        for prior in ("bype", "vamp", "exemplar-25000", "ours-500"):
            cell = Cell(data, "vae", prior)
            printed = published.SPEED.get((data, prior))
            likelihood, seconds = (None, None) if printed is None else map(Number, printed)
            lines += [
                Line((DATA_LABELS[data], LABELS[prior], "negative log-likelihood"), cell, "nll", likelihood),
                Line((DATA_LABELS[data], LABELS[prior], "seconds for an epoch"), cell, "seconds", seconds),
            ]
    note = (
        "The paper's seconds are of a GPU (1080 Ti), ours of a CPU that may have been busy, with one thread or more: "
        "do not compare them. `benchmarks/README.md` has careful timings. Seconds are of full runs only, since reduced "
        "ones have other batches." + _OWN
    )
    title = "Speed: negative log-likelihood and seconds for an epoch of training"
    return Item("table2", title, ("data", "prior", "what"), tuple(lines), note)


def _augmentation(name: str, datas: tuple[str, ...]) -> Item:
    pairs = [(prior, "posterior") for prior in _PRIORS] + [("exemplar", "prior"), ("bype", "prior")]
    lines = []
    for data in datas:
        for alone, classifier in (("none", _NONE), ("shifts", _SHIFTS)):
            labels = DATA_LABELS[data], LABELS[alone], ""
            lines.append(Line(labels, Cell(data, "classifier", alone), "error", None, classifier))
        for prior, way in (*pairs, ("ours-500", "posterior"), ("ours-500", "prior")):
            cell, number = Cell(data, "vae", prior), published.AUGMENTATION.get((data, prior, way))
            classifier = Classifier("prior" if way == "prior" else "posterior")
            lines.append(Line((DATA_LABELS[data], LABELS[prior], way), cell, "error", number, classifier))
    where = " and ".join(DATA_LABELS[data] for data in datas)
    title = f"Augmentation: test error of a classifier on {where}"
    note = "Percent, at λ = 0.4, one classifier for each trained model." + _OWN + _SIMPLEST
    return Item(name, title, ("data", "prior", "latents from the"), tuple(lines), note)


def _celeba() -> Item:
    cells = [Cell("celeba", "residual", prior) for prior in (*_PRIORS, "ours")]
    lines = tuple(Line(_labels(cell)[2:], cell, "nll", published.CELEBA.get(cell.prior)) for cell in cells)
    title = "Density estimation on CelebA: negative log-likelihood with the residual network"
    note = (
        "It needs a store `celeba` of 30,000 faces of 64 × 64, as the authors' program has them; see the guide." + _OWN
    )
    return Item("table4", title, ("prior",), lines, note)


def _interval() -> Item:
    cells = {k: Cell("mnist", "vae", "bype" if k == 10 else f"bype-k{k}") for k in published.INTERVAL}
    lines = tuple(Line((str(k),), cell, "nll", published.INTERVAL[k]) for k, cell in cells.items())
    return Item(
        "table5", "Sensitivity to k, the epochs between updates: negative log-likelihood on MNIST", ("k",), lines
    )


def _lambda() -> Item:
    cell, alone = Cell("mnist", "vae", "bype"), Cell("mnist", "classifier", "none")
    lines = tuple(
        Line((f"{share:g}",), alone if share == 1 else cell, "error", number, Classifier("prior", share))
        for share, number in published.LAMBDA.items()
    )
    title = "Augmentation: test error on MNIST by λ, the weight of real examples"
    return Item("table7", title, ("λ",), lines, "Percent; latents from the prior's component around the example.")


def _kl() -> Item:
    lines = [
        Line(_labels(cell), cell, "kl", published.KL.get((data, network, prior)))
        for data in _IMAGES
        for network in ("vae", "hvae", "convhvae")
        for prior in ("vamp", "bype", "ours-500")
        for cell in (Cell(data, network, prior),)
    ]
    note = "Nats, summed over the levels of latents, mean over the scored test images." + _OWN
    return Item(
        "table8", "The KL term by data set, network and prior", ("data", "network", "prior"), tuple(lines), note
    )


def _binarised() -> Item:
    cells = [Cell("binarised-mnist", "vae", prior) for prior in ("gaussian", "vamp", "ours-500")]
    lines = tuple(Line(_labels(cell)[2:], cell, "nll", published.BINARISED.get(cell.prior)) for cell in cells)
    title = "Dynamically binarised MNIST: negative log-likelihood of black and white digits"
    note = (
        "Nats, normalised, so that they compare with the literature. This table is not in the paper. The column "
        "*paper* has the numbers of *VAE with a VampPrior* (Tomczak and Welling, 2018): the same network, warm-up, "
        "patience and number of importance samples, and no limit of 600 epochs. In each step training images are "
        "drawn black and white anew; validation and test images always have the same draws. It needs a store "
        "`binarised-mnist`; see the guide."
    )
    return Item("binarised", title, ("prior",), lines, note)


def _figure(name: str, title: str, *lines: Line, note: str = "") -> Item:
    return Item(name, title, ("data", "network", "prior"), lines, note)


def _plates(name: str, title: str) -> Item:
    note = "Each line of a picture is generated from one pseudo-point, those of the greatest weight."
    lines = [_part(data, "vae", prior, "plates") for data in _IMAGES[:2] for prior in ("bype", "ours-500")]
    return _figure(name, title, *lines, _part("celeba", "residual", "bype", "plates"), note=note)


def _interpolations(name: str, title: str, other: str) -> Item:
    note = f"The paper shows CelebA only. {DATA_LABELS[other]} stands here because its data are easier to get."
    own = _part("celeba", "residual", "bype", "interpolate")
    return _figure(name, title, own, _part(other, "vae", "bype", "interpolate"), note=note)


def _sizes() -> Item:
    priors = {
        "Exemplar": {100: "exemplar-100", 500: "exemplar", 2000: "exemplar-2000"},
        "ByPE, as published": {100: "bype-100", 500: "bype", 2000: "bype-2000"},
        "ours": {100: "ours-100", 500: "ours-500", 2000: "ours-2000"},
    }
    lines = [
        Line((label, str(size)), Cell("mnist", "vae", prior), "nll")
        for label, sizes in priors.items()
        for size, prior in sizes.items()
    ]
    note = "On MNIST. The paper does not print which sizes it took, nor which data."
    title = "Negative log-likelihood by the number of components"
    return Item("figure5", title, ("prior", "components"), tuple(lines), note)


def _knn(name: str, datas: tuple[str, ...]) -> Item:
    title = f"Accuracy of the K nearest neighbours on {' and '.join(DATA_LABELS[data] for data in datas)}"
    note = "Percent of the test images; neighbours are training and validation images, by their latent means."
    return _figure(name, title, *(_part(d, "vae", p, "knn") for d in datas for p in (*_PRIORS, "ours-500")), note=note)


_MAP_NOTE = "A t-SNE map of the latent means of 2,000 test images, 1,000 in reduced runs; a colour is a class."

ITEMS = {
    item.name: item
    for item in (
        _density(),
        _speed(),
        _augmentation("table3", ("mnist",)),
        _celeba(),
        _interval(),
        _augmentation("table6", ("fashion-mnist", "cifar10")),
        _lambda(),
        _kl(),
        _binarised(),
        _plates("figure1", "Samples from single pseudo-points"),
        _interpolations("figure2", "Interpolations", "fashion-mnist"),
        _figure(
            "figure3",
            "Maps of latent means on MNIST",
            *(_part("mnist", "vae", prior, "map") for prior in ("bype", "gaussian")),
            note=_MAP_NOTE,
        ),
        _knn("figure4", ("mnist", "fashion-mnist")),
        _sizes(),
        _figure(
            "figure6",
            "More maps of latent means",
            *(_part("mnist", "vae", prior, "map") for prior in ("vamp", "exemplar", "ours-500")),
            *(_part("fashion-mnist", "vae", p, "map") for p in ("bype", "vamp", "exemplar", "gaussian", "ours-500")),
            note=_MAP_NOTE,
        ),
        _figure(
            "figure7",
            "Random samples",
            *(_part(data, "vae", prior, "sample") for data in _IMAGES[:2] for prior in ("bype", "ours-500")),
            _part("celeba", "residual", "bype", "sample"),
        ),
        _plates("figure8", "More samples from single pseudo-points"),
        _knn("figure9", ("cifar10",)),
        _interpolations("figure10", "More interpolations", "mnist"),
        _figure(
            "figure11",
            "Loss curve on the validation images of MNIST",
            *(_part("mnist", "vae", prior, "curve") for prior in ("bype", "ours-500")),
            note="Minus the ELBO in nats, on the paper's scale, after each epoch.",
        ),
    )
}
"""All tables and figures by name."""


def is_chosen(cell: Cell, only: str) -> bool:
    """Tell whether the path of a cell has these whole parts, such as ``vae/bype``; without any, all are chosen."""
    return not only or f"/{only.strip('/')}/" in f"/{cell.path}/"


def cells_of(
    items: Sequence[Item], seeds: int, only: str = "", shard: tuple[int, int] = (0, 1)
) -> list[tuple[Cell, list[Line]]]:
    """Return the cells that a worker is to fill, each with the lines that take something from it.

    Parameters
    ----------
    items
        The tables and figures.
    seeds
        The number of seeds.
    only
        Take only cells with these whole parts in their path, such as ``fashion-mnist/vae`` or ``bype``.
    shard
        (I, N): this is worker I of N, counted from 0, and takes every N-th cell.
    """
    lines: dict[Cell, list[Line]] = {}
    for item in items:
        for line in item.lines:
            lines.setdefault(line.cell, []).append(line)
    chosen = [cell for cell in lines if is_chosen(cell, only)]
    every = [(Cell(cell.data, cell.network, cell.prior, seed), lines[cell]) for seed in range(seeds) for cell in chosen]
    return every[shard[0] :: shard[1]]
