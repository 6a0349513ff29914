"""Training programs of tests begin with `import uncompiled`: torch then does not load what only its compiler needs.

torch's optimizers and DDP import `torch._dynamo`, which takes as long as all the rest of torch, in every rank, only to
say that here no graph is to be taken. This says it for them. `import torch` itself loads `torch._meta_registrations`, a
quarter of the rest: shapes for tensors without data, which no test's training has. Whoever asks for anything else gets
the real ones. While torch is imported nothing is garbage, so nobody looks for it: another eighth.

The census, the libraries' integrations and the programs with torch.compile run with the real ones from the start.
"""

import gc
import importlib
import importlib.util
import sys
import types

META = "torch._meta_registrations"


class Later(types.ModuleType):
    """Stands in a module's place with the names that it is given, and loads the module for any other."""

    def __init__(self, name, **known):
        super().__init__(name)
        self.__dict__.update(known)

    def __getattr__(self, name):
        if name.startswith("__") and (name != "__path__" or self.__name__ == META):
            raise AttributeError(name)  # a package's parts are asked for by its path
        for other in [other for other, module in sys.modules.items() if isinstance(module, Later)]:
            del sys.modules[other]
        importlib.import_module(META)
        return getattr(importlib.import_module(self.__name__), name)


class Importing:
    """A finder that sees `import torch` begin, and, with the modules that META stands for, come to its end."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            gc.disable()
        elif name == META:
            sys.meta_path.remove(self)
            gc.freeze()
            gc.unfreeze()  # all of it is old now, and the next collection, a moment later, passes over it
            gc.enable()
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        return Later(spec.name)

    def exec_module(self, module):
        pass


utils = Later("torch._dynamo.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
rules = Later("torch._dynamo.trace_rules", clear_lru_cache=lambda: None)
compiler = Later(
    "torch._dynamo",
    disable=lambda fn=None, *_, **__: fn,
    graph_break=lambda *_, **__: None,
    utils=utils,
    trace_rules=rules,
)
if sys.modules.setdefault(compiler.__name__, compiler) is compiler and "torch" not in sys.modules and gc.isenabled():
    sys.meta_path.insert(0, Importing())
