"""`everstep run`: launch a training job as torchrun does, and keep it stepping.

The arguments are torchrun's and ours, so the launcher parses them itself.
"""

import gc
import os
import sys
from collections.abc import Sequence

from everstep.errors import EverstepError


def run(argv: Sequence[str]) -> int:
    """The run's exit code (docs/exit-codes.md): torchrun's, unless everstep's are asked for."""
    gc.disable()  # nothing of what is imported is garbage: it is not searched for any
    from everstep.wire.lean_tls import import_aiohttp

    import_aiohttp()
    from everstep.launcher import error_file
    from everstep.launcher.arguments import exit_codes, options
    from everstep.launcher.foreign.translating import translate
    from everstep.launcher.joining.spreading import become, srun_command
    from everstep.launcher.run import launch

    gc.freeze()
    gc.enable()
    style = exit_codes.STYLES[0]
    try:
        given = options.parse(argv)
        style = exit_codes.style_of(given.exit_codes, os.environ)
        if given.engine is not None and (command := srun_command(given.engine, argv, os.environ)):
            become(command)
        code = launch(translate(argv, os.environ))
    except EverstepError as error:
        print(f"everstep: {error}", file=sys.stderr)
        error_file.write_error(type(error).__name__, str(error), os.environ)
        code = error.exit_code
    return exit_codes.shown(code, style)
