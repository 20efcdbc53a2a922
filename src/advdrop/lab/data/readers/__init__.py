"""From files to examples: one file a format.

Every function is pure, trusts nothing in the file, and allocates no more than the file really holds. What cannot be
used is a `DataError` that names the file.
"""

from advdrop.lab.data.readers.arrays import RawPart, build, features, read_npz
from advdrop.lab.data.readers.cifar import CIFAR_BATCHES, cifar_binary_batch, cifar_python_batch, read_cifar
from advdrop.lab.data.readers.common import Array, Pair
from advdrop.lab.data.readers.datasets import from_torch
from advdrop.lab.data.readers.idx import read_idx, read_idx_pair
from advdrop.lab.data.readers.images import every_fifth, image_pixels, read_image_files, read_images
from advdrop.lab.data.readers.svhn import read_svhn

__all__ = [
    "CIFAR_BATCHES",
    "Array",
    "Pair",
    "RawPart",
    "build",
    "cifar_binary_batch",
    "cifar_python_batch",
    "every_fifth",
    "features",
    "from_torch",
    "image_pixels",
    "read_cifar",
    "read_idx",
    "read_idx_pair",
    "read_image_files",
    "read_images",
    "read_npz",
    "read_svhn",
]
