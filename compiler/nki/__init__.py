"""NKI source: ``emit`` prints tile programs, ``read`` turns source back into kernels."""
