"""The streams of ranks that are shown on the terminal, and how: torchrun's rule."""

import socket
import string
from pathlib import Path

import msgspec

from everstep.errors import ConfigError
from everstep.model.spec import STDERR, STDOUT, standard_streams

DEFAULT_TEMPLATE = "[${role_name}${rank}]:"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Streams are bits: 1 stdout, 2 stderr."""

    log_dir: Path
    nproc_per_node: int
    world_size: int
    role: str
    template: str = DEFAULT_TEMPLATE
    redirects: str = "0"  # torchrun's -r
    tee: str = "0"  # torchrun's -t
    only: tuple[int, ...] | None = None  # local ranks; None: all
    filters: dict[int, tuple[str, ...]] = {}  # by stream: lines of teed streams that go to a file of their own, too
    published: tuple[str, ...] = ()  # folder below --log-dir, by slot

    def streams(self, rank: int) -> int:
        """Those that are shown: not redirected, or teed; the filter over both."""
        local = rank % self.nproc_per_node
        if self.only is not None and local not in self.only:
            return 0
        return (STDOUT | STDERR) & ~(standard_streams(self.redirects, local) & ~standard_streams(self.tee, local))

    def is_teed(self, rank: int, stream: int) -> bool:
        """Shown line by line with a prefix; others as they were written."""
        return bool(standard_streams(self.tee, rank % self.nproc_per_node) & stream)

    def is_duplicated(self, stream: int, line: str) -> bool:
        return any(needle in line for needle in self.filters.get(stream, ()))

    def filtered_file(self, generation: int, rank: int, stream: int) -> Path:
        """The filtered log's path, named as by torchrun; without --log-dir with the other logs of the run."""
        name = "filtered_stdout.log" if stream == STDOUT else "filtered_stderr.log"
        if not self.published:
            return self.log_dir / f"gen-{generation}" / name
        return Path(self.published[rank // self.nproc_per_node]) / f"attempt_{generation}" / name

    def prefix(self, rank: int) -> str:
        """torchrun's substitution, unknown variables left as they are."""
        values: dict[str, object] = {"role_name": self.role, "rank": rank, "local_rank": rank % self.nproc_per_node}
        values["hostname"] = socket.gethostname()  # since torch 2.15
        return string.Template(self.template).safe_substitute(values)


def check_streams(redirects: str, tee: str, nproc: int) -> None:
    """Raises ConfigError for what torchrun does not take."""
    if redirects == tee == "0":
        return  # torch need not be imported for it
    from torch.distributed.elastic.multiprocessing.api import Std, to_map

    try:
        for text in (redirects, tee):
            to_map(Std.from_str(text), nproc)
    except (ValueError, AssertionError) as error:
        raise ConfigError(f"--redirects {redirects} --tee {tee}: {error}") from error
