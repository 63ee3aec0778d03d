"""A network of your own: small convolutions, in a VAE with a tracked pseudocoreset."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import bype


class Encoder(nn.Module):
    """Examples (B, 1, 8, 8) to the mean and the log-variance of the latents, (B, D) each."""

    def __init__(self, latent_dim):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ELU(), nn.Flatten()
        )
        self.mean, self.log_variance = nn.Linear(128, latent_dim), nn.Linear(128, latent_dim)

    def forward(self, x):
        hidden = self.body(x)
        return self.mean(hidden), self.log_variance(hidden)


class Decoder(nn.Module):
    """Latents (B, D) to (B, 1, 8, 8), what the likelihood takes."""

    def __init__(self, latent_dim):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Linear(latent_dim, 128), nn.ELU(), nn.Unflatten(1, (32, 2, 2))),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid()),
        )

    def forward(self, z):
        return self.body(z)


def main():
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16  # 1,797 real digits
    pseudocoreset = bype.Pseudocoreset(images[:50].clone(), total=len(images))
    prior = bype.TrackedPseudocoresetPrior(pseudocoreset, latent_dim=8)
    model = bype.VAE((1, 8, 8), bype.FixedGaussian(0.02), prior, Encoder(8), Decoder(8))
    objective, rule = bype.ELBO(model), bype.Tracking(prior)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, 16):
        for rows in torch.randperm(len(images)).split(100):
            terms = objective(images[rows], indices=rows, beta=bype.kl_weight(epoch, warm_up=5))
            optimiser.zero_grad()
            (terms.loss + rule.loss_term(model, terms)).backward()
            rule.step(model, terms)
            optimiser.step()
    print(f"-ELBO {-terms.elbo.mean():.2f} nats per example")
    print(f"more like point 3: {tuple(bype.sample(model, 5, component=3).shape)}")


if __name__ == "__main__":
    main()
