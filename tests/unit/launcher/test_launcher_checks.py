"""Found before anything is started: each mistake has its own words and exit code."""

import msgspec
import pytest

from everstep.errors import ConfigError, JournalError, PortInUseError
from everstep.launcher.arguments import checks, options
from everstep.launcher.arguments.settings import resolve
from everstep.model.spec import Launch

SETTINGS = resolve(options.parse(["train.py"]), {})


def program(path, launch=Launch.SCRIPT):
    return msgspec.structs.replace(SETTINGS, program=str(path), launch=launch)


def test_a_good_script_passes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('x')\n")
    checks.check_program(program(script))


def test_a_script_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"script not found: .*nothing\.py"):
        checks.check_program(program(tmp_path / "nothing.py"))


def test_a_script_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        checks.check_program(program(tmp_path))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:\n  pass\n", "train.py:1: SyntaxError"),
        ("x = 1\n\tif x\n", "train.py:2: IndentationError"),
        ("x = '\n", "unterminated string"),
        ("a\x00b", "null bytes|does not compile"),
    ],
)
def test_a_script_that_does_not_compile_is_shown(tmp_path, source, words):
    script = tmp_path / "train.py"
    script.write_text(source)
    with pytest.raises(ConfigError, match=words):
        checks.check_program(program(script))


def test_the_caret_stands_under_the_mistake(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x = 1\nfor i in range(3)\n    pass\n")
    with pytest.raises(ConfigError) as caught:
        checks.check_program(program(script))
    *_, line, caret = str(caught.value).splitlines()
    assert line.strip() == "for i in range(3)"
    assert caret.index("^") - line.index("for") == len("for i in range(3)")


def test_a_module(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    checks.check_program(program("mine", Launch.MODULE))
    with pytest.raises(ConfigError, match="module not found: nobody"):
        checks.check_program(program("nobody", Launch.MODULE))
    with pytest.raises(ConfigError, match=r"nobody\.at_home cannot be found"):
        checks.check_program(program("nobody.at_home", Launch.MODULE))


def test_a_command(tmp_path):
    checks.check_program(program("sh", Launch.COMMAND))
    with pytest.raises(ConfigError, match="not executable"):
        checks.check_program(program(tmp_path / "x", Launch.COMMAND))


def test_a_run_directory_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Choose another with --run-dir") as caught:
        checks.check_run_dir(tmp_path / "file" / "run")
    assert caught.value.exit_code == 4


def test_a_full_disk_is_said_with_its_free_space(tmp_path, monkeypatch):
    free = checks.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checks, "MIN_FREE_BYTES", free.total + 1)
    with pytest.raises(JournalError, match=r"MiB free, needed are at least"):
        checks.check_run_dir(tmp_path)


def test_a_port_in_use():
    with checks.bind(0, "--ui-port") as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} .* --ui-port") as caught:
            checks.bind(port, "--ui-port")
        assert caught.value.exit_code == 6
