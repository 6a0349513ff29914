"""Networks of `bench/fabric.py`: a test bed of namespaces, and tables."""
