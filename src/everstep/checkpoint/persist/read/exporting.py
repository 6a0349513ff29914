"""A checkpoint for those who do not have everstep: safetensors, one torch.save file, or a folder of
torch.distributed.checkpoint that stands by itself.

Called by `everstep ckpt export`. Tensors are put together from all ranks' shards; every byte is checked on the way.
What is written appears whole or not at all.
"""

import io
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.paths import set_in, typed_path
from everstep.checkpoint.persist.read.alone import load_alone, save_alone
from everstep.checkpoint.persist.read.metadata import stored_bytes
from everstep.checkpoint.persist.read.resharding import read_metadata
from everstep.checkpoint.persist.store.checked import CheckedReader, cause_of
from everstep.checkpoint.persist.store.files import read_manifest
from everstep.checkpoint.persist.store.storage import open_storage, sentence
from everstep.checkpoint.persist.store.striking import reason
from everstep.errors import ConfigError, SnapshotError

OnNote = Callable[[str], None]
OnProgress = Callable[[int, int, str], None]
"""Bytes read, of how many, and what is being done."""


def export(
    root: str,
    step: int,
    out: str,
    *,
    format: str = "safetensors",  # noqa: A002 - what everybody calls it
    on_note: OnNote = lambda _: None,
    on_progress: OnProgress = lambda _done, _total, _says: None,
) -> int:
    """Write the checkpoint to `out`; returns its size. `on_note`: what a person should know of it. Raises ConfigError,
    SnapshotError."""
    if format not in form.EXPORTED_AS:
        raise ConfigError(f"no format {format!r}; there are: {', '.join(form.EXPORTED_AS)}")
    target = Path(out)
    if target.exists():
        raise ConfigError(f"{out} is there already; choose another name")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        struck = _struck(root, step)
        if struck:  # an explicit request by number is honoured
            on_note(f"step {step} is not to be restored from: {struck}")
        flat, paths, left_out = _read(root, step, tensors_only=format == "safetensors", on_progress=on_progress)
        for why in dict.fromkeys(left_out.values()):
            on_note(f"left out, because {why}: {', '.join(name for name in left_out if left_out[name] == why)}")
        on_progress(1, 1, f"writing {out}")
        target.parent.mkdir(parents=True, exist_ok=True)
        if format == "safetensors":
            flat = _as_the_model_names_them(flat)
        _WRITERS[format](flat, paths, draft)
        draft.replace(target)
    except OSError as error:
        raise SnapshotError(f"step {step} could not be exported: {sentence(error, out)}") from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        why = f"{type(error).__name__}: {error}"  # names that make no tree, tensors of nonsense
        raise SnapshotError(f"step {step} could not be exported: it is not what was written: {why}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
    return sum(file.stat().st_size for file in ([target] if target.is_file() else target.iterdir()))


def _read(
    root: str, step: int, *, tensors_only: bool, on_progress: OnProgress
) -> tuple[dict[str, Any], dict[str, tuple[form.PathItem, ...]], dict[str, str]]:
    """By name, without what belongs to everstep or to one rank; the path of each name; what was left out, and why."""
    storage, folder = open_storage(root), form.step_name(step)
    try:
        manifest = read_manifest(storage, folder)
        if manifest is None:
            raise SnapshotError(f"{storage.path(folder)} was not written by everstep; torch reads it as it is")
        metadata = read_metadata(storage, folder, manifest)
        names = [name for name in metadata.state_dict_metadata if not name.startswith("everstep.")]
        if tensors_only:
            names = _weights_only(names, metadata)
        lengths = stored_bytes(metadata)
        flat = {name: _empty(metadata, name, lengths[name]) for name in names if name not in manifest.unequal}
        planner = _Planner(sum(lengths[name] for name in flat), on_progress)
        load_alone(flat, CheckedReader(storage, metadata), planner)
    except form.DamagedFileError as error:
        raise SnapshotError(f"checkpoint {storage.path(folder)} is damaged: {error}") from error
    except CheckpointException as error:
        raise SnapshotError(f"checkpoint {storage.path(folder)} is damaged: {cause_of(error)}") from error
    flat = {name: value for name, value in flat.items() if name not in planner.unsafe}
    left_out = {name: "it was different on every rank" for name in names if name in manifest.unequal}
    left_out |= dict.fromkeys(planner.unsafe, "reading it could run code")
    return flat, {name: typed_path(metadata, name) or (name,) for name in flat}, left_out


class _Planner(DefaultLoadPlanner):  # type: ignore[misc]
    """Reads values as tensors are read: without running what the bytes may ask for."""

    def __init__(self, num_bytes: int, on_progress: OnProgress) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.unsafe: list[str] = []
        self._done, self._total, self._on_progress = 0, num_bytes, on_progress

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        self._done += tensor.nbytes
        self._on_progress(self._done, self._total, "reading")

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except Exception:  # an object of the program's own classes; or bytes that are none
            self.unsafe.append(name)


def _struck(root: str, step: int) -> str:
    storage, folder = open_storage(root), form.step_name(step)
    try:
        return reason(storage, folder, read_manifest(storage, folder))
    except form.DamagedFileError:
        return ""  # reported where the manifest is read


def _empty(metadata: Metadata, name: str, length: int) -> torch.Tensor | None:
    entry = metadata.state_dict_metadata[name]
    if not isinstance(entry, TensorStorageMetadata):
        return None
    if math.prod(entry.size) * entry.properties.dtype.itemsize > length:
        raise form.DamagedFileError(form.METADATA, f"{name} is said to be larger than its pieces")
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _to_safetensors(flat: Mapping[str, Any], _: Mapping[str, tuple[form.PathItem, ...]], path: Path) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError("export to safetensors needs: pip install 'everstep[safetensors]'") from error
    try:
        named = {name: value.contiguous() for name, value in flat.items()}
        save_file(named, path, metadata={"format": "pt"})
    except (KeyError, ValueError, SafetensorError) as error:  # a dtype that this format has not, for one
        raise SnapshotError(f"safetensors cannot hold it: {type(error).__name__}: {error}") from error


def _weights_only(names: Iterable[str], metadata: Metadata) -> list[str]:
    """The names of the models: what has groups of parameters is an optimizer; beside a `model` (model0, model1) the
    rest is no model."""
    entries = metadata.state_dict_metadata
    optimizers = {name.split(".", 1)[0] for name in entries if name.split(".")[1:2] == ["param_groups"]}
    wanted = [name for name in names if isinstance(entries[name], TensorStorageMetadata)]
    wanted = [name for name in wanted if name.split(".", 1)[0] not in optimizers]
    models = [name for name in wanted if _MODEL.match(name)]
    return models or wanted


def _as_the_model_names_them(flat: dict[str, Any]) -> dict[str, Any]:
    """Without the keyword, if there is only one, and without what DDP and torch.compile put before or between."""
    plain = {".".join(part for part in name.split(".") if part != "_orig_mod"): value for name, value in flat.items()}
    keywords = {name.split(".", 1)[0] for name in plain}
    is_one = len(keywords) == 1 and all("." in name for name in plain)
    bare: dict[str, Any] = {}
    for keyword in keywords:
        mine = [name for name in plain if name.split(".", 1)[0] == keyword]
        wrapped = all(name.startswith(f"{keyword}.module.") for name in mine)
        for name in mine:
            own = name.removeprefix(f"{keyword}.module." if wrapped else f"{keyword}.")
            bare[own if is_one or own == name else f"{keyword}.{own}"] = plain[name]
    return bare


_MODEL = re.compile(r"model\d*\.")


def _to_torch(flat: Mapping[str, Any], paths: Mapping[str, tuple[form.PathItem, ...]], path: Path) -> None:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        set_in(tree, paths[name], value)
    torch.save(tree, path)


def _to_dcp(flat: Mapping[str, Any], paths: Mapping[str, tuple[form.PathItem, ...]], path: Path) -> None:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        set_in(tree, paths[name], value)
    save_alone(tree, FileSystemWriter(path), DefaultSavePlanner())


_WRITERS = {"safetensors": _to_safetensors, "torch": _to_torch, "dcp": _to_dcp}
