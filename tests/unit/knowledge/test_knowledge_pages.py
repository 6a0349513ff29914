"""The generated pages are those of the signatures as they are."""

from pathlib import Path

from everstep.knowledge.loading import load_base
from everstep.knowledge.pages import pages

DOCS = Path(__file__).parents[3] / "docs" / "knowledge"


def test_pages_are_in_sync():
    """If this fails: python -m everstep.knowledge.pages docs/knowledge."""
    for name, text in pages(load_base().signatures).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name
