"""The numbers that the paper prints, typed from its source. The figures' numbers are not printed."""

from typing import NamedTuple


class Number(NamedTuple):
    """A printed number, and the number printed after its ±, if any; the paper does not say what that is."""

    value: float
    error: float | None = None


def _rows(
    datas: tuple[str, ...], priors: tuple[str, ...], table: dict[str, tuple[tuple[float, float], ...]]
) -> dict[tuple[str, str, str], Number]:
    """Name the cells of a table that has a column for each data set and, for each network, a row for each prior."""
    return {
        (data, network, prior): Number(*table[f"{network} {prior}"][column])
        for network in dict.fromkeys(row.split()[0] for row in table)
        for prior in priors
        for column, data in enumerate(datas)
    }


_DATA = ("mnist", "fashion-mnist", "cifar10")

DENSITY = _rows(
    _DATA,
    ("gaussian", "vamp", "exemplar", "bype"),
    {
        "vae gaussian": ((24.41, 0.06), (21.43, 0.10), (72.21, 0.08)),
        "vae vamp": ((23.65, 0.03), (20.87, 0.01), (71.97, 0.05)),
        "vae exemplar": ((23.83, 0.04), (21.00, 0.01), (72.55, 0.05)),
        "vae bype": ((23.61, 0.03), (20.85, 0.01), (71.91, 0.02)),
        "hvae gaussian": ((23.82, 0.04), (21.04, 0.03), (71.63, 0.06)),
        "hvae vamp": ((23.54, 0.03), (20.83, 0.02), (71.54, 0.04)),
        "hvae exemplar": ((23.58, 0.03), (20.95, 0.02), (71.77, 0.05)),
        "hvae bype": ((23.48, 0.02), (20.82, 0.01), (71.38, 0.01)),
        "convhvae gaussian": ((23.16, 0.05), (20.76, 0.01), (70.83, 0.05)),
        "convhvae vamp": ((22.94, 0.02), (20.59, 0.01), (70.61, 0.06)),
        "convhvae exemplar": ((22.92, 0.03), (20.62, 0.00), (70.83, 0.19)),
        "convhvae bype": ((22.84, 0.02), (20.58, 0.01), (70.55, 0.03)),
    },
)
"""Table 1: negative log-likelihood by data set, network and prior."""

SPEED = {
    ("mnist", "bype"): (23.61, 13.19),
    ("mnist", "vamp"): (23.65, 13.03),
    ("mnist", "exemplar-25000"): (23.61, 35.45),
    ("fashion-mnist", "bype"): (20.85, 12.05),
    ("fashion-mnist", "vamp"): (20.87, 12.09),
    ("fashion-mnist", "exemplar-25000"): (20.81, 37.23),
    ("cifar10", "bype"): (71.91, 17.30),
    ("cifar10", "vamp"): (71.97, 14.89),
    ("cifar10", "exemplar-25000"): (72.00, 66.85),
}
"""Table 2: negative log-likelihood, and seconds for an epoch on the authors' GPU."""

AUGMENTATION = {
    # Table 3
    ("mnist", "gaussian", "posterior"): Number(1.23, 0.02),
    ("mnist", "vamp", "posterior"): Number(1.20, 0.02),
    ("mnist", "exemplar", "posterior"): Number(1.16, 0.01),
    ("mnist", "bype", "posterior"): Number(1.10, 0.01),
    ("mnist", "exemplar", "prior"): Number(1.10, 0.01),
    ("mnist", "bype", "prior"): Number(0.88, 0.01),
    # Table 6
    ("fashion-mnist", "gaussian", "posterior"): Number(9.98, 0.08),
    ("fashion-mnist", "vamp", "posterior"): Number(10.03, 0.05),
    ("fashion-mnist", "exemplar", "posterior"): Number(9.46, 0.02),
    ("fashion-mnist", "bype", "posterior"): Number(9.75, 0.02),
    ("fashion-mnist", "exemplar", "prior"): Number(9.58, 0.01),
    ("fashion-mnist", "bype", "prior"): Number(9.56, 0.02),
    ("cifar10", "gaussian", "posterior"): Number(50.07, 0.23),
    ("cifar10", "vamp", "posterior"): Number(50.74, 0.16),
    ("cifar10", "exemplar", "posterior"): Number(49.59, 0.21),
    ("cifar10", "bype", "posterior"): Number(49.00, 0.04),
    ("cifar10", "exemplar", "prior"): Number(47.20, 0.13),
    ("cifar10", "bype", "prior"): Number(46.60, 0.13),
}
"""Tables 3 and 6: test error of a classifier in percent, by data set, prior, and where latents come from."""

CELEBA = {
    "gaussian": Number(183.16, 0.40),
    "vamp": Number(183.61, 0.69),
    "exemplar": Number(185.03, 1.46),
    "bype": Number(182.11, 1.10),
}
"""Table 4: negative log-likelihood by prior."""

INTERVAL = {1: Number(23.60), 10: Number(23.61), 50: Number(23.62), 100: Number(23.70)}
"""Table 5: negative log-likelihood on MNIST by k, the number of epochs between updates."""

LAMBDA = {
    0.0: Number(1.42, 0.08),
    0.1: Number(1.16, 0.10),
    0.2: Number(0.93, 0.01),
    0.3: Number(0.96, 0.01),
    0.4: Number(0.88, 0.02),
    0.5: Number(0.83, 0.05),
    0.6: Number(0.90, 0.02),
    0.7: Number(0.94, 0.02),
    0.8: Number(0.98, 0.01),
    0.9: Number(1.06, 0.01),
    1.0: Number(1.31, 0.00),
}
"""Table 7: test error on MNIST in percent by lambda, the weight of real examples."""

KL = _rows(
    _DATA,
    ("vamp", "bype"),
    {
        "vae vamp": ((12.08, 0.05), (8.05, 0.05), (21.80, 0.07)),
        "vae bype": ((11.93, 0.12), (8.03, 0.01), (21.55, 0.02)),
        "hvae vamp": ((12.20, 0.06), (8.15, 0.03), (22.34, 0.14)),
        "hvae bype": ((12.18, 0.06), (8.10, 0.04), (22.16, 0.06)),
        "convhvae vamp": ((12.66, 0.06), (8.54, 0.05), (24.42, 0.24)),
        "convhvae bype": ((12.50, 0.06), (8.49, 0.05), (24.15, 0.28)),
    },
)
"""Table 8: the KL term by data set, network and prior."""

BINARISED = {"gaussian": Number(84.50), "vamp": Number(82.38)}
"""Of *VAE with a VampPrior*, dynamic MNIST, VAE of one level."""
