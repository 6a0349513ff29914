"""Whatever of ours starts an interpreter keeps the current directory out of its search path: somebody else may have put
a module there."""

import ast
from collections.abc import Sequence

from printed import nodes, sources


def commands(walked: Sequence[ast.AST]):
    """Lists and tuples that begin with `sys.executable`, or another interpreter, and an option."""
    for node in walked:
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            words = [each.value if isinstance(each, ast.Constant) else ast.unparse(each) for each in node.elts]
            if words[0] in ("sys.executable", "python") and str(words[1]).startswith("-"):
                yield words


def test_every_interpreter_of_ours_is_told_to_leave_out_the_current_directory():
    found = {}
    for where, text in sources().items():
        for words in commands(nodes(where)) if "sys.executable" in text or '"python"' in text else ():
            found[f"{where}: {' '.join(map(str, words[:4]))}"] = words
    safe = [key for key, words in found.items() if "-P" in words or "_BOOT" in words or "-u" in words]
    assert len(found) > 8
    # `-u` alone starts the user's own program, as torchrun does.
    assert sorted(found.keys() - set(safe)) == []
