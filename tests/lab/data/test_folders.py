import os
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from advdrop.lab.data.examples import DataError, every_fifth
from advdrop.lab.data.folders import read_csv, read_images
from advdrop.lab.data.sources import load


def draw(path, value=0, size=(4, 3), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def three(folder):
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        draw(folder / name)
    return folder


# --- folders


@pytest.mark.parametrize(("mode", "size"), [("L", (3, 9)), ("L", (1, 20)), ("RGB", (3, 9)), ("RGB", (1, 1))])
def test_pictures_as_narrow_as_colors_are_many_are_read(tmp_path, mode, size):
    for number, name in enumerate(("train/a/1.png", "train/b/1.png", "test/a/1.png")):
        draw(tmp_path / name, number if mode == "L" else (number, 0, 9), size, mode)
    data = read_images(tmp_path)
    assert data.shape == (len(mode), size[1], size[0])
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1]


def test_image_folder_with_train_and_test(tmp_path):
    draw(tmp_path / "train/b/2.png", 20)
    draw(tmp_path / "train/b/1.PNG", 10)
    draw(tmp_path / "train/a/deep/er/1.bmp", 5)
    draw(tmp_path / "test/a/1.png", 1)
    draw(tmp_path / "unlabeled/x/1.png", 99)
    draw(tmp_path / "train/.hidden/1.png", 3)
    draw(tmp_path / "train/a/.hidden.png", 3)
    data = read_images(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("a", "b")
    assert data.shape == (1, 3, 4)
    assert data.train.x[:, 0, 0, 0].tolist() == [5, 10, 20, 99]
    assert data.train.y.tolist() == [0, 1, 1, -1]
    assert (data.test.x.max(), data.test.y.tolist()) == (1, [0])
    assert data.notes == (
        "no test example of b: errors there are not measured; give each class five examples or more, or test examples "
        "of its own",
        "images of 4×3 pixels, gray",
        "read 5 images",
    )


@pytest.mark.parametrize(("train", "test"), [("Train", "TEST"), ("training", "testing"), ("train", "Testing")])
def test_train_and_test_have_other_names_too(tmp_path, train, test):
    for name in (f"{train}/a/1.png", f"{train}/b/1.png", f"{test}/a/1.png", f"{test}/b/1.png"):
        draw(tmp_path / name)
    data = read_images(tmp_path)
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.test)) == (2, 2)


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_images_for_validation_are_for_testing_if_no_others_are(tmp_path, name):
    for path in ("train/a/1.png", "train/b/1.png", f"{name}/a/1.png", f"{name}/b/1.png"):
        draw(tmp_path / path)
    data = read_images(tmp_path)
    assert len(data.test) == 2
    assert data.notes[0] == f"the images in {tmp_path / name} are for testing: there is no folder test"
    draw(tmp_path / "test/a/1.png")
    assert len(read_images(tmp_path).test) == 1


@pytest.mark.parametrize("name", ["test", "Testing", "val"])
def test_a_test_folder_beside_classes_is_no_class(tmp_path, name):
    for label in ("a", "b", f"{name}/a", f"{name}/b"):
        for i in range(5):
            draw(tmp_path / label / f"{i}.png")
    with pytest.raises(DataError, match=rf"has a folder {name}, but no folder train; move .* into train/, or give"):
        read_images(tmp_path)


def test_two_folders_for_training_are_refused(tmp_path):
    draw(three(tmp_path) / "Training/a/1.png")
    with pytest.raises(DataError, match="has a folder Training and a folder train; keep one of them"):
        read_images(tmp_path)


def test_files_and_folders_that_are_not_read_are_told(tmp_path):
    for name in ("train/c/1.HEIC", "train/c/2.heic", "train/a/notes.txt", "README", "test/a/1.avif"):
        path = three(tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no image")
    (tmp_path / "unlabeled").mkdir()
    data = read_images(tmp_path)
    assert data.classes == ("a", "b")
    assert data.notes[:3] == (
        f"{tmp_path / 'train/c'} is ignored: it has no picture that can be read",
        f"{tmp_path / 'unlabeled'} is ignored: it has no picture that can be read",
        "5 files are not pictures that can be read (.avif, .heic, .txt, no ending): train/a/notes.txt, train/c/1.HEIC, "
        "train/c/2.heic, 2 more",
    )


def test_what_systems_put_into_folders_is_not_told(tmp_path):
    for name in (".DS_Store", "train/a/Thumbs.db", "train/b/desktop.ini", "train/b/._1.png", "test/.git/config"):
        path = three(tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no image")
    assert [note for note in read_images(tmp_path).notes if "ignored" in note or "not a picture" in note] == []


def test_other_files_among_unlabeled_images_elsewhere_are_told(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more/1.heic").write_text("no image")
    told = f"1 file is not a picture that can be read (.heic): {tmp_path / 'more/1.heic'}"
    with pytest.raises(DataError, match="has no images; 1 file is not a picture") as caught:
        read_images(three(tmp_path / "data"), unlabeled=tmp_path / "more")
    assert told in str(caught.value)
    draw(tmp_path / "more/2.png")
    assert told in read_images(tmp_path / "data", unlabeled=tmp_path / "more").notes


def test_classes_without_a_test_image_are_told(tmp_path):
    for label, count in (("a", 5), ("b", 4), ("c", 5)):
        for i in range(count):
            draw(tmp_path / label / f"{i}.png")
    assert read_images(tmp_path).notes[0].startswith("no test example of b: errors there are not measured")


def test_class_folders_may_be_links(tmp_path):
    for name in ("elsewhere/1.png", "data/train/a/1.png", "data/test/a/1.png"):
        draw(tmp_path / name)
    (tmp_path / "data/train/b").symlink_to(tmp_path / "elsewhere")
    assert read_images(tmp_path / "data").classes == ("a", "b")


def test_image_folder_without_train_holds_out_every_fifth(tmp_path):
    for label in "ab":
        for i in range(10):
            draw(tmp_path / label / f"{i}.png", (i, 0, 255), mode="RGB")
    draw(tmp_path / "Unlabelled/u.png", (7, 0, 0), mode="RGB")
    data = read_images(tmp_path)
    assert data.shape == (3, 3, 4)
    assert data.test.x[:, 0, 0, 0].tolist() == [4, 9, 4, 9]
    assert data.test.x[0, :, 2, 3].tolist() == [4, 0, 255]
    assert data.train.y.tolist() == [0] * 8 + [1] * 8 + [-1]


@given(labels=st.lists(st.integers(0, 3), max_size=60))
def test_every_fifth_is_a_fifth_of_each_class(labels):
    labels = np.array(labels, int)
    held_out = every_fifth(labels)
    for label in range(4):
        assert held_out[labels == label].sum() == (labels == label).sum() // 5


def test_images_beside_the_class_folders_have_no_label(tmp_path):
    for name in ("loose.png", "train/loose.png", "train/unlabeled/1.png", "test/loose.png", "validation/a/1.png"):
        draw(three(tmp_path) / name)
    data = read_images(tmp_path)
    assert data.train.y.tolist() == [0, 1, -1, -1, -1]
    assert len(data.test) == 1
    assert data.notes[:4] == (
        f"1 images directly in {tmp_path / 'train'} are unlabeled: they are in no folder of a class",
        f"1 images directly in {tmp_path / 'test'} are ignored: they are in no folder of a class",
        f"1 images directly in {tmp_path} are unlabeled: they are in no folder of a class",
        f"{tmp_path / 'validation'} is ignored: besides train, only test and unlabeled are read",
    )


def test_unlabeled_images_among_the_test_images_are_for_training(tmp_path):
    draw(three(tmp_path) / "test/unlabeled/1.png", 7)
    data = read_images(tmp_path)
    assert data.train.x[data.train.y == -1].flatten(1)[:, 0].tolist() == [7]
    assert len(data.test) == 1
    told = f"the images in {tmp_path / 'test/unlabeled'} are for training: without a label they cannot be tested"
    assert told in data.notes


def test_images_of_any_size_and_mode_get_one_shape(tmp_path):
    draw(three(tmp_path) / "train/b/2.jpg", (255, 0, 0), size=(90, 70), mode="RGB")
    draw(tmp_path / "train/b/3.tif", 257 * 9, size=(70, 90), mode="I;16")
    data = read_images(tmp_path)
    assert data.shape == (3, 16, 16)  # the median of 4×3 three times and 90×70 twice is 4
    assert data.train.x[:, :, 9, 9].tolist() == [[0] * 3, [0] * 3, [254, 0, 0], [9] * 3]
    assert data.notes[-1] == "read 5 images: 5 resized, 4 converted to RGB"
    assert read_images(tmp_path, size=(20, 30), color="gray").shape == (1, 20, 30)
    assert data.pictures


def test_a_file_that_cannot_be_read_is_left_out(tmp_path):
    for label in "ab":
        for i in range(6):
            draw(tmp_path / label / f"{i}.png", i)
    (tmp_path / "a/0.png").write_text("no picture")
    data = read_images(tmp_path)
    assert data.train.x[:, 0, 0, 0].tolist() == [1, 2, 3, 4, 0, 1, 2, 3, 5]
    assert data.test.x[:, 0, 0, 0].tolist() == [5, 4]  # every fifth of those that can be read
    assert data.notes[-1] == "read 11 of 12 images: 1 skipped (a/0.png: not an image)"


def test_a_class_of_which_nothing_can_be_read_is_an_error(tmp_path):
    (three(tmp_path) / "train/b/1.png").write_text("no picture")
    with pytest.raises(DataError, match=r"no image of the class 'b' can be read.*train/b/1.png: not an image"):
        read_images(tmp_path)


def test_links_to_folders_are_not_followed_below_a_class(tmp_path):
    (three(tmp_path) / "train/b/loop").symlink_to(tmp_path)
    data = read_images(tmp_path)
    assert len(data.train) == 2
    assert f"{tmp_path / 'train/b/loop'} is ignored: it is a link to a folder" in data.notes


def test_links_to_folders_among_unlabeled_pictures_are_told(tmp_path):
    draw(tmp_path / "more/1.png", 9)
    (tmp_path / "more/loop").symlink_to(tmp_path)
    notes = read_images(three(tmp_path / "data"), unlabeled=tmp_path / "more").notes
    assert f"{tmp_path / 'more/loop'} is ignored: it is a link to a folder" in notes


def test_test_pictures_that_are_training_pictures_too_are_told(tmp_path):
    for number in range(10):
        draw(tmp_path / f"data/a/{number}.png", number)
        draw(tmp_path / f"data/b/{number}.png", 100 + number)
    assert not [note for note in read_images(tmp_path / "data").notes if "copy" in note]
    draw(tmp_path / "data/a/0.png", 4)  # the fifth is for testing
    draw(tmp_path / "more/1.png", 109)  # a test picture of b
    told = "2 of 4 test examples have a copy among the training examples, so the test error may be too low"
    assert any(note.startswith(told) for note in read_images(tmp_path / "data", unlabeled=tmp_path / "more").notes)


def test_a_folder_that_cannot_be_opened_is_not_left_out(tmp_path, monkeypatch):
    (three(tmp_path) / "train/b/deep").mkdir()
    scan = os.scandir

    def closed(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(DataError, match=r"Permission denied: .*train/b/deep"):
        read_images(tmp_path)


@pytest.mark.parametrize("name", ["b\n<script>", "\x1b[2J", "b\udcff", "\u202eb", "=1+1", "b" * 200])
def test_names_of_any_bytes(tmp_path, name):
    draw(three(tmp_path) / "train" / name / "1.png")
    if name in ("\u202eb", "=1+1", "b" * 200):
        assert name in read_images(tmp_path).classes
        return
    with pytest.raises(DataError, match=r"has the class .*, a name with control characters or broken text") as caught:
        read_images(tmp_path)
    assert str(caught.value).isprintable()


def test_one_name_may_be_written_in_two_ways(tmp_path):
    draw(three(tmp_path) / "train" / normalize("NFC", "Tür") / "1.png")
    draw(tmp_path / "test" / normalize("NFD", "Tür") / "1.png")
    assert read_images(tmp_path).classes == ("Tür", "a", "b")


@pytest.mark.parametrize("text", ["-1", "None"])
def test_what_looks_like_a_missing_label_is_a_class_like_any_other(text, tmp_path):
    draw(three(tmp_path) / "train" / text / "1.png")
    data = read_images(tmp_path)
    assert data.classes == (text, "a", "b")
    assert data.notes[0].startswith(f"{text} is a class like any other here")


@pytest.mark.parametrize("names", [[], ["train/a/1.png"], ["a/1.png", "b/1.png"], ["1.png"], ["unlabeled/1.png"]])
def test_a_folder_without_enough_images_is_refused(tmp_path, names):
    for name in names:
        draw(tmp_path / name)
    with pytest.raises(DataError, match="it needs train/CLASS"):
        read_images(tmp_path)


def test_one_class_is_refused(tmp_path):
    for i in range(5):
        draw(tmp_path / f"only/{i}.png")
    with pytest.raises(DataError, match=r"at least two classes, got only \(each class is a folder or a label"):
        read_images(tmp_path)


# --- a folder of unlabeled images elsewhere


def test_unlabeled_images_may_be_elsewhere(tmp_path):
    draw(three(tmp_path / "data") / "unlabeled/0.png", 5)
    draw(tmp_path / "more/deep/1.png", 9)
    data = load(tmp_path / "data", unlabeled=str(tmp_path / "more"))
    assert data.train.y.tolist() == [0, 1, -1, -1]
    assert data.train.x[2:, 0, 0, 0].tolist() == [5, 9]
    assert data.checksum != load(tmp_path / "data").checksum


@pytest.mark.parametrize("name", ["train/extra", "train/extra/deep"])
def test_the_folder_of_a_class_has_no_unlabeled_images(name, tmp_path):
    draw(three(tmp_path) / "train/extra/deep/1.png", 9)
    with pytest.raises(DataError, match=r"train/extra.* is in the folder of the class 'extra'; move it out of"):
        read_images(tmp_path, unlabeled=tmp_path / name)
    (tmp_path / "train/extra").rename(tmp_path / "train/unlabeled")
    data = read_images(tmp_path, unlabeled=tmp_path / "train/unlabeled/deep")
    assert data.train.y.tolist() == [0, 1, -1]


def test_what_is_in_both_is_read_once(tmp_path):
    draw(three(tmp_path / "data") / "extra/1.png", 9)
    data = read_images(tmp_path / "data", unlabeled=tmp_path / "data")
    assert data.train.y.tolist() == [0, 1, -1]
    assert f"3 images in {tmp_path / 'data'} are in the data set already" in data.notes


@pytest.mark.parametrize("name", ["nowhere", "data/train/a/1.png", "empty"])
def test_a_folder_without_images_is_refused(tmp_path, name):
    three(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="--unlabeled takes a folder of images"):
        read_images(tmp_path / "data", unlabeled=tmp_path / name)


@pytest.mark.parametrize("option", [{"size": 8}, {"color": "rgb"}, {"unlabeled": "x"}])
def test_only_pictures_have_these_options(tmp_path, option):
    np.savez(tmp_path / "a.npz", x_train=np.eye(2), y_train=[0, 1], x_test=np.eye(2), y_test=[0, 1])
    for name in ("digits", tmp_path / "a.npz"):
        with pytest.raises(DataError, match=f"{next(iter(option))}=.* is for folders of images and CSV files"):
            load(name, **option)


# --- CSV files


def table(folder, text, files=10):
    for number in range(files):
        draw(folder / f"images/{number}.png", number)
    (folder / "labels.csv").write_bytes(text.encode())
    return folder / "labels.csv"


def rows(labels, head=",path,label\n"):
    return head + "".join(f"{number},images/{number}.png,{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_table_of_paths_and_labels_as_pandas_writes_it(tmp_path, start):
    data = load(table(tmp_path, start + rows("aaaaabbbbb")))
    assert (data.name, data.classes) == ("labels", ("a", "b"))
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert data.test.x[:, 0, 0, 0].tolist() == [4, 9]


def test_pandas_itself(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = table(tmp_path, "")
    frame = pandas.DataFrame({"label": ["a, b", 'c"d'] * 4 + [None, float("nan")]})
    frame["path"] = [str(tmp_path / f"images/{number}.png") for number in range(10)]
    frame["split"] = ["train"] * 6 + ["test"] * 2 + ["train"] * 2
    frame.to_csv(path)
    data = read_csv(path)
    assert data.classes == ("a, b", 'c"d')
    assert data.train.y.tolist() == [0, 1] * 3 + [-1, -1]
    assert data.test.x[:, 0, 0, 0].tolist() == [6, 7]


def test_columns_may_be_in_any_order_and_a_label_may_be_missing(tmp_path):
    path = table(
        tmp_path, "Split, Label ,note,PATH\ntrain,a,,images/0.png\n,b,x,images/1.png\n\ntest,a,y,images/2.png\n"
    )
    assert read_csv(path).train.y.tolist() == [0, 1]
    missing = [*"aaaaabb", "", "NaN", "<NA>"]
    data = read_csv(table(tmp_path, rows(missing)))
    assert data.train.y.tolist() == [0] * 4 + [1, 1] + [-1] * 3


def test_files_that_are_not_there_are_skipped_and_named_by_their_line(tmp_path):
    data = read_csv(table(tmp_path, rows("aaaaabbbbbb")))
    assert data.notes[-1] == "read 10 of 11 images: 1 skipped (line 12, images/10.png: no such file)"


def test_all_the_others_of_a_folder_are_unlabeled(tmp_path):
    data = read_csv(table(tmp_path, rows("aaaaabb")), unlabeled=tmp_path / "images")
    assert data.train.x[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert data.train.y.tolist() == [0] * 4 + [1] * 2 + [-1] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"labels\.csv: line 1: needs one column 'path', has none"),
        ("file,label\n", "line 1: needs one column 'path', has 'file', 'label'"),
        ("path,path,label\n", "line 1: needs one column 'path'"),
        ("path\n", "line 1: needs one column 'label'"),
        ("path,label\nimages/0.png,a,b\n", "line 2: has 3 values for 2 columns; quote texts with commas"),
        ("path,label\nimages/0.png,a\n ,b\n", "line 3: has no path"),
        ("path,label\nimages/0.png,a\nimages/../images/0.png,b\n", "line 3: .* is in line 2 already"),
        ("path,label,split\nimages/0.png,a,val\n", "line 2: split must be train or test, got 'val'"),
        ("path,label,split\nimages/0.png,,test\n", "line 2: has no label; every test image needs one"),
        ("path,label,split\nimages/0.png,a,train\nimages/1.png,b,\n", "no test images; it needs train and test"),
        ("path,label\nimages/0.png,\n", "no training images with a label"),
        ('path,label\n"images/0.png,a\n', r"labels\.csv: cannot be read \(Error: unexpected end of data"),
        ("path,label\nimages/\x00.png,a\n", "line 2: has no path|line contains NUL"),
    ],
)
def test_a_table_that_is_wrong_is_told_by_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_csv(table(tmp_path, text))


def test_a_table_in_another_encoding_is_refused(tmp_path):
    path = table(tmp_path, "")
    path.write_bytes("path,label\nimages/0.png,ü\n".encode("latin-1"))
    with pytest.raises(DataError, match="save it as a CSV file in UTF-8"):
        read_csv(path)
