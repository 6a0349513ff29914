"""The one reader, and the one writer, of what Linux offers: /proc, InfiniBand ports, whole files, ties to the parent.

Below everything else, because supervisors and supervised processes need the same. A rank imports it as well: so only
the standard library, and no package of ours.
"""
