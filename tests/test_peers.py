"""Scores of other libraries' models are made from importance weights in closed form where there is one."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from peers import Draws, draw, pages, record_file

PIXELS, LATENTS, NOISE = 6, 2, 0.01


class Linear(nn.Module):
    """Probabilistic PCA with orthogonal loadings: its posterior is a normal with a diagonal covariance."""

    def __init__(self) -> None:
        super().__init__()
        directions = torch.linalg.qr(torch.randn(PIXELS, LATENTS, dtype=torch.float64))[0]
        self.loadings = directions * torch.tensor([0.1, 0.05], dtype=torch.float64)

    def encoder(self, x):
        precision = 1 + self.loadings.square().sum(0) / NOISE
        mean = (x.flatten(1) - 0.5) @ self.loadings / NOISE / precision
        return SimpleNamespace(embedding=mean, log_covariance=-precision.log().expand_as(mean))

    def decoder(self, z):
        return SimpleNamespace(reconstruction=(0.5 + z @ self.loadings.T).reshape(-1, 1, 2, 3))

    def log_prior(self, z):
        return -0.5 * z.square().sum(-1)


def test_weights_under_the_exact_posterior_are_the_density():
    torch.manual_seed(0)
    model = Linear()
    # More examples than fit in a block, and more draws than are decoded at once.
    x = 0.5 + 0.1 * torch.randn(18, 1, 2, 3, dtype=torch.float64)
    found = draw(model, x, 130)
    covariance = model.loadings @ model.loadings.T + NOISE * torch.eye(PIXELS, dtype=torch.float64)
    centre = torch.full((PIXELS,), 0.5, dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(centre, covariance).log_prob(x.flatten(1))
    assert found.log_ratio.shape == (130, 18)
    # Every weight is p(x) itself, up to the rounding of float64.
    torch.testing.assert_close(found.log_weights(NOISE), exact.expand(130, 18), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.log_likelihood(NOISE), exact, rtol=0, atol=1e-9)


def test_the_best_variance_is_that_of_the_errors():
    torch.manual_seed(0)
    errors = 0.04 * torch.randn(1000, PIXELS, dtype=torch.float64)
    draws = Draws(errors.square().sum(1)[None], torch.zeros(1, 1000, dtype=torch.float64), PIXELS)
    assert math.isclose(draws.best_variance(), float(errors.var(correction=0)), rel_tol=0.02)  # the grid's step is 1 %
    scored = torch.distributions.Normal(0.0, errors.square().mean().sqrt()).log_prob(errors).sum(1).mean()
    assert math.isclose(draws.negative_elbo(), -float(scored), rel_tol=1e-9)


def test_a_peer_is_printed_below_ours(tmp_path):
    record = {
        "set": "faces",
        "model": "VAMP",
        "seed": 0,
        "setting": {"variance": None, "network": "conv", "learning_rate": 0.003},
        "steps": 1200,
        "kept_step": 900,
        "test": {
            "negative_log_likelihood": {"value": -1234.56, "error": 7.0},
            "knn_accuracy": 0.5,
            "squared_error": 20.0,
        },
    }
    record_file(tmp_path, "faces", "VAMP", 0).write_text(json.dumps(record))
    own_folder = Path(__file__).parent.parent / "results" / "own-data"
    *_, ours, peer = pages(tmp_path, own_folder)
    own = json.loads((own_folder / "faces-0.json").read_text())["evaluation"]
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert cells[2:4] == ["ours", f"{own['density']['negative_log_likelihood']['value']:,.1f}"]
    assert peer == (
        "| faces | 0 | pythae's VAMP | -1,234.6 | 7.0 | 50.0 | 20.00 | 1,200 | 900 | conv | fitted | 0.003 |"
    )
