"""A folder of images of any size: train/CLASS/*, test/CLASS/*, and unlabeled/*, which are used for training too."""

import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from advdrop.lab.config.recipes import recipe
from advdrop.lab.data import load
from advdrop.lab.engine import train

with tempfile.TemporaryDirectory() as place:
    folder = Path(place) / "digits"  # a folder made for this example; yours is on your disk
    for number, (picture, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        part = "test" if number >= 1500 else "train" if number < 100 else "unlabeled"
        where = folder / (f"{part}/digit{label}" if part != "unlabeled" else part)
        where.mkdir(parents=True, exist_ok=True)
        drawn = Image.fromarray((picture.reshape(8, 8) * 15.9).astype("uint8"))
        drawn.resize((8 + number % 5,) * 2).save(where / f"{number}.png")

    data = load(folder, size=8)
    print("\n".join(data.notes))
    print(
        f"{len(data.train)} training images of {data.shape}, {len(data.classes)} classes, {len(data.test)} for testing"
    )
    config = recipe(data, str(folder), method="vadd-kl", updates=300)
    result = train(config, Path(place) / "run", data=data)
    print(f"{result['test_error_percent']:.1f} % test error")
