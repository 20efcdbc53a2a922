"""The generator of CatGAN and of the GAN with feature matching."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn


class Generator(nn.Module):
    """Random numbers to inputs: a dense layer and two transposed convolutions for images, dense layers for tables.

    Args:
        shape: one input's shape.
        latent: the length of z.
        filters: of the last hidden maps; twice as many below. A table has 8 times as many hidden units.
        pixels: whether the stored inputs are images of bytes; then the output is 255·sigmoid.
        to_input: maps what is stored to the input of the network, as it does with real examples.

    Shape: ``(B, latent) -> (B, *shape)``.

    References: Salimans et al. (2016), Improved Techniques for Training GANs, released code: batch norm and ReLU on
    hidden units.

    Deviations: two transposed convolutions of 4×4 instead of three of 5×5, and a sigmoid instead of tanh, because
    pixels are bytes here.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        latent: int = 100,
        filters: int = 64,
        *,
        pixels: bool = True,
        to_input: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.pixels, self.to_input = shape, pixels, to_input
        if len(shape) == 3 and min(shape[1:]) >= 4:
            height, width = (math.ceil(side / 4) for side in shape[1:])
            self.layers = nn.Sequential(
                nn.Linear(latent, 2 * filters * height * width, bias=False),
                nn.BatchNorm1d(2 * filters * height * width),
                nn.ReLU(),
                nn.Unflatten(1, (2 * filters, height, width)),
                nn.ConvTranspose2d(2 * filters, filters, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(),
                nn.ConvTranspose2d(filters, shape[0], 4, stride=2, padding=1),
            )
        else:
            units = 8 * filters
            self.layers = nn.Sequential(
                *(nn.Linear(latent, units, bias=False), nn.BatchNorm1d(units), nn.ReLU()),
                *(nn.Linear(units, math.prod(shape)), nn.Unflatten(1, shape)),
            )

    def stored(self, z: Tensor) -> Tensor:
        """Return inputs as a data set stores them: pixels from 0 to 255, or the numbers of a table."""
        x: Tensor = self.layers(z)
        if len(self.shape) == 3:
            x = x[:, :, : self.shape[1], : self.shape[2]]
        return 255.0 * x.sigmoid() if self.pixels else x

    def forward(self, z: Tensor) -> Tensor:
        """Return inputs of the network."""
        x = self.stored(z)
        return self.to_input(x) if self.to_input is not None else x
