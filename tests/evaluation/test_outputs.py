"""Embeddings in parts, pseudo-points, augmentation."""

import math
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from scipy import stats
from sklearn.datasets import load_breast_cancer

from bype.data.examples import StoreSource, as_model_input
from bype.data.files import FileError, read_json
from bype.data.prepare import prepare
from bype.data.store import Store
from bype.evaluation import augmentation, embedding, scores
from bype.evaluation.augmentation import classifier_error, export_generated
from bype.evaluation.embedding import Embedded, EmbeddingOptions, embed_split
from bype.evaluation.generation import embed, generate_like
from bype.evaluation.inference import Embedder
from bype.evaluation.outliers import ScoreOptions, score_examples
from bype.evaluation.pseudopoints import describe_points, points_of
from bype.evaluation.scores import log_likelihood_by_shared_draws
from bype.likelihoods import FixedGaussian
from bype.objective import importance_weighted_bound
from bype.priors import GaussianPrior
from bype.run.directory import RunError
from bype.run.opened import TrainedRun
from bype.training.loop import train
from linear_gaussian import linear_vae
from small_runs import CLASSES, small_config


def test_embedding_in_parts_has_every_row_once(bype_run, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PART_ROWS", 100)
    run = TrainedRun.open(bype_run)
    split = run.store().split("train")
    assert embed_split(run, split, tmp_path / "out") == Embedded(5, 5)  # 465 rows
    parts = [np.load(path) for path in sorted((tmp_path / "out").glob("part-*.npz"))]
    ids = np.concatenate([part["ids"] for part in parts])
    assert ids.tolist() == list(range(465))
    expected = embed(run.model, StoreSource(split).read(np.arange(465)))
    np.testing.assert_allclose(np.concatenate([part["means"] for part in parts]), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(np.concatenate([part["labels"] for part in parts]), split.labels(ids))


def test_shards_together_make_every_part_once_and_the_last_says_so(bype_run, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PART_ROWS", 100)
    run = TrainedRun.open(bype_run)
    split = run.store().split("train")
    embed_split(run, split, tmp_path / "whole", EmbeddingOptions(num_samples=3))
    for number, done in ((1, 2), (2, 3), (0, 5)):
        assert not (tmp_path / "out" / "complete.json").exists()
        options = EmbeddingOptions(num_samples=3, shard=(number, 3))
        assert embed_split(run, split, tmp_path / "out", options) == Embedded(5, done)
    assert read_json(tmp_path / "out" / "complete.json") == {"parts": 5, "rows": 465}
    for path in sorted((tmp_path / "out").glob("part-*")):
        ours, theirs = np.load(path), np.load(tmp_path / "whole" / path.name)
        for name in ("ids", "means", "labels", "log_likelihoods"):
            assert np.array_equal(ours[name], theirs[name])


def test_parquet_parts_hold_the_same(bype_run, tmp_path):
    run = TrainedRun.open(bype_run)
    split = run.store().split("test")
    embed_split(run, split, tmp_path / "npz", EmbeddingOptions(num_samples=2))
    embed_split(run, split, tmp_path / "parquet", EmbeddingOptions("parquet", 2))
    arrays = np.load(tmp_path / "npz" / "part-000000.npz")
    table = parquet.read_table(tmp_path / "parquet" / "part-000000.parquet")
    assert set(table.column_names) == {"id", "source", "mean", "label", "label_name", "log_likelihood"}
    assert np.array_equal(np.stack(table["mean"].to_numpy()), arrays["means"])
    for name in ("id", "source", "label", "label_name", "log_likelihood"):
        assert np.array_equal(table[name].to_numpy(), arrays[f"{name}s"])


def test_one_callable_embeds_batches_in_whatever_form_they_come(bype_run):
    run = TrainedRun.open(bype_run)
    split = run.store().split("test")
    raw = split.read(np.arange(9))
    expected = embed(run.model, StoreSource(split).read(np.arange(9))).numpy()
    rows = np.empty(9, dtype=object)
    rows[:] = list(raw)
    forms = [
        raw,
        raw[:, 0],
        np.moveaxis(raw, 1, -1),
        [Image.fromarray(image[0]) for image in raw],
        [Image.fromarray(image[0]).convert("P", palette=Image.Palette.ADAPTIVE) for image in raw],
        list(raw),
        rows,
        raw.astype(int),
    ]
    for images in forms:
        found = Embedder(bype_run, num_samples=2)({"image": images, "id": np.arange(9)})
        assert set(found) == {"id", "embedding", "log_likelihood"}
        np.testing.assert_allclose(found["embedding"], expected, rtol=1e-5, atol=1e-6)
        assert found["log_likelihood"].shape == (9,)
    assert len(Embedder(bype_run, num_samples=2)({"image": []})["embedding"]) == 0
    with pytest.raises(ValueError, match="no column 'picture', it has image"):
        Embedder(bype_run, "picture")({"image": raw})
    with pytest.raises(ValueError, match=r"float64 of shape \(1, 12, 12\), the run was trained on uint8"):
        Embedder(bype_run)({"image": raw / 255})
    with pytest.raises(ValueError, match=r"uint8 of shape \(11, 12, 1\), the run"):  # as it was given
        Embedder(bype_run)({"image": np.moveaxis(raw, 1, -1)[:, 1:]})
    with pytest.raises(ValueError, match=r"shapes \(1, 12, 11\), \(1, 12, 12\); bring all to the run's, \(1, 12, 12\)"):
        Embedder(bype_run)({"image": [raw[0], raw[1, :, :, 1:]]})


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39, None])
def test_rows_with_missing_numbers_are_named(trained_features, bad):
    rows = [[0.5, 1.0, 2.0, 1.0], [0.5, bad, 2.0, 1.0], [0.0, 1.0, 2.0, bad]]
    with pytest.raises(ValueError, match=r"2 examples of the batch \(the first is number 1\) hold missing or infinite"):
        Embedder(trained_features)({"image": rows})


def test_pictures_are_embedded_as_they_are_prepared(bype_run, tmp_path):
    """Upright, on white paper, 16 bits with all their shades."""
    shades = np.random.default_rng(0).random((12, 12))
    grey = Image.fromarray((255 * shades).astype(np.uint8))
    clear = Image.merge("LA", (grey, Image.fromarray((255 * shades.T).astype(np.uint8))))
    exif = Image.Exif()
    exif[0x0112] = 3
    (tmp_path / "photos").mkdir()
    clear.save(tmp_path / "photos" / "a.png")
    Image.fromarray((65535 * shades).astype(np.uint16)).save(tmp_path / "photos" / "b.png")
    grey.save(tmp_path / "photos" / "c.png", exif=exif)
    prepare(tmp_path / "photos", tmp_path / "store", validation=0, test=0)
    prepared = Store(tmp_path / "store").split("train").read(np.arange(3))
    pictures = [Image.open(tmp_path / "photos" / f"{name}.png") for name in "abc"]
    found, expected = (Embedder(bype_run)({"image": images})["embedding"] for images in (pictures, prepared))
    np.testing.assert_array_equal(found, expected)


def test_an_embedder_travels_small_and_says_of_which_model_it_is(bype_run):
    embedder = Embedder(bype_run, num_samples=2)
    sent = pickle.dumps(embedder)
    embedder({"image": np.zeros((2, 12, 12), dtype=np.uint8)})
    assert pickle.dumps(embedder) == sent  # opened or not
    assert len(sent) < 1000
    (best,) = (bype_run / "best").iterdir()
    manifest = (best / "manifest.json").read_text()
    checksum = TrainedRun.open(bype_run).fingerprint
    (best / "manifest.json").write_text(manifest.replace(checksum, checksum[::-1]))
    assert pickle.dumps(embedder) != sent  # trained on: what was cached for the model before is of no use
    shutil.rmtree(bype_run)
    pickle.dumps(embedder)  # the run may be on the machines that will compute, and not on this one


def test_the_score_of_an_example_is_the_same_by_every_route_and_in_every_batch(bype_run, tmp_path):
    run = TrainedRun.open(bype_run)
    store = run.store()
    split = store.split("test")
    embedder = Embedder(bype_run, num_samples=30)
    images = split.read(np.arange(len(split)))
    whole = embedder({"image": images})["log_likelihood"]
    pieces = [embedder({"image": images[rows]})["log_likelihood"] for rows in (slice(40, None), slice(0, 40))]
    embed_split(run, split, tmp_path / "out", EmbeddingOptions(num_samples=30))
    with np.load(tmp_path / "out" / "part-000000.npz") as part:
        written = part["log_likelihoods"]
    scored = score_examples(run, "test", options=ScoreOptions(num_samples=30)).log_likelihood
    # In float32 a sum of some hundred terms is good to about 1e-4 nats.
    for other in (np.concatenate(pieces[::-1]), written, scored):
        np.testing.assert_allclose(whole, other, rtol=0, atol=1e-3)
    # The paper's squared error becomes a density: a normal of variance 1/2.
    bound = importance_weighted_bound(run.model, StoreSource(split).read(np.arange(75)), 2000)
    constant = math.prod(run.data.shape) * 0.5 * math.log(math.pi)
    assert (bound.log_likelihood.mean() - constant).item() == pytest.approx(whole.mean(), abs=0.5)


def test_training_examples_are_left_out_of_a_prior_that_is_made_of_them(trained_exemplar, tmp_path):
    run = TrainedRun.open(trained_exemplar)
    store = run.store()
    split = store.split("train")
    embed_split(run, split, tmp_path / "out", EmbeddingOptions(num_samples=30))
    with np.load(tmp_path / "out" / "part-000000.npz") as part:
        written = part["log_likelihoods"]
    x = StoreSource(split).read(np.arange(len(split)))
    counted = log_likelihood_by_shared_draws(run.model, x, 30, run.model.prior_distribution()).numpy()
    assert (written < counted).mean() > 0.9


def test_an_interrupted_embedding_goes_on(bype_run, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PART_ROWS", 100)
    run = TrainedRun.open(bype_run)
    split = run.store().split("train")

    def stop(done: int, total: int) -> None:
        if done == 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed_split(run, split, tmp_path / "out", report=stop)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert len(before) == 2
    embed_split(run, split, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("part-*"))) == 5
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == time for name, time in before.items())
    with pytest.raises(FileError, match="another model or other data"):
        embed_split(run, run.store().split("test"), tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(FileError, match="choose another --out"):
        embed_split(run, split, tmp_path / "full")


def test_pseudo_points_come_by_weight_with_their_nearest_examples(trained_bype):
    run = TrainedRun.open(trained_bype)
    coreset = run.model.prior.pseudocoreset
    with torch.no_grad():
        coreset.assign(coreset.points, torch.rand(20, generator=torch.Generator().manual_seed(0)).double())
    train = run.store().split("train")
    found = describe_points(run.model, train, CLASSES)
    assert np.all(np.diff(found.weights) <= 0)
    assert found.weights.sum() == pytest.approx(465)
    assert np.array_equal(found.points, coreset.points.numpy()[found.component])
    assert np.allclose(found.weights, coreset.weights.numpy()[found.component])
    means = embed(run.model, StoreSource(train).read(np.arange(465))).numpy()
    latents = embed(run.model, torch.from_numpy(found.points)).numpy()
    distance = np.square(latents[:, None] - means).sum(2)
    nearest = np.sort(distance, axis=1)[:, :15]
    np.testing.assert_allclose(np.take_along_axis(distance, found.neighbours, 1), nearest, rtol=1e-3, atol=1e-5)
    labels = train.labels(found.neighbours.reshape(-1)).reshape(20, 15)
    for k in range(3):
        np.testing.assert_allclose(found.label_mix[:, k], (labels == k).mean(1))
    assert found.effective_number == pytest.approx(465**2 / np.square(found.weights).sum())


def test_runs_without_pseudo_points_say_so(trained_gaussian):
    with pytest.raises(RunError, match="no pseudo-points"):
        points_of(TrainedRun.open(trained_gaussian).model)


def test_each_generated_example_has_the_variance_of_its_own_posterior():
    """The authors' program gave the first image's variance to the whole batch."""
    model = linear_vae(GaussianPrior(2), 0.0)
    with torch.no_grad():
        # The encoder's variance now depends on x, by a factor of 100 between two examples.
        encoder = model.encoder

        class Varying(torch.nn.Module):
            def forward(self, x):
                mean, log_variance = encoder(x)
                return mean, log_variance + x[:, :1] * np.log(10)

        model.encoder = Varying()
        model.likelihood = FixedGaussian(1e-12, None)  # only the latents vary
    x = torch.tensor([[0.0] * 5, [2.0, 0, 0, 0, 0]], dtype=torch.float64)
    copies = x.repeat_interleave(4000, 0)
    made = generate_like(model, copies, "posterior", generator=torch.Generator().manual_seed(0))
    spread = [made[:4000].std(0), made[4000:].std(0)]
    ratio = (spread[1] / spread[0]).numpy()
    assert np.allclose(ratio[np.isfinite(ratio)], 10, rtol=0.1)
    with pytest.raises(ValueError, match="draw from the posterior"):
        generate_like(model, x, "prior")


def test_the_way_through_the_prior_draws_from_the_component_around_the_example(trained_bype):
    run = TrainedRun.open(trained_bype)
    x = StoreSource(run.store().split("test")).read(np.arange(1))
    drawn = []
    original = run.model.decode
    run.model.decode = lambda top, **options: (drawn.append(top), original(top, **options))[1]
    generate_like(run.model, x.expand(3000, 1, 12, 12), "prior", generator=torch.Generator().manual_seed(0))
    top = torch.cat(drawn)
    mean, spread = run.model.encode(x).mean[0], (0.5 * run.model.prior.log_variance).exp().item()
    for d in range(4):
        assert stats.kstest(top[:, d].numpy(), stats.norm(mean[d].item(), spread).cdf).pvalue > 1e-3


def test_a_classifier_learns_with_and_without_generated_examples(trained_bype, monkeypatch):
    run = TrainedRun.open(trained_bype)
    store = run.store()
    calls = []
    original = augmentation.generate_like
    monkeypatch.setattr(augmentation, "generate_like", lambda *a, **k: (calls.append(a[2]), original(*a, **k))[1])
    real = classifier_error(run.model, store, "prior", 1.0, epochs=10)
    assert calls == []
    assert classifier_error(None, store, "prior", 1.0, epochs=10) == real
    with pytest.raises(ValueError, match="generated examples need a model"):
        classifier_error(None, store, "prior", 0.9)
    shifted = classifier_error(None, store, "shifts", 0.0, epochs=10)
    assert calls == []
    assert shifted < 30
    mixed = classifier_error(run.model, store, "prior", 0.4, epochs=10)
    assert set(calls) == {"prior"}
    assert real < 20
    assert mixed < 30
    assert classifier_error(run.model, store, "prior", 0.4, epochs=10) == mixed


def test_the_share_of_real_examples_decides_where_generated_ones_contradict(trained_bype, monkeypatch):
    """Each generated example is a real one of the next class: the classifier believes what has the larger weight."""
    run = TrainedRun.open(trained_bype)
    store = run.store()
    rows = np.arange(len(store.split("train")))
    x, labels = StoreSource(store.split("train")).read(rows), store.split("train").labels(rows)
    label_of = {example.numpy().tobytes(): label for example, label in zip(x, labels, strict=True)}
    of_class = [x[torch.from_numpy(labels == label)] for label in range(3)]

    def of_the_next_class(model, x, way, *, generator):
        examples = [of_class[(label_of[example.numpy().tobytes()] + 1) % 3] for example in x]
        return torch.stack([choices[k % len(choices)] for k, choices in enumerate(examples)])

    monkeypatch.setattr(augmentation, "generate_like", of_the_next_class)
    assert classifier_error(run.model, store, "prior", 0.7, epochs=6) < 20
    assert classifier_error(run.model, store, "prior", 0.3, epochs=6) > 80


def test_generated_pixels_have_the_values_of_real_ones(trained_bype, monkeypatch):
    run, seen = TrainedRun.open(trained_bype), []

    def loss(classifier, x, labels):
        seen.append(x)
        return classifier(x).sum()

    monkeypatch.setattr(augmentation, "classifier_loss", loss)
    classifier_error(run.model, run.store(), "prior", 0.4, epochs=1)
    for x in seen:
        assert torch.equal(x, as_model_input((256 * x).floor().byte()))
    assert len(seen) == 10


def test_shifted_images_are_real_ones_moved_by_up_to_two_pixels(trained_bype, monkeypatch):
    store, seen = TrainedRun.open(trained_bype).store(), []

    def loss(classifier, x, labels):
        seen.append(x)
        return classifier(x).sum()

    monkeypatch.setattr(augmentation, "classifier_loss", loss)
    classifier_error(None, store, "shifts", 0.5, epochs=1)
    moves = set()
    for real, shifted in zip(seen[::2], seen[1::2], strict=True):
        for image, moved in zip(real[:, 0].numpy(), shifted[:, 0].numpy(), strict=True):
            padded = np.pad(image, 2, mode="edge")
            found = [(a, b) for a in range(5) for b in range(5) if (padded[a : a + 12, b : b + 12] == moved).all()]
            assert found
            moves |= set(found) if len(found) == 1 else set()
    assert len(moves) > 20  # of 25


def test_rows_of_a_table_are_not_shifted(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(40, 3)), y=np.arange(40) % 2)
    prepare(tmp_path / "x.npz", tmp_path / "store")
    with pytest.raises(ValueError, match="only images can be shifted"):
        classifier_error(None, Store(tmp_path / "store"), "shifts", 0.0)


def test_a_classifier_of_rows_sees_scaled_columns(tmp_path):
    """Columns of 0.003 and of 600 in one network: without scaling it predicts one class only."""
    cancer = load_breast_cancer()
    np.savez(tmp_path / "x.npz", x=cancer.data.astype(np.float32), y=cancer.target)
    prepare(tmp_path / "x.npz", tmp_path / "store")
    config = small_config(network="dense", likelihood="robust-gaussian", latent_dim=4, length="1 epoch")
    train(config, tmp_path / "store", tmp_path / "run")
    run = TrainedRun.open(tmp_path / "run")
    assert classifier_error(run.model, run.store(), "posterior", 1.0, epochs=5) < 15
    assert classifier_error(run.model, run.store(), "posterior", 0.5, epochs=5) < 15


def test_classifiers_need_labels(trained_gaussian):
    run = TrainedRun.open(trained_gaussian)
    with pytest.raises(RunError, match="no labels"):
        classifier_error(run.model, run.store(), "posterior", 0.5)


def test_classifiers_need_a_test_split_and_two_classes(trained_gaussian, tmp_path):
    run, rows = TrainedRun.open(trained_gaussian), np.zeros((40, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "one.npz", x=rows, y=np.zeros(40, dtype=int))
    for test, message in ((5, "has one class only"), (0, "has no split test; prepare it with --test")):
        prepare(tmp_path / "one.npz", tmp_path / f"store-{test}", validation=5, test=test)
        with pytest.raises(RunError, match=message):
            classifier_error(run.model, Store(tmp_path / f"store-{test}"), "posterior", 0.5)


def test_generated_examples_become_a_store_with_their_labels(trained_bype, tmp_path):
    run = TrainedRun.open(trained_bype)
    store = run.store()
    manifest = export_generated(run, store, "posterior", tmp_path / "made")
    made = Store(tmp_path / "made")
    made.verify()
    rows = np.arange(465)
    assert manifest.classes == store.manifest.classes
    assert np.array_equal(made.split("train").labels(rows), store.split("train").labels(rows))
    real, new = store.split("train").read(rows).astype(float), made.split("train").read(rows).astype(float)
    mine = np.square(real - new).mean()
    others = np.square(real - np.roll(new, 1, axis=0)).mean()
    assert mine < 0.5 * others  # each is like its own example


def test_few_rows_are_decoded_at_once_when_scores_are_asked_for(bype_run, tmp_path, monkeypatch):
    """Each example is decoded 25 times: all of a chunk at once would fill memory."""
    sizes, original = [], scores.importance_weighted_bound

    def watched(model, x, *arguments, **keywords):
        sizes.append(len(x))
        return original(model, x, *arguments, **keywords)

    monkeypatch.setattr(scores, "importance_weighted_bound", watched)
    run = TrainedRun.open(bype_run)
    embed_split(run, run.store().split("test"), tmp_path / "embedded", EmbeddingOptions(num_samples=2))
    assert sum(sizes) == 75
    assert max(sizes) <= 32
