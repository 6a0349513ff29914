"""What a rank can find out about its own process: some hundred facts, by name. Runs inside the program that is asked.

Copied into the program's folder, with census_kernel.py, and imported by it (census.py): it needs the standard library
alone. A fact is
taken at a *point* of the program (`start`, `imported`, `rendezvous`, `end`) and kept in memory: it is written when
the program is over, or shortly before it is killed, so what is written is what the process that says it believes.
Values are text. Must not change what it looks at, and imports nothing at the start but what Python has by then.
"""

import os
import sys

import census_kernel
from census_kernel import read

FACTS: dict[str, str] = {}
_DIARY: list[str] = []
_OUT = os.environ.get("CENSUS_OUT", ".")


def take(point: str, names: dict, modules: "list[str] | None" = None, without: str = "") -> None:  # type: ignore[type-arg]
    """Every fact, now, but those of one family. `names`: the program's globals. `modules`: sys.modules as it was."""
    loaded = list(sys.modules) if modules is None else modules
    for family, facts in _FAMILIES.items():
        if family == without:
            continue
        try:
            found = facts(names)
        except Exception as error:  # a fact that cannot be taken is one, too
            found = {"unreadable": f"{type(error).__name__}: {error}"}
        for name, value in found.items():
            FACTS[f"{point}/{family}.{name}"] = value if isinstance(value, str) else repr(value)
    standard = sys.stdlib_module_names
    FACTS[f"{point}/modules.standard"] = " ".join(name for name in loaded if name.partition(".")[0] in standard)
    others = (name for name in loaded if name.partition(".")[0] not in standard)
    FACTS[f"{point}/modules.libraries"] = " ".join(name for name in others if name.partition(".")[0] != "everstep")


def note(name: str, value: object) -> None:
    FACTS[name] = value if isinstance(value, str) else repr(value)


def happened(what: str) -> None:
    """A line in the diary: what runs how often, and in which order a process ends. In memory until the rendezvous:
    neither a file is written nor anybody asked before the program does so itself."""
    _DIARY.append(f"{os.getpid()} {what}\n")
    if any("rendezvous" in line for line in _DIARY):
        _tell()


def _tell() -> None:
    with open(os.path.join(_OUT, "diary"), "a") as file:  # noqa: PTH118, PTH123
        file.writelines(line for line in _DIARY if line.startswith(f"{os.getpid()} "))
    _DIARY[:] = ["rendezvous"]


def write() -> None:
    import json

    FACTS["pid"] = str(os.getpid())
    generation, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    path = os.path.join(_OUT, f"facts.{generation}.{rank}.json")  # noqa: PTH118
    with open(path + ".tmp", "w") as file:  # noqa: PTH123
        json.dump(FACTS, file)
    os.rename(path + ".tmp", path)  # noqa: PTH104


def _environment(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    found: dict[str, object] = dict(os.environ)
    at_exec = {each.partition("=")[0] for each in read("/proc/self/environ").split("\0") if each}
    found["(class)"] = type(os.environ).__qualname__, type(os.environ._data).__qualname__  # type: ignore[attr-defined]
    found["(missing in /proc/self/environ)"] = sorted(set(os.environ) - at_exec)
    found["(order)"] = [name for name in os.environ if not name.startswith(("EVERSTEP_", "TORCH_FR_"))]
    return found


def _interpreter(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    plain = (
        "argv orig_argv flags path executable prefix base_prefix exec_prefix pycache_prefix warnoptions _xoptions "
        "dont_write_bytecode byteorder platform"
    )
    found: dict[str, object] = {name: getattr(sys, name, "(none)") for name in plain.split()}
    found["meta_path"] = [getattr(each, "__qualname__", type(each).__qualname__) for each in sys.meta_path]
    found["path_hooks"] = [getattr(each, "__qualname__", type(each).__qualname__) for each in sys.path_hooks]
    for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        found[name] = _place(getattr(sys, name))
    found["recursion limit"] = sys.getrecursionlimit()
    found["switch interval"] = sys.getswitchinterval()
    found["int digits"] = sys.get_int_max_str_digits()
    found["trace, profile"] = (sys.gettrace(), sys.getprofile())
    found["asyncgen hooks"] = tuple(sys.get_asyncgen_hooks())
    found["filesystem encoding"] = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
    found["interned last value"] = (hasattr(sys, "last_value"), hasattr(sys, "ps1"))
    return found


def _stack(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    frames = []
    frame = sys._getframe()
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    outermost = frames[-1]
    return {
        "depth": len(frames),
        "outermost file": outermost.f_code.co_filename,
        "outermost function": outermost.f_code.co_name,
        "outermost module": outermost.f_globals.get("__name__"),
        "headroom": _headroom(0),
    }


def _headroom(depth: int) -> int:
    try:
        return _headroom(depth + 1)
    except RecursionError:
        return depth


def _main(names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    main = sys.modules["__main__"]
    found: dict[str, object] = {"is this program": main.__dict__ is names}
    for name in ("__name__", "__file__", "__package__", "__cached__", "__doc__", "__annotations__", "__path__"):
        found[name] = names.get(name, "(none)")
    found["__spec__"] = getattr(names.get("__spec__"), "name", names.get("__spec__"))
    found["__loader__"] = getattr(names.get("__loader__"), "__name__", type(names.get("__loader__")).__name__)
    found["__builtins__"] = type(names.get("__builtins__")).__name__
    found["dunder names"] = sorted(name for name in names if name.startswith("__"))
    found["type"] = type(main).__name__
    found["__mp_main__"] = "__mp_main__" in sys.modules
    return found


def _warnings(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    import warnings

    filters = [(f[0], getattr(f[1], "pattern", f[1]), f[2].__name__, f[3], f[4]) for f in warnings.filters]
    return {"filters": filters, "default": warnings.defaultaction, "show": _place(warnings.showwarning)}  # type: ignore[attr-defined]


def _logging(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    import logging
    import time

    root = logging.getLogger()
    found: dict[str, object] = {
        "root": (root.level, [type(each).__name__ for each in root.handlers]),
        "disabled below": root.manager.disable,
        "class": logging.getLoggerClass().__name__,
        "record factory": logging.getLogRecordFactory().__qualname__,
        "raise": logging.raiseExceptions,
        "began long ago": time.time() - logging._startTime > 300,  # type: ignore[attr-defined]
    }
    for name, logger in sorted(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (logger.level or logger.handlers or not logger.propagate):
            handlers = [type(each).__name__ for each in logger.handlers]
            found[name] = (logger.level, handlers, logger.propagate, logger.disabled)
    return found


def _signals(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    import signal

    found: dict[str, object] = {}
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        found[str(int(number))] = _place(handler) if callable(handler) else str(handler)
    found["blocked"] = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    wakeup = signal.set_wakeup_fd(-1)
    if wakeup != -1:
        signal.set_wakeup_fd(wakeup)
    found["wakeup fd"] = wakeup
    found["timers"] = [signal.getitimer(kind) for kind in (0, 1, 2)]
    return found


def _streams(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    found: dict[str, object] = {}
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            found[name] = None
            continue
        plain = ("encoding", "errors", "line_buffering", "write_through", "mode", "name", "newlines")
        found[name] = {each: getattr(stream, each, "(none)") for each in plain}
        found[f"{name} class"] = [type(each).__name__ for each in (stream, stream.buffer)]
        found[f"{name} terminal"] = stream.isatty()
        found[f"{name} untouched"] = getattr(sys, f"__{name}__") is stream
        found[f"{name} fd"] = stream.fileno()
    found["stdout and stderr are one"] = os.fstat(1)[:3] == os.fstat(2)[:3]
    return found


def _threads(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    import threading

    main = threading.main_thread()
    return {
        "python": sorted(each.name for each in threading.enumerate()),
        "kernel": sorted(read(f"/proc/self/task/{each}/comm").strip() for each in os.listdir("/proc/self/task")),  # noqa: PTH208
        "main is this": main is threading.current_thread(),
        "main native id is the pid": main.native_id == os.getpid(),
        "main name": main.name,
        "excepthook": _place(threading.excepthook),
        "trace, profile": (threading._trace_hook, threading._profile_hook),  # type: ignore[attr-defined]
        "stack size": threading.stack_size(),
    }


def _runtime(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """Collector, exit, faults, locale, ways to start a child."""
    import atexit
    import faulthandler
    import gc
    import locale

    found: dict[str, object] = {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "gc frozen": gc.get_freeze_count(),
        "gc callbacks": [_place(each) for each in gc.callbacks],
        "gc garbage": len(gc.garbage),
        "atexit callbacks": atexit._ncallbacks(),
        "faulthandler": faulthandler.is_enabled(),
        "locale": locale.setlocale(locale.LC_ALL),
        "preferred encoding": locale.getpreferredencoding(False),
    }
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        import multiprocessing.process

        found["start method"] = multiprocessing.get_start_method(allow_none=True)
        found["process name"] = multiprocessing.current_process().name
        found["parent process"] = multiprocessing.parent_process()
        found["children of multiprocessing"] = len(multiprocessing.active_children())
    return found


_WATCHED = (
    "builtins.open builtins.__import__ builtins.print builtins.input builtins.compile builtins.exec os.fork os.kill "
    "os._exit os.abort os.execv os.getpid os.getenv os.putenv os.register_at_fork os.write os.environ.get time.time "
    "time.sleep time.monotonic sys.exit sys.settrace sys.addaudithook signal.signal signal.getsignal atexit.register "
    "threading.Thread.start threading.Thread.join threading.Lock threading.Condition.wait _thread.start_new_thread "
    "subprocess.Popen.__init__ subprocess.run socket.socket.connect socket.create_connection socket.getaddrinfo "
    "select.select selectors.DefaultSelector.select queue.Queue.get random.random random.seed pickle.dumps "
    "importlib.import_module importlib.reload importlib._bootstrap._find_and_load gc.collect gc.freeze "
    "multiprocessing.Process.start multiprocessing.Queue multiprocessing.get_context faulthandler.enable "
    "logging.Logger.handle logging.getLogger warnings.warn linecache.getlines traceback.print_exc runpy.run_path "
    "torch.save torch.load torch.manual_seed torch.compile torch.Tensor.backward torch.Tensor.item torch.Tensor.cpu "
    "torch.autograd.backward torch.nn.Module.__call__ torch.nn.Module._call_impl torch.nn.Module.load_state_dict "
    "torch.optim.Optimizer.__init__ torch.optim.SGD.step torch.optim.AdamW.step torch.utils.data.DataLoader.__iter__ "
    "torch.distributed.init_process_group torch.distributed.destroy_process_group torch.distributed.all_reduce "
    "torch.distributed.barrier torch.distributed.broadcast torch.distributed.new_group torch.distributed.TCPStore "
    "torch.distributed.rendezvous torch.nn.parallel.DistributedDataParallel.__init__ torch.profiler.profile.start "
    "torch.nn.parallel.DistributedDataParallel.forward torch.cuda.set_device torch.random.fork_rng"
)


def _functions(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """Whose code runs under a well-known name. Only of what the program has imported."""
    found: dict[str, object] = {}
    for dotted in _WATCHED.split():
        parts = dotted.split(".")
        cut = max((n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules), default=0)
        value: object = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:] if cut else ():
            value = getattr(value, part, None)
        if value is not None and cut:
            found[dotted] = _place(value)
    return found


def _randomness(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """What must differ between ranks, generations and runs. Compared by census_compare.RANDOM."""
    found: dict[str, object] = {"hash": hash("everybody draws their own")}
    if "random" in sys.modules:
        found["random"] = _digest(repr(sys.modules["random"].getstate()).encode())
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        found["torch seed"] = torch.initial_seed()
        found["torch state"] = _digest(torch.get_rng_state().numpy().tobytes())
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        found["numpy"] = _digest(state[1].tobytes() + str(state[2]).encode())
    if "tempfile" in sys.modules:
        found["temporary name"] = next(sys.modules["tempfile"]._RandomNameSequence())
    return found


def _digest(state: bytes) -> int:
    """`hash` of bytes is another one in each interpreter."""
    import zlib

    return zlib.crc32(state)


def _torch(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    if "torch" not in sys.modules:
        return {}
    import torch

    found: dict[str, object] = {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.get_deterministic_debug_mode()),
        "default dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "matmul precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "mkldnn": (torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available()),
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "cuda begun": torch.cuda.is_initialized(),
        "forked badly": torch.cuda._is_in_bad_fork(),
        "denormals": torch.tensor(1e-39).mul(1.0).item() != 0.0,
        "profiler": torch.autograd._profiler_enabled(),
        "function mode": torch._C._len_torch_function_stack(),
        "dispatch mode": torch._C._len_torch_dispatch_stack(),
        "dynamo loaded": "torch._dynamo" in sys.modules,
    }
    found |= _collective(torch)
    return found


def _collective(torch: object) -> dict[str, object]:
    dist = torch.distributed  # type: ignore[attr-defined]
    if not dist.is_available() or not dist.is_initialized():
        return {"group": "none"}
    group = dist.group.WORLD
    return {
        "group": (dist.get_backend(), dist.get_rank(), dist.get_world_size(), type(group).__name__),
        "group names": sorted(dist.distributed_c10d._world.pg_names.values()),
        "group timeout": str(dist.distributed_c10d._get_default_timeout(dist.get_backend())),
        "sequence": group._get_sequence_number_for_group(),
        "store": type(dist.distributed_c10d._get_default_store()).__name__,
        "elastic": (dist.is_torchelastic_launched(), dist.get_node_local_rank()),
    }


def _places(_names: dict) -> dict[str, object]:  # type: ignore[type-arg]
    """Folders, and what time it has become."""
    import tempfile
    import time

    ticks = int(read("/proc/self/stat").rpartition(")")[2].split()[19])
    age = float(read("/proc/uptime").split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    return {
        "working directory": os.getcwd(),  # noqa: PTH109
        "temporary folder": tempfile.gettempdir(),
        "home": os.path.expanduser("~"),  # noqa: PTH111
        "older than a minute": age > 60,
        "clock before its process began": time.monotonic() < 0,
        "files here": sorted(name for name in os.listdir(".") if not name.startswith("census")),  # noqa: PTH208
    }


def _place(value: object) -> str:
    """Whose a function is, without its address."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    where = code.co_filename.rpartition("site-packages/")[2] if code is not None else type(value).__name__
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{getattr(value, '__module__', None)}.{name} ({where})"


_FAMILIES = {
    "env": _environment,
    "interpreter": _interpreter,
    "stack": _stack,
    "main": _main,
    "random": _randomness,  # before the families that import
    "kin": census_kernel.kin,
    "files": census_kernel.files,
    "streams": _streams,
    "process": census_kernel.process,
    "limits": census_kernel.limits,
    "warnings": _warnings,
    "logging": _logging,
    "signals": _signals,
    "threads": _threads,
    "runtime": _runtime,
    "functions": _functions,
    "torch": _torch,
    "places": _places,
}
