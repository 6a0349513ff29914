"""Building blocks of pages: units, colours, tables, sentences."""
