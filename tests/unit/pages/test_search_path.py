"""Whatever of ours starts an interpreter keeps the current directory out of its search path: somebody else may have put
a module there."""

import ast
from pathlib import Path

import everstep

SOURCE = Path(everstep.__file__).parent


def commands(tree: ast.AST):
    """Lists and tuples that begin with `sys.executable`, or another interpreter, and an option."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            words = [each.value if isinstance(each, ast.Constant) else ast.unparse(each) for each in node.elts]
            if words[0] in ("sys.executable", "python") and str(words[1]).startswith("-"):
                yield words


def test_every_interpreter_of_ours_is_told_to_leave_out_the_current_directory():
    found = {}
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    for path, text in texts.items():
        for words in commands(ast.parse(text)) if "sys.executable" in text or '"python"' in text else ():
            found[f"{path.relative_to(SOURCE)}: {' '.join(map(str, words[:4]))}"] = words
    safe = [key for key, words in found.items() if "-P" in words or "_BOOT" in words or "-u" in words]
    assert len(found) > 8
    # `-u` alone starts the user's own program, as torchrun does.
    assert sorted(found.keys() - set(safe)) == []
