"""The config suits the data: flips and shifts are chosen where the images themselves are flipped and shifted."""

import numpy as np
import pytest

from bype.data.prepare import prepare
from bype.data.store import Store
from bype.run import choice
from bype.run.choice import suitable_config

SIZE = 16


def gloves(count: int, *, flipped: bool, shifted: int) -> np.ndarray:
    """Draw hands of one side, brighter or darker; flipped and shifted at random, if so wished."""
    random = np.random.default_rng(0)
    hand = np.zeros((SIZE, SIZE))
    hand[6:11, 5:10] = 1
    hand[7:9, 10:12] = 0.6  # the thumb
    images = hand * random.uniform(0.5, 1, (count, 1, 1)) * 200 + random.normal(0, 4, (count, SIZE, SIZE)) + 20
    if flipped:
        images = np.stack([image[:, ::-1] if random.random() < 0.5 else image for image in images])
    moves = random.integers(-shifted, shifted + 1, (count, 2))
    images = np.stack([np.roll(image, move, axis=(0, 1)) for image, move in zip(images, moves, strict=True)])
    return np.clip(images, 0, 255).astype(np.uint8)


def test_points_that_start_as_noise_have_no_classes(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(60, 4)), y=np.arange(60) % 2)
    prepare(tmp_path / "x.npz", tmp_path / "store")
    store = Store(tmp_path / "store")
    assert suitable_config(store, "2 epochs", seed=0).labelled
    config = suitable_config(store, "2 epochs", seed=0, points_start="noise")
    assert (config.points_start, config.labelled) == ("noise", False)


def test_what_is_chosen_for_images_and_for_tables(tmp_path, monkeypatch):
    """As the guide lists it."""
    images = gloves(90, flipped=False, shifted=0)
    rows = np.random.default_rng(0).normal(size=(90, 10))
    for name, x in (("images", images), ("table", rows)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(90) % 3)
        prepare(tmp_path / f"{name}.npz", tmp_path / name)
    stores = {name: Store(tmp_path / name) for name in ("images", "table")}
    chosen = {name: suitable_config(store, "2 epochs", seed=0) for name, store in stores.items()}
    for config in chosen.values():
        assert (config.decay, config.learning_rate) == (True, 2e-3)
        assert (config.warm_up, config.patience) == ("0 epochs", "0 epochs")
        assert (config.components, config.labelled) == (18, True)  # a quarter of 72
    assert (chosen["images"].likelihood, chosen["images"].dropout) == ("learned-gaussian", 0.2)
    assert (chosen["table"].likelihood, chosen["table"].dropout) == ("robust-gaussian", 0.0)
    assert (chosen["images"].latent_dim, chosen["table"].latent_dim) == (14, 5)  # 72 / 5, 10 / 2
    assert suitable_config(stores["table"], "2 epochs", seed=0, components=6).labelled
    assert not suitable_config(stores["table"], "2 epochs", seed=0, components=5).labelled  # fewer than two a class
    monkeypatch.setattr(choice, "_MANY_EXAMPLES", 72)
    assert suitable_config(stores["images"], "2 epochs", seed=0).dropout == 0.0


@pytest.mark.parametrize(("flipped", "shifted"), [(False, 0), (True, 0), (False, 2)])
def test_flips_and_shifts_are_chosen_as_the_images_have_them(tmp_path, flipped, shifted):
    np.save(tmp_path / "x.npy", gloves(60, flipped=flipped, shifted=shifted))
    prepare(tmp_path / "x.npy", tmp_path / "store")
    config = suitable_config(Store(tmp_path / "store"), "2 epochs", seed=0, latent_dim=4)
    assert config.flips == flipped
    assert config.shifts in ((1, 2) if shifted else (0,))
