"""What pages are made of: units, colours, tables, sentences."""
