"""What is found wrong with a program by reading it, with file and line; and what is left to the start."""

import sys
from pathlib import Path

import pytest

from everstep.agent.versions.reading import file_of_module, read_program


def why(folder: Path, program: str = "train.py", **files: str) -> str:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_program(str(folder / program), [str(folder), *sys.path], str(folder)).why


def test_a_whole_program(tmp_path: Path):
    assert why(tmp_path, train="import os, model\nfrom pkg.part import thing\n", model="", pkg__part="thing = 1") == ""
    assert read_program(str(tmp_path / "train.py"), [str(tmp_path)]).num_files == 3


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"train": "x = (\n"}, "train.py:1: SyntaxError"),
        ({"train": "import model\n", "model": "def f(:\n"}, "model.py:1: SyntaxError"),
        ({"train": "import model\n", "model": "\nreturn 1\n"}, "model.py:2: SyntaxError: 'return' outside function"),
        ({"train": "\nimport no_such_thing\n"}, "train.py:2: there is no module 'no_such_thing'"),
        ({"train": "import pkg.gone\n", "pkg__part": ""}, "train.py:1: there is no module 'pkg.gone'"),
        ({"train": "import pkg.a\n", "pkg__a": "from .b import c\n"}, "pkg/a.py:1: there is no module 'pkg.b'"),
        ({"train": "def f():\n    import model\n", "model": "1 +\n"}, "model.py:1: SyntaxError"),
    ],
)
def test_what_cannot_start(tmp_path: Path, files: dict[str, str], wrong: str):
    assert why(tmp_path, **files).startswith(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import no_such_thing\nexcept ImportError:\n    pass\n",
        "if False:\n    import no_such_thing\n",
        "def f():\n    import no_such_thing\n",
        "from os import no_such_name\n",  # only running it tells
        "import json.decoder, torch.no_such_part\n",  # libraries make modules as they please
    ],
)
def test_what_reading_does_not_tell(tmp_path: Path, text: str):
    assert why(tmp_path, train=text) == ""


def test_imports_in_a_circle_end(tmp_path: Path):
    assert why(tmp_path, train="import a\n", a="import b\n", b="import a\n") == ""


def test_the_file_of_a_module(tmp_path: Path):
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/train.py", "pkg/sub/__init__.py", "pkg/sub/__main__.py"):
        (tmp_path / name).write_text("raise SystemExit('was run')\n")
    path = [str(tmp_path)]
    assert file_of_module("pkg.train", path) == str(tmp_path / "pkg" / "train.py")
    assert file_of_module("pkg.sub", path) == str(tmp_path / "pkg" / "sub" / "__main__.py")
    assert file_of_module("pkg.gone", path) == ""
