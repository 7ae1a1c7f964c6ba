"""Primitives of trnx, one complete declaration each. The import name is `trnx.ops`."""

if __name__ != "trnx.ops":
    raise ImportError(
        f"This folder was imported as {__name__!r}; its import name is 'trnx.ops' "
        "(a second copy would make a second registry of primitives). Write `import trnx.ops`."
    )
