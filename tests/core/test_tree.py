"""Trees of arrays."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest

from trnx.core import tree
from trnx.core.errors import UnknownTypeError

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Layer:
    """A registered container."""

    weight: object
    name: str


tree.register_dataclass(Layer, ["weight"], ["name"])


def test_flatten_and_back() -> None:
    value = {"b": [1.0, None, (2.0,)], "a": Pair(3.0, Layer(4.0, "x"))}
    leaves, structure = tree.flatten(value)
    assert leaves == [3.0, 4.0, 1.0, 2.0]
    back = tree.unflatten(structure, leaves)
    assert back == value
    assert tree.structure(back) == structure
    assert hash(structure) == hash(tree.structure(value))
    assert tree.structure({"b": 1}) != tree.structure({"a": 1})
    assert tree.structure(Layer(1, "x")) != tree.structure(Layer(1, "y"))


def test_paths_read_as_python() -> None:
    value = {"w": [1.0, 2.0], "p": Pair(3.0, 4.0)}
    assert tree.paths(value, "params") == [
        "params['p'].left",
        "params['p'].right",
        "params['w'][0]",
        "params['w'][1]",
    ]


def test_map_and_children() -> None:
    assert tree.map(lambda a, b: a + b, [1, {"x": 2}], [10, {"x": 20}]) == [11, {"x": 22}]
    assert tree.children({"x": 1, "y": [2]}) == {"x": 1, "y": [2]}
    assert tree.children(1.0) is None
    assert tree.leaves(None) == []


def test_unknown_leaves_are_named() -> None:
    tree.check_leaves({"w": np.zeros(2), "n": None}, "params")
    with pytest.raises(UnknownTypeError) as error:
        tree.check_leaves({"w": [1.0, "text"]}, "params")
    text = str(error.value)
    assert "argument params['w'][1] has type builtins.str" in text
    assert "register_dataclass" in text
