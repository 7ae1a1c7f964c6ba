"""Tile programs: the IR (``ir``), the instruction set (``isa``), text, legality, placement."""
