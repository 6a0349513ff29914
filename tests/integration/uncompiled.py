"""Training programs of tests begin with `import uncompiled`: torch's optimizers and DDP then do not load its compiler.

They import `torch._dynamo`, which takes as long as all the rest of torch, in every rank, only to say that here no graph
is to be taken. This says it for them; whoever asks for anything else gets the real one. The census, the libraries'
integrations and the programs with torch.compile run with the real one from the start.
"""

import importlib
import sys
import types


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
sys.modules.setdefault(compiler.__name__, compiler)
