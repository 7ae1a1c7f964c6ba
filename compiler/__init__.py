"""The compiler of trnx: passes, tile programs and targets. The import name is `trnx.compiler`."""

if __name__ != "trnx.compiler":
    raise ImportError(
        f"This folder was imported as {__name__!r}; its import name is 'trnx.compiler' "
        "(a second copy would make second tables of lowerings). Write `import trnx.compiler`."
    )
