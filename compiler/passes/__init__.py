"""Compiler passes; `trnx.compiler.pipeline` lists them in order."""
