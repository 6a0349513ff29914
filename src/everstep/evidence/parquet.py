"""Rows of a Parquet file, for `tables`. pyarrow (`everstep[parquet]`) reads it: the format is too large to
parse here. Only the columns that are asked for are read, a piece at a time.

A file of some KiB may hold one text of a MiB and name it in millions of rows: texts stay a table of different ones
until they are cut. A column of lists is not read at all, because one row may have any number of values.
"""

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.analyzer.reading.pickled import UnreadableError

MAGIC = b"PAR1"
MAX_TEXT = 200
"""Characters that are kept of a text, as `tables` does with other formats."""

_ROWS_AT_A_TIME = 1 << 16
_BYTES_AT_A_TIME = 64 << 20
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
            flat = [field.name for field in file.schema_arrow if not field.type.num_fields]
            columns = list(wanted(flat))
        with reader.ParquetFile(path, memory_map=False, read_dictionary=columns) as file:
            for batch in file.iter_batches(_at_a_time(file.metadata), columns=columns, use_threads=False):
                values = [_values(batch.column(number)) for number in range(batch.num_columns)]
                names = batch.schema.names
                yield from (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
    except (OSError, ValueError, KeyError, RuntimeError) as error:  # pyarrow's own are of these
        raise UnreadableError(f"{path.name}: not a Parquet table: {error}") from error


def _at_a_time(metadata: Any) -> int:  # noqa: ANN401 - pyarrow has no types
    """Rows of one piece, as many as its bytes allow by what the file says of itself."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(_ROWS_AT_A_TIME, _BYTES_AT_A_TIME // max(1, longest)))


def _values(column: Any) -> list[object]:  # noqa: ANN401 - pyarrow has no types
    """Return the values of a column as Python objects, with long texts cut."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        different = _cut(column.dictionary).to_pylist()
        return [different[at] if isinstance(at, int) else None for at in _values(column.indices)]
    is_number = pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type)
    if is_number and not column.null_count and importlib.util.find_spec("numpy") is not None:
        numbers: list[object] = column.to_numpy(zero_copy_only=False).tolist()  # a tenth of what to_pylist takes
        return numbers
    found: list[object] = _cut(column).to_pylist()
    return found


def _cut(column: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    import pyarrow
    import pyarrow.compute

    kinds = pyarrow.types
    if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        return pyarrow.compute.utf8_slice_codeunits(column, 0, MAX_TEXT)
    if kinds.is_binary(column.type) or kinds.is_large_binary(column.type):
        return pyarrow.compute.binary_slice(column, 0, MAX_TEXT)
    return column
