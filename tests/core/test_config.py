"""Options: declared once, settable in four ways."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trnx.core import config


def test_block_process_and_default() -> None:
    assert config.debug.value == config.debug.default
    config.debug.set(2)
    try:
        with config.debug(4):
            assert config.debug.value == 4
            with config.debug(1):
                assert config.debug.value == 1
            assert config.debug.value == 4
        assert config.debug.value == 2
        assert config.snapshot()["debug"] == 2
    finally:
        config.debug.set(config.debug.default)


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"debug cannot be 9\. Use one of 0, 1, 2"):
        config.debug.set(9)
    with pytest.raises(TypeError, match="dump_ir takes str, not int"):
        config.dump_ir.set(3)
    with pytest.raises(ValueError, match="TRNX_DEBUG='lots' is not an integer"):
        config.debug.parse("lots")
    with pytest.raises(ValueError, match="TRNX_CHECK='maybe' is not a truth value"):
        config.check.parse("maybe")
    assert config.check.parse("yes")
    assert not config.check.parse("0")
    assert config.debug.parse("3") == 3


def test_environment_is_read_at_start() -> None:
    code = "from trnx.core import config; print(config.debug.value, config.check.value)"
    environment = {**os.environ, "TRNX_DEBUG": "3", "TRNX_CHECK": "1", "TRNX_CHEKC": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["3", "True"]
    assert "TRNX_CHEKC have no effect" in run.stderr


def test_unknown_names_warn_once_with_the_known_ones() -> None:
    with pytest.warns(UserWarning, match="TRNX_TYPO have no effect. Known: .*TRNX_DEBUG"):
        assert config.warn_unknown({"TRNX_TYPO": "1", "OTHER": "2"}) == ["TRNX_TYPO"]


def test_table_lists_every_option() -> None:
    table = config.options_table()
    for option in config.options.values():
        assert f"`{option.env}`" in table
        assert option.doc in table
