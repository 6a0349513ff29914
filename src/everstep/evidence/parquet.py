"""Rows of a Parquet file, for `tables`. pyarrow (`everstep[parquet]`) reads it: the format is too large to
parse here. Only the columns that are asked for are read, a piece at a time.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from everstep.analyzer.reading.pickled import UnreadableError

MAGIC = b"PAR1"
_ROWS_AT_A_TIME = 1 << 16
_EXTRA = "pip install 'everstep[parquet]'"


def rows(path: Path, wanted: Callable[[Iterable[str]], Iterable[str]]) -> Iterator[Mapping[str, object]]:
    """`wanted`: of the columns that the file has, those to read. Raises UnreadableError."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others reserve more than this process may have
    try:
        import pyarrow.parquet as reader
    except ImportError as error:
        raise UnreadableError(f"{path.name}: a Parquet table needs pyarrow ({_EXTRA}), or write it as CSV") from error
    try:
        with reader.ParquetFile(path, memory_map=False) as file:
            columns = list(wanted(file.schema_arrow.names))
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=columns, use_threads=False):
                yield from batch.to_pylist()
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # pyarrow's own are of these
        raise UnreadableError(f"{path.name}: not a Parquet table: {error}") from error
