"""Where a name of torch.distributed.checkpoint is in the tree of a State's state dicts.

Called by what reads checkpoints: `resharding`, `templates`, `exporting`.
"""

from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.metadata import TYPED_PATHS


def typed_path(metadata: Metadata, name: str) -> tuple[form.PathItem, ...] | None:
    """Where `name` is in the tree of state dicts; None: the checkpoint does not say (torch may leave it out)."""
    typed: tuple[form.PathItem, ...] | None = vars(metadata).get(TYPED_PATHS, {}).get(name)
    if typed is not None:
        return typed
    path = (metadata.planner_data or {}).get(name)
    return None if path is None else tuple((item,) if isinstance(item, int) else item for item in path)


def set_in(tree: dict[str, Any], path: tuple[form.PathItem, ...], leaf: object) -> None:
    """Put a leaf into a tree of state dicts: dicts by key, lists by index; lists grow."""
    holder: Any = tree
    for item, following in zip(path, (*path[1:], None), strict=True):
        key = item[0] if isinstance(item, tuple) else item
        is_last = following is None
        new: Any = leaf if is_last else ([] if isinstance(following, tuple) else {})
        if isinstance(holder, list):
            holder.extend([None] * (int(key) + 1 - len(holder)))
            if is_last or holder[int(key)] is None:
                holder[int(key)] = new
            holder = holder[int(key)]
        elif is_last:
            holder[key] = new
        else:
            holder = holder.setdefault(key, new)
