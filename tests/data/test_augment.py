"""Flips and shifts of images, against slicing by hand."""

import torch
import torch.nn.functional as F

from bype.data.augment import Augmentation

IMAGES = torch.rand(4, 2, 5, 7, generator=torch.Generator().manual_seed(0))


def test_nothing_is_changed_unless_asked():
    assert Augmentation()(IMAGES, torch.rand(4, 3)) is IMAGES


def test_flips_change_the_images_whose_number_is_high():
    found = Augmentation(flips=True)(IMAGES, torch.tensor([[0.4, 0, 0], [0.5, 0, 0], [0.99, 0, 0], [0, 0, 0]]))
    assert torch.equal(found[[1, 2]], IMAGES[[1, 2]].flip(-1))
    assert torch.equal(found[[0, 3]], IMAGES[[0, 3]])


def test_shifts_repeat_the_edges():
    numbers = torch.tensor([[0.9, 0.0, 0.99], [0.9, 0.5, 0.5], [0.9, 0.99, 0.0], [0.9, 0.3, 0.7]])
    found = Augmentation(shifts=2)(IMAGES, numbers)
    padded = F.pad(IMAGES, (2, 2, 2, 2), mode="replicate")
    for k, (down, right) in enumerate([(-2, 2), (0, 0), (2, -2), (-1, 1)]):
        assert torch.equal(found[k], padded[k, :, 2 + down : 7 + down, 2 + right : 9 + right])
