"""Objects whose own `state_dict` is useless after every step, and what is kept of them in its place.

Called by `everstep.State` for each object it is given. What stands for an object returns the live tensors, without
clones and without collectives, and copies into them when it is loaded. Frameworks are recognised by the names of their
classes: nothing is imported here that the program did not import. Raises TypeError, with the line to write, for objects
whose state is known to be elsewhere; a restore that was not seen to be identical after a real kill is refused as well.
"""

from typing import Any

from everstep.worker.snapshots.adapting import deepspeed, megatron, torch_sharded

_FRAMEWORKS = (torch_sharded, deepspeed, megatron)


def adapted(thing: Any) -> Any:  # noqa: ANN401 - whatever the program keeps
    """The object itself, or what stands for it in a State. Raises TypeError."""
    for framework in _FRAMEWORKS:
        found = framework.adapt(thing)
        if found is not None:
            return found
    return thing
