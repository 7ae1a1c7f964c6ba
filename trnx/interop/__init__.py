"""Programs of other libraries as trnx functions: one package per library, imported by name.

Importing `trnx` imports none of them.
"""
