"""Pseudo-points of each class's own: against brute force, and on images that were really learned."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy.stats import norm
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from bype.cli import main
from bype.data.files import to_json
from bype.evaluation.generation import sample
from bype.evaluation.pseudopoints import describe_points
from bype.likelihoods import FixedGaussian
from bype.models import VAE, mlp_vae
from bype.objective import ELBO
from bype.priors import GaussianPrior, TensorSource
from bype.pseudocoreset.ascent import ELBOAscent
from bype.pseudocoreset.coreset import Pseudocoreset
from bype.pseudocoreset.joint import JointPseudocoresetPrior
from bype.pseudocoreset.prior import PseudocoresetPrior
from bype.pseudocoreset.psvi import PSVI
from bype.pseudocoreset.settings import TrackingSettings
from bype.pseudocoreset.step_sizes import InverseTimeSteps
from bype.pseudocoreset.tracking import LabelledMixture, TrackedPseudocoresetPrior, TrackedStep, Tracking
from bype.report.contents import gather
from bype.report.page import render
from bype.run.checkpoint import CheckpointError
from bype.run.config import ConfigError
from bype.run.directory import read_config
from bype.run.opened import TrainedRun
from bype.training.loop import train
from small_runs import image_store, small_config, striped_images

F64 = torch.float64
ROW_LABELS = torch.arange(40) % 3
POINT_LABELS = torch.tensor([0, 1, 2, 2, 1, 0, 2])


class SmallEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_variance = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(x), self.log_variance(x) - 4


def examples() -> torch.Tensor:
    return torch.rand(40, 6, dtype=F64, generator=torch.Generator().manual_seed(3))


def labelled_model() -> VAE:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(7, 6, dtype=F64, generator=generator)
    weights = torch.rand(7, generator=generator)
    pseudocoreset = Pseudocoreset(points, 1000, weights * 1000 / weights.sum(), labels=POINT_LABELS)
    torch.manual_seed(0)
    prior = TrackedPseudocoresetPrior(pseudocoreset, 2, num_live=7)
    return VAE((6,), FixedGaussian(0.1, (0, 1)), prior, SmallEncoder(), nn.Linear(2, 6)).double()


def training_terms(model: VAE):
    generator = torch.Generator().manual_seed(1)
    return ELBO(model)(examples(), indices=torch.arange(40), generator=generator, labels=ROW_LABELS)


def test_classes_have_points_by_their_share_of_the_examples_and_none_goes_without():
    labels = torch.tensor([0] * 600 + [2] * 300 + [3] * 99 + [4])
    labels = labels[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    source = TensorSource(labels[:, None].float() / 10)  # an example tells its class
    made = Pseudocoreset.from_classes(source, labels, 50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(made.labels.long(), (made.points[:, 0] * 10).round().long())
    assert torch.bincount(made.labels.long()).tolist() == [29, 0, 15, 5, 1]
    for label, count in ((0, 600), (2, 300), (3, 99), (4, 1)):
        assert float(made.weights[made.labels == label].sum()) == pytest.approx(count)
    with pytest.raises(ValueError, match="3 points cannot be divided among 4 classes"):
        Pseudocoreset.from_classes(source, labels, 3)


def test_an_example_is_scored_by_the_components_of_its_class():
    generator = torch.Generator().manual_seed(0)
    means, z = torch.randn(7, 2, dtype=F64, generator=generator), torch.randn(5, 40, 2, dtype=F64, generator=generator)
    weights = torch.rand(7, dtype=F64, generator=generator)
    made = TrackedStep(slice(0, 7), means, means, slice(None), means, weights.log())
    found = LabelledMixture(made, torch.tensor(-1.0, dtype=F64), POINT_LABELS, ROW_LABELS).log_prob(z)
    for b, label in enumerate(ROW_LABELS.tolist()):
        own = (label == POINT_LABELS).numpy()
        density = norm.pdf(z[:, b, None].numpy(), means.numpy()[own], np.exp(-0.5)).prod(-1)
        share = weights.numpy()[own] / weights.numpy()[own].sum()
        # both are in double precision
        np.testing.assert_allclose(found[:, b].numpy(), np.log(density @ share), rtol=1e-10)


@pytest.mark.parametrize("label", [1, 3])
def test_an_example_of_a_class_without_points_is_refused(label):
    made = TrackedStep(
        slice(0, 2), torch.zeros(2, 2), torch.zeros(2, 2), slice(None), torch.zeros(2, 2), torch.zeros(2)
    )
    with pytest.raises(ValueError, match="class without pseudo-points"):
        LabelledMixture(made, torch.tensor(0.0), torch.tensor([0, 2]), torch.tensor([0, label]))


def test_rules_that_move_all_points_by_all_examples_are_refused():
    coreset = labelled_model().prior.pseudocoreset.float()
    model = mlp_vae((6,), PseudocoresetPrior(coreset), FixedGaussian(0.1, (0, 1)), latent_dim=2)
    x = examples().float()
    for rule in (PSVI(InverseTimeSteps(1.0), 2), ELBOAscent(coreset)):
        with pytest.raises(ValueError, match="points with labels need the rule Tracking"):
            rule.update_step(model, x)
    with pytest.raises(ValueError, match="points with labels need the rule Tracking"):
        JointPseudocoresetPrior(coreset)


def test_a_point_is_moved_by_the_examples_of_its_class_alone():
    model = labelled_model()
    terms = training_terms(model)
    own = ROW_LABELS == 1
    (-terms.kl["z"][own].sum()).backward()
    pull = terms.prior.made.mixture_means.grad.abs().sum(1)
    # what is left out counts for exp(-60) of the nearest, since smaller numbers are slow
    assert torch.equal(pull > 1e-20, POINT_LABELS == 1)


def test_the_weights_of_a_class_go_where_its_examples_are_and_their_sum_stays():
    model = labelled_model()
    before = model.prior.pseudocoreset.probabilities.clone()
    rule = Tracking(model.prior, memory=1e-9)  # forgets all but this step
    terms = training_terms(model)
    (terms.loss + rule.loss_term(model, terms)).backward()
    responsibility = -terms.prior.made.log_weights.grad.double()  # the mean over the examples
    rule.step(model, terms)
    after = model.prior.pseudocoreset.probabilities
    for label in range(3):
        own = label == POINT_LABELS
        # responsibilities add up to one within the class of each example
        share_of_batch = float((label == ROW_LABELS).double().mean())
        assert float(responsibility[own].sum()) == pytest.approx(share_of_batch, rel=1e-6)
        # but the share of a class in the data is known better than from a batch
        assert float(after[own].sum()) == pytest.approx(float(before[own].sum()), rel=1e-9)
        within = (after[own] / after[own].sum(), responsibility[own] / responsibility[own].sum())
        np.testing.assert_allclose(*within, rtol=1e-6)


def test_a_class_without_an_example_in_the_batch_keeps_its_weights():
    model = labelled_model()
    before = model.prior.pseudocoreset.probabilities.clone()
    rule = Tracking(model.prior, memory=1e-9)
    labels = torch.where(ROW_LABELS == 2, 1, ROW_LABELS)
    terms = ELBO(model)(examples(), indices=torch.arange(40), labels=labels)
    (terms.loss + rule.loss_term(model, terms)).backward()
    rule.step(model, terms)
    after = model.prior.pseudocoreset.probabilities
    assert float(after[POINT_LABELS == 2].sum()) == pytest.approx(float(before[POINT_LABELS == 2].sum()), rel=1e-9)


def test_all_classes_together_are_the_whole_prior():
    model = labelled_model()
    whole = model.prior_distribution()
    z = torch.randn(20, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    probabilities = model.prior.pseudocoreset.probabilities
    total = torch.zeros(20, dtype=F64)
    for label in range(3):
        part = model.prior.given_label(whole, label)
        total += probabilities[label == POINT_LABELS].sum() * part.log_prob(z).exp()
    torch.testing.assert_close(total.log(), whole.log_prob(z), rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"no pseudo-point has the label 5; there are \[0, 1, 2\]"):
        model.prior.given_label(whole, 5)
    with pytest.raises(ValueError, match="train with labels of at least two classes"):
        GaussianPrior(2).given_label(whole, 0)
    with pytest.raises(ValueError, match="needs the labels of its examples"):
        ELBO(model)(examples(), indices=torch.arange(40))


@pytest.fixture(scope="module")
def labelled_run(tmp_path_factory, labelled_store):
    folder = tmp_path_factory.mktemp("labelled-run") / "run"
    train(small_config(labelled=True, rule=TrackingSettings()), labelled_store, folder)
    return folder


def test_samples_of_a_class_look_like_it(labelled_run):
    run = TrainedRun.open(labelled_run)
    images, labels = striped_images(600, seed=5)
    judge = KNeighborsClassifier(5).fit(images.reshape(600, -1), labels)
    for label in range(3):
        made = 256 * sample(run.model, 60, label=label, generator=torch.Generator().manual_seed(0))
        found = judge.predict(made.reshape(60, -1).numpy())
        # a third would be right by chance; bars, columns and blobs are easily told apart
        assert (found == label).mean() > 0.8, label


def test_every_point_has_its_label(labelled_run):
    run = TrainedRun.open(labelled_run)
    found = describe_points(run.model, run.store().split("train"), run.data.classes)
    assert set(found.label_mix.ravel().tolist()) == {0.0, 1.0}
    by_class = found.weights @ found.label_mix
    shares = np.bincount(run.store().split("train").labels(np.arange(465)), minlength=3)
    assert abs(by_class / by_class.sum() - shares / shares.sum()).max() < 1e-6  # float32 in the description


def test_the_page_shows_each_class(labelled_run):
    contents = gather(labelled_run, "run")
    assert [shown.name for shown in contents.classes] == ["0", "1", "2"]
    assert sum(shown.num_points for shown in contents.classes) == 20
    assert sum(shown.share for shown in contents.classes) == pytest.approx(1)
    page = render([contents])
    assert page.count('alt="Samples of ') == 3
    assert "Labels by weight" not in page
    # in training an example is scored by the points of its class alone
    assert "the line of training is −ELBO of p(x | y)" in page


def test_labels_from_the_command_line(labelled_run, trained_bype, tmp_path, capsys):
    assert main(["sample", str(labelled_run), "--label", "1", "--count", "4", "--out", str(tmp_path / "a.npy")]) == 0
    model = TrainedRun.open(labelled_run).model
    with pytest.raises(ValueError, match="number of a class"):
        sample(model, 4, label="high")
    expected = sample(model, 4, label=1, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    assert main(["sample", str(labelled_run), "--label", "no", "--out", str(tmp_path / "b.png")]) == 1
    assert "there is no class 'no'; there are 0, 1, 2" in capsys.readouterr().err
    assert main(["sample", str(trained_bype), "--label", "1", "--out", str(tmp_path / "c.png")]) == 1
    assert "train with labels of at least two classes" in capsys.readouterr().err
    assert not (tmp_path / "c.png").exists()


def test_a_strangers_number_of_examples_takes_no_memory(labelled_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(labelled_run, copy)
    config = json.loads((copy / "config.json").read_text())
    config["data"]["num_train"] = 10**13
    (copy / "config.json").write_text(json.dumps(config))
    found, own = (TrainedRun.open(folder).model.prior.own_points().labels for folder in (copy, labelled_run))
    assert torch.equal(found, own)


@pytest.mark.parametrize("label", [3, 2**31 - 1])  # the first that is too large, and one that would take 16 GB
def test_labels_of_classes_that_the_data_do_not_have_are_refused(labelled_run, labelled_store, tmp_path, label):
    copy = tmp_path / "run"
    shutil.copytree(labelled_run, copy)
    for manifest in copy.glob("*/*/manifest.json"):
        model = manifest.with_name("model.safetensors")
        tensors = load(model.read_bytes())
        tensors["prior.pseudocoreset.labels"][0] = label
        model.write_bytes(save(tensors))
        content, written = json.loads(manifest.read_text()), model.read_bytes()
        content["files"][model.name] = {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
        manifest.write_bytes(to_json(content))
    with pytest.raises(CheckpointError, match="does not fit its config"):
        TrainedRun.open(copy)
    assert main(["coreset", str(copy), "--out", str(tmp_path / "out")]) == 1
    config, _ = read_config(copy)
    with pytest.raises(ConfigError, match=f"has the label {label}, and the data have 3 classes"):
        train(dataclasses.replace(config, length="25 epochs"), labelled_store, copy)


def test_what_does_not_fit_is_refused(tmp_path, labelled_store):
    with pytest.raises(ConfigError, match="need the prior bype and the rule tracking"):
        small_config(labelled=True)  # psvi
    with pytest.raises(ConfigError, match="need the prior bype and the rule tracking"):
        small_config(labelled=True, prior="vamp")
    unlabelled = image_store(tmp_path, labelled=False)
    with pytest.raises(ConfigError, match="need a store with labels"):
        train(small_config(labelled=True, rule=TrackingSettings()), unlabelled, tmp_path / "run")
    with pytest.raises(ConfigError, match="2 points cannot be divided among 3 classes"):
        train(small_config(labelled=True, rule=TrackingSettings(), components=2), labelled_store, tmp_path / "few")
