import os

import pytest
import torch

from advdrop.lab.data import UNLABELED, DataError, DataSet, Examples
from advdrop.lab.data.sources import load


def examples(count, *, label=0, shape=(3,), dtype=torch.float32):
    return Examples(torch.zeros(count, *shape, dtype=dtype), torch.full((count,), label))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2).long(), "got torch.float64"),
        (torch.zeros(2), torch.zeros(2).long(), r"of \(2,\)"),
        (torch.zeros(2, 3), torch.zeros(2), "one int64 for each of the 2 examples, got torch.float32"),
        (torch.zeros(2, 3), torch.zeros(3).long(), r"got torch.int64 of shape \(3,\)"),
    ],
)
def test_examples_refuse(x, y, message):
    with pytest.raises(DataError, match=message):
        Examples(x, y)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (examples(0), examples(1), "toy has 0 training and 1 test examples"),
        (examples(2), examples(0), "toy has 2 training and 0 test examples"),
        (examples(2), examples(1, shape=(4,)), "its test examples"),
        (examples(2), examples(1, dtype=torch.uint8), "its test examples torch.uint8"),
        (examples(2, label=2), examples(1), r"training labels of toy must be in -1\.\.1, got values from 2 to 2"),
        (examples(2), examples(1, label=UNLABELED), r"test labels of toy must be in 0\.\.1"),
    ],
)
def test_data_sets_refuse(train, test, message):
    with pytest.raises(DataError, match=message):
        DataSet("toy", train, test, ("a", "b"))


def test_training_examples_may_be_unlabeled():
    data = DataSet("toy", examples(2, label=UNLABELED), examples(1), ("a", "b"))
    assert (len(data.train), data.shape) == (2, (3,))


def test_checksum_tells_data_sets_apart():
    def data(value=0.0, label=0, classes=("a", "b"), shape=(2, 3)):
        train = Examples(torch.full((4, *shape), value), torch.tensor([0, 1, 0, label]))
        return DataSet("toy", train, examples(1, shape=shape), classes)

    same, *others = (
        data(),
        data(value=1.0),
        data(label=1),
        data(classes=("a", "c")),
        data(shape=(3, 2)),
    )
    assert same.checksum == data().checksum
    assert len({same.checksum, *(other.checksum for other in others)}) == 5


def test_checksum_sees_values_not_memory():
    x = torch.arange(12.0).view(3, 4)
    labels = torch.tensor([0, 1, 0])
    one = DataSet("toy", Examples(x, labels), Examples(x, labels), ("a", "b"))
    two = DataSet("toy", Examples(x.T.contiguous().T, labels), Examples(x, labels), ("a", "b"))
    assert one.checksum == two.checksum


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize("name", ["own.npz", "own.csv"])
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{name} is .*not a file"):
        load(str(tmp_path / name))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
@pytest.mark.parametrize(
    ("dataset", "file"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-batches-bin/data_batch_1.bin"),
        ("svhn", "svhn/train_32x32.mat"),
    ],
)
def test_a_pipe_among_the_files_of_a_data_set_is_refused(dataset, file, tmp_path):
    path = tmp_path / file
    path.parent.mkdir()
    for name in (*FILES_OF[dataset], path.name):
        (path.parent / name).touch()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"not a file|not in"):
        load(dataset, tmp_path, download=False)


FILES_OF = {
    "mnist": ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
    "cifar10": [*(f"data_batch_{number}.bin" for number in range(2, 6)), "test_batch.bin"],
    "svhn": ["test_32x32.mat"],
}
