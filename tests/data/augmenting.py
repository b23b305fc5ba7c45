"""What the tests of augmentation share: sizes, settings, pictures that are easy to get wrong, and draws."""

import torch
from torch import Tensor

from twincluster.config import Augment
from twincluster.data import batches as ours

SIZES = [(8, 8, 16), (32, 32, 32), (96, 96, 64), (40, 24, 32)]  # height, width, side of the view
MEAN = torch.tensor([0.49, 0.48, 0.45])
STD = torch.tensor([0.25, 0.24, 0.26])
NO_MEAN, NO_STD = torch.zeros(3), torch.ones(3)  # standardised with these, a view keeps its pixels in [0, 1]
EVERYTHING = Augment(jitter=0.8, rotate=15.0, blur=0.5, solarise=0.3, hole=0.5)
NOTHING = Augment(crop_area=(1.0, 1.0), crop_ratio=(1.0, 1.0), grey=0.0, jitter=0.0, flip=0.0)


def photos(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Smooth colour fields with noise on top, uint8 (n,height,width,3), and a few black, white and primary pixels."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=random) * 1.4 - 0.2
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
    noisy = smooth + 0.05 * torch.randn(n, 3, height, width, generator=random)
    images = (noisy * 255).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    primary = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 255, 255]])
    images[:, 1, :6] = primary.to(torch.uint8)
    return images


def planes(images: Tensor) -> Tensor:  # uint8 (N,H,W,3) -> float32 (N,3,H,W) in [0,1]
    return images.permute(0, 3, 1, 2).float() / 255


def draws(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, ours.N_DRAWS, generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5, check_stride=False)
