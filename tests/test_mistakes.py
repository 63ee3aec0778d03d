"""Common mistakes: each is answered by one line that names the cause and the way out, and changes nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bype.cli import main
from bype.data.prepare import prepare
from bype.data.sources import SourceOptions
from small_runs import feature_store, image_store, small_run


def save_images(folder: Path, sizes: list[tuple[int, int]]) -> None:
    folder.mkdir()
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number, 40, 90)).save(folder / f"{number}.png")


def with_version(folder: Path, copy: Path, name: str, version: int) -> None:
    shutil.copytree(folder, copy)
    content = json.loads((copy / name).read_text())
    (copy / name).write_text(json.dumps({**content, "version": version}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, stores and other things to be mistaken about."""
    place = tmp_path_factory.mktemp("mistakes")
    for name in ("images", "unlabelled", "features", "empty"):
        (place / name).mkdir()
    length = {"length": "4 steps", "warm_up": "0 epochs"}
    store = image_store(place / "images", count=300)
    run = small_run(place / "run", store, **length)
    small_run(place / "plain", image_store(place / "unlabelled", count=300, labelled=False), prior="gaussian", **length)
    table = feature_store(place / "features")
    small_run(place / "rows", table, prior="gaussian", **length)
    turned = [",".join(line.split(",")[::-1]) for line in (place / "features" / "table.csv").read_text().splitlines()]
    (place / "turned.csv").write_text("\n".join(turned))
    prepare(place / "turned.csv", place / "turned", SourceOptions(label="kind"))
    names = (place / "features" / "table.csv").read_text().splitlines()[0].split(",")
    (place / "worded.csv").write_text("\n".join([",".join(names), *[",".join("wide" for _ in names)] * 30]))
    shutil.copytree(run, place / "unfinished")
    shutil.rmtree(place / "unfinished" / "best")
    shutil.rmtree(place / "unfinished" / "checkpoints")
    with_version(run, place / "newer-run", "config.json", 99)
    with_version(store, place / "newer-store", "manifest.json", 99)
    save_images(place / "photos", [(8, 8)] * 12)
    save_images(place / "two", [(8, 8)] * 2)
    save_images(place / "sizes", [(8, 8), (9, 8)] * 6)
    rows = [f"{k},{2 * k},{'uv'[k % 2]}" for k in range(30)]
    (place / "text.csv").write_text("\n".join(["mass,length,kind", *rows]))
    (place / "gaps.csv").write_text("\n".join(["mass,length", *(f"{k},{'' if k == 7 else k}" for k in range(30))]))
    (place / "semicolons.csv").write_text("\n".join(["mass;length", *(f"{k};{k}" for k in range(30))]))
    (place / "quoted.csv").write_text("\n".join(['"mass";"length"', *(f"{k};{k}" for k in range(30))]))
    np.save(place / "floats.npy", np.zeros((20, 8, 8)))
    (place / "short.csv").write_text("mass,length\n1,2\n3\n")
    (place / "bare.csv").write_text("\n".join(rows))
    np.save(place / "nan.npy", np.where(np.arange(60) == 9, np.nan, 1.0).reshape(30, 2))
    (place / "table.parquet").write_bytes(b"PAR1")
    (place / "taken.png").write_text("mine")
    (place / "Makefile").write_text("all:")
    return place


# Names that exist in the place above become paths; new/... is a place for outputs.
MISTAKES = {
    "misspelt command": ("evalute run", "did you mean 'evaluate'?"),
    "misspelt second word": ("data chekc images/store", "did you mean 'data check'?"),
    "misspelt recipe": ("train mnist/vae/bpye --data images/store --out new/run", "did you mean 'mnist/vae/bype'?"),
    "misspelt column": ("fit text.csv --label knid --out new/run", "did you mean 'kind'?"),
    "misspelt split": ("evaluate run --split tset", "did you mean 'test'?"),
    "misspelt folder": ("fit phtos --out new/run", "did you mean 'photos'?"),
    "missing extra": ("data prepare table.parquet --out new/store", "pip install pyarrow"),
    "number out of range": ("train --data images/store --out new/run --dropout 1.5", "at least 0 and below 1"),
    "length without a unit": ("train --data images/store --out new/run --length 20", "such as '10 epochs'"),
    "no labels": ("augment plain", "prepare it with labels"),
    "too few images": ("fit two --out new/run", "give more examples"),
    "more components than examples": (
        "train --data images/store --out new/run --components 500",
        "take 165 components or fewer",
    ),
    "run without a model": ("sample unfinished --out new/x.png", "run the command that began it"),
    "run of another format": ("sample newer-run --out new/x.png", "train again"),
    "store of another format": ("train --data newer-store --out new/run", "prepare the data again"),
    "other shape": ("evaluate run --data features/store", "give such examples"),
    "columns in another order": ("score rows --data turned --out new/x.csv", "the same columns in the same order"),
    "no such device": ("evaluate run --device gpu", "choose cpu, cuda"),
    "no GPU": ("train --data images/store --out new/run --device cuda", "install PyTorch for your GPU"),
    "a file for embeddings": ("embed run --out new/x.csv", "leave out .csv, and see --format"),
    "other data than those of the run": ("audit run --data unlabelled/store", "or leave out --data"),
    "output exists": ("sample run --out taken.png", "--force"),
    "store exists": ("data prepare photos --out images/store", "choose another folder"),
    "output folder is in use": ("fit photos --out photos", "choose another --out"),
    "a store in the output folder": ("fit images/store --out newer-store", "choose another --out"),
    "no such output folder": ("sample run --out new/deep/x.png", "make it, or choose another --out"),
    "a file is in the way": ("fit photos --out taken.png/run", "choose another --out"),
    "unknown ending": ("sample run --out new/x.gif", "ends in .png or .npy"),
    "text in a table": ("fit text.csv --out new/run", "pandas.get_dummies(table, columns=[...], dtype=float)"),
    "text in a table for a model": ("score rows --data worded.csv --out new/x.csv", "the model takes numbers"),
    "gaps in a table": ("fit gaps.csv --out new/run", "SimpleImputer().fit_transform(table)"),
    "gaps in an array": ("fit nan.npy --out new/run", "example 4 holds a number that is not finite"),
    "a short line": ("fit short.csv --out new/run", "line 3: 1 cells instead of 2; correct that line"),
    "images of different sizes": ("data prepare sizes --out new/store", "--size 64"),
    "empty folder": ("fit empty --out new/run", "give a folder that does"),
    "unknown kind of file": ("fit Makefile --out new/run", "give a folder of images"),
    "one broken image": ("fit taken.png --out new/run", "none of the 1 images can be read"),
    "store instead of a run": ("sample images/store --out new/x.png", "give a run that was trained on it"),
    "folder instead of a run": ("report photos --out new/x.html", "make one with: bype fit"),
    "run instead of a store": ("train --data run --out new/run", "give the store that it was trained on"),
    "folder instead of a store": ("train --data photos --out new/run", "make one with: bype data prepare"),
    "another config": ("train --data images/store --out run --components 9", "choose another folder (--out)"),
    "a length without quotes": ("train --data images/store --out new/run --length 10 epochs", "in quotes: '10 epochs'"),
    "a recipe at the end": ("train --data images/store --out new/run mnist/vae/bype", "the recipe comes first"),
    "a rule without points": ("train --data images/store --out new/run --prior gaussian --rule psvi", "has no rule"),
    "a setting of another rule": (
        "train --data images/store --out new/run --rule psvi --rule-live-points 5",
        "it has --rule-every",
    ),
    "a device that is not there": (
        "train --data images/store --out new/run --dry-run --device foo",
        "choose cpu, cuda",
    ),
    "shifts out of the image": ("train --data images/store --out new/run --shifts 12", "leave nothing of images"),
    "a list without values": ("sample run --out new/x.png --like", "--like needs at least one value"),
    "no such row": ("sample run --like 9999 --out new/x.png", "rows 0 to 74"),
    "no such image": ("reconstruct run --examples nosuch.png --out new/x.png", "or a row number"),
    "rows of nothing": ("sample run --data images/store --out new/x.png", "--data is for the row numbers of --like"),
    "no such component": ("sample run --component 77 --out new/x.png", "between 0 and 19"),
    "negative seed": ("fit photos --out new/run --seed -1", "--seed must be between 0 and"),
    "seed that is too large": (
        "sample run --out new/x.png --seed 1180591620717411303424",
        "--seed must be between 0 and",
    ),
    "endless training": ("fit photos --out new/run --minutes inf", "at most 525,600 (a year)"),
    "no number of minutes": ("fit photos --out new/run --minutes nan", "--minutes must be positive"),
    "a digit that is no number": ("sample run --like ² --out new/x.png", "or a row number"),
    "table without names": ("fit bare.csv --out new/run", "give the file a header line"),
    "semicolons and quotes": ("fit quoted.csv --out new/run", "write it with commas, and with decimal points"),
    "semicolons": ("fit semicolons.csv --out new/run", "write it with commas, and with decimal points"),
    "images of floats": ("data prepare floats.npy --out new/store", "(255 * x).round().astype('uint8')"),
    "a sheet that is no picture": ("data check images/store --sheet new/sheet", "ends in .png"),
    "a sheet of a table": ("data check features/store --sheet new/x.png", "leave out --sheet"),
    "a sheet in no folder": ("data check images/store --sheet new/deep/x.png", "choose another --sheet"),
    "a class without points": ("sample run --label 0 --out new/x.png", "train with labels of at least two classes"),
    "a folder instead of a name on the hub": ("fetch photos --out new/model", "OWNER/NAME"),
    "no pseudo-points": ("coreset plain --out new/c", "train one with the prior bype or vamp"),
}


def contents(folder: Path) -> dict[str, int]:
    """Return all files with their times; a lock is no content."""
    return {
        str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and "lock" not in path.name
    }


@pytest.mark.parametrize("name", MISTAKES)
def test_the_answer_is_one_line_with_the_way_out(name, place, tmp_path, monkeypatch, capsys):
    command, remedy = MISTAKES[name]
    (tmp_path / "new").mkdir()
    words = [
        str(tmp_path / word) if word.startswith("new/") else str(place / word) if (place / word).exists() else word
        for word in command.split()
    ]
    words = [str(place / word) if word in ("phtos", "taken.png/run") else word for word in words]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if name == "missing extra":
        monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    before = contents(place)
    assert main(words) == (2 if remedy.endswith(("'evaluate'?", "'data check'?")) else 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bype: ")
    assert remedy in line
    assert len(line.replace(str(place), "").replace(str(tmp_path), "")) < 400
    assert contents(place) == before
    assert not contents(tmp_path)
