"""What is cut out of the installed torch is what torch itself has; where that cannot be done, torch is imported."""

import subprocess
import sys

import pytest
import torch.distributed.elastic.rendezvous.utils as rendezvous
import torch.distributed.run as theirs

from everstep.launcher.arguments import torch_parts
from everstep.launcher.arguments.torch_parts import part


def test_the_parser_is_torchruns():
    ours, torchs = part("torch.distributed.run", "get_args_parser")(), theirs.get_args_parser()
    assert ours.format_help() == torchs.format_help()
    line = ["--nnodes", "1:3", "--tee", "3", "--rdzv-id", "a b", "train.py", "--lr", "1"]
    assert vars(ours.parse_args(line)) == vars(torchs.parse_args(line))


@pytest.mark.parametrize("text", ["", "a", "a:1", "[::1]:29400", "a:b", "a:70000", "a:1:2"])
def test_a_function_of_torch_answers_as_it_does_there(text):
    def answer(function):
        try:
            return function(text, 7)
        except ValueError as error:
            return str(error)

    cut_out = part("torch.distributed.elastic.rendezvous.utils", "parse_rendezvous_endpoint")
    assert answer(cut_out) == answer(rendezvous.parse_rendezvous_endpoint)


def test_arguments_are_read_without_importing_torch():
    text = (
        "import sys\nfrom everstep.launcher.arguments import options, settings\n"
        "settings.resolve(options.parse(['--nproc-per-node', '2', '--rdzv-endpoint', 'localhost:0', 'x.py']), {})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_what_needs_torch_itself_is_imported():
    assert part("torch.distributed.run", "determine_local_world_size") is theirs.determine_local_world_size
    with pytest.raises(ImportError, match="no_such_name"):
        part("torch.distributed.run", "no_such_name")


@pytest.mark.parametrize(
    "text",
    [
        "from . import other\n",
        "try:\n    import other\nexcept ImportError:\n    other = None\n",
        "if 1:\n    other = 2\n",
    ],
)
def test_what_cannot_be_followed_is_no_part(tmp_path, text):
    (tmp_path / "odd.py").write_text(text + "def wanted(): return other\ndef plain(): return 1\n")
    with pytest.raises(ImportError, match="needs torch itself"):
        torch_parts._part(tmp_path, "torch.odd", "wanted")
    assert torch_parts._part(tmp_path, "torch.odd", "plain")() == 1


def test_without_torch_it_says_so(monkeypatch):
    monkeypatch.setattr(torch_parts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="No module named 'torch'"):
        part("torch.distributed.run", "get_args_parser")
