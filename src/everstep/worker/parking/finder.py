"""Calls a callback right after a module has been loaded. It finds nothing itself: the other finders do."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Loaded = Callable[[ModuleType], None]


_IMPORTER = "<frozen importlib._bootstrap_external>"


class OnImport:
    """In front of `sys.meta_path` while a callback waits for a module."""

    def __init__(self) -> None:
        self._waiting: dict[str, Loaded] = {}

    def wait_for(self, name: str, loaded: Loaded) -> None:
        """Call `loaded` once, when `name` has been loaded; at once if it is there already."""
        module = sys.modules.get(name)
        if module is not None:
            loaded(module)
            return
        self._waiting[name] = loaded
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:  # noqa: ANN401
        """Also asked by who only wants to know whether a module is there, and does not load it."""
        if fullname not in self._waiting:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._call_after_load(spec, fullname)
                return spec
        return None

    def _call_after_load(self, spec: Any, name: str) -> None:  # noqa: ANN401
        loader = spec.loader
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)  # the loader is as it was before the module can look at it
            load(module)
            self._loaded(name, module)

        # The interpreter cuts its own frames out of the traceback of an import that fails, and so this one.
        exec_module.__code__ = exec_module.__code__.replace(co_filename=_IMPORTER)
        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that is a class or has slots: this module goes unobserved
            return

    def _loaded(self, name: str, module: ModuleType) -> None:
        loaded = self._waiting.pop(name, None)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        if loaded is not None:
            loaded(module)
