"""A prior of your own: a normal distribution whose mean and variances are learned."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import bype
from bype.distributions import DiagonalNormal


class LearnedNormal(bype.Prior):
    """p(z) = N(m, diag s), with m and s learned by backpropagation."""

    def __init__(self, latent_dim):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(latent_dim))
        self.log_variance = nn.Parameter(torch.zeros(latent_dim))

    def forward(self, encode, batch=None):
        """Return one distribution that scores and samples; a prior may use the encoder, this one does not."""
        return DiagonalNormal(self.mean, self.log_variance)


def train(model, images, num_epochs=15):
    """Train a model by the plain loop that every PyTorch user knows."""
    objective = bype.ELBO(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, num_epochs + 1):
        for rows in torch.randperm(len(images)).split(100):
            terms = objective(images[rows], indices=rows, beta=bype.kl_weight(epoch, warm_up=5))
            optimiser.zero_grad()
            terms.loss.backward()
            optimiser.step()
    with torch.no_grad():
        return -objective(images).elbo.mean().item()


def main():
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16  # 1,797 real digits
    for name, prior in (("standard", bype.GaussianPrior(8)), ("learned", LearnedNormal(8))):
        model = bype.mlp_vae((1, 8, 8), prior, bype.FixedGaussian(0.02), latent_dim=8, hidden=64)
        print(f"{name} normal: -ELBO {train(model, images):.2f} nats per example")
    print(f"new digits: {tuple(bype.sample(model, 5).shape)}")


if __name__ == "__main__":
    main()
