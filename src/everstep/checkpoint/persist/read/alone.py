"""torch.distributed.checkpoint of one process, whatever process groups the program has.

An earlier torch (2.6, for example) takes `no_dist` only in the functions that the later ones call deprecated.
"""

import inspect
import warnings
from typing import Any

from torch.distributed.checkpoint import StorageReader, StorageWriter, load, save
from torch.distributed.checkpoint import state_dict_loader as loader
from torch.distributed.checkpoint import state_dict_saver as saver
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner


def load_alone(tree: dict[str, Any], reader: StorageReader, planner: LoadPlanner) -> None:
    """Into `tree`, which names what is wanted. Raises CheckpointException."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is used is meant
        if _takes_no_dist(load):
            load(tree, storage_reader=reader, planner=planner, no_dist=True)
        else:
            loader.load_state_dict(tree, reader, planner=planner, no_dist=True)


def save_alone(tree: dict[str, Any], writer: StorageWriter, planner: SavePlanner) -> None:
    """Raises CheckpointException."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if _takes_no_dist(save):
            save(tree, storage_writer=writer, planner=planner, no_dist=True)
        else:
            saver.save_state_dict(tree, writer, planner=planner, no_dist=True)


def _takes_no_dist(function: Any) -> bool:  # noqa: ANN401
    return "no_dist" in inspect.signature(function).parameters
