"""Coverage-guided fuzzing of the readers of foreign bytes, with atheris (`pip install --group fuzz`).

    python bench/fuzz.py journal --seconds 600            one reader; new inputs go to build/fuzz/journal
    python bench/fuzz.py --list

It begins with tests/corpus/READER and what earlier runs found. Ends at the first fault, which it writes to
build/fuzz/READER.crash-...: an exception that the reader's callers do not expect, an input that takes longer than
`--timeout` seconds, or more than `--memory` MiB. A fault becomes a file in tests/corpus, which `make test` reads.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/property"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("reader", nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--timeout", type=int, default=10, help="seconds for one input")
    parser.add_argument("--memory", type=int, default=2048, help="MiB")
    parser.add_argument("--longest", type=int, default=16384, help="bytes of an input")
    given = parser.parse_args()
    import atheris

    with atheris.instrument_imports(include=["everstep"]):
        from foreign_readers import READERS
    if given.list or given.reader not in READERS:
        print("\n".join(READERS))
        return 0 if given.list else 2
    found = ROOT / "build/fuzz" / given.reader
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={given.seconds}", f"-timeout={given.timeout}", f"-rss_limit_mb={given.memory}"]
    shown = ["-print_final_stats=1", f"-artifact_prefix={found}.", f"-max_len={given.longest}"]
    atheris.Setup(
        [sys.argv[0], *limits, *shown, str(found), str(ROOT / "tests/corpus" / given.reader)], READERS[given.reader]
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
