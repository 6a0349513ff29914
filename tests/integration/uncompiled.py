"""Training programs of tests begin with `import uncompiled`: torch then does not load what only its compiler needs.

torch's optimizers and DDP import `torch._dynamo`, which takes as long as all the rest of torch, in every rank, only to
say that here no graph is to be taken. This says it for them. `import torch` itself loads `torch._meta_registrations`, a
quarter of the rest: shapes for tensors without data, which no test's training has. Whoever asks for anything else gets
the real ones. The census, the libraries' integrations and the programs with torch.compile run with them from the start.
"""

import importlib
import sys
import types

META = "torch._meta_registrations"


class Later(types.ModuleType):
    """Stands in a module's place with the names that it is given, and loads the module for any other."""

    def __init__(self, name, **known):
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        for other in [other for other, module in sys.modules.items() if isinstance(module, Later)]:
            del sys.modules[other]
        importlib.import_module(META)
        return getattr(importlib.import_module(self.__name__), name)


utils = Later("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
rules = Later("torch._dynamo.trace_rules", clear_lru_cache=lambda: None)
compiler = Later(
    "torch._dynamo",
    disable=lambda fn=None, *_, **__: fn,
    graph_break=lambda *_, **__: None,
    utils=utils,
    trace_rules=rules,
)
if sys.modules.setdefault(compiler.__name__, compiler) is compiler and "torch" not in sys.modules:
    sys.modules[META] = Later(META)
