"""Shared test set-up: isolated compile cache, deterministic hypothesis, golden texts."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"
CACHE_VARIABLE = "TRNX_CACHE_DIR"

# The same examples in every run; `make nightly` asks for the other profile by name.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=600)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The update switch of the golden texts."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden from this run instead of comparing with it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """One fresh compile cache per session; workers of pytest-xdist inherit the controller's."""
    if not hasattr(config, "workerinput"):
        directory = tempfile.mkdtemp(prefix="trnx-test-cache-")
        os.environ[CACHE_VARIABLE] = directory
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`--update-golden` runs only the tests that write something."""
    if config.getoption("--update-golden"):
        items[:] = [
            item
            for item in items
            if "golden" in getattr(item, "fixturenames", ()) or item.get_closest_marker("golden")
        ]


class Golden:
    """Compares a text with its committed copy, or writes it under `--update-golden`.

    The file is tests/golden/<area>/<test file>/<test name>[.<part>].<suffix>.
    """

    def __init__(self, node: pytest.Item, update: bool) -> None:
        area = node.path.parent.name
        name = re.sub(r"[^A-Za-z0-9_.=-]+", "_", node.name).strip("_")
        self._stem = (
            GOLDEN / area / node.path.stem.removeprefix("test_") / name.removeprefix("test_")
        )
        self._update = update

    def __call__(self, text: str, part: str = "", suffix: str = "txt") -> None:
        """Fail with a diff when `text` differs from the committed text.

        Args:
            text: the whole text; no addresses, no machine paths.
            part: tells several texts of one test apart.
            suffix: file name suffix without the dot.
        """
        path = self._stem.with_name(".".join(filter(None, [self._stem.name, part, suffix])))
        text = text.rstrip("\n") + "\n"
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        relative = path.relative_to(GOLDEN.parent.parent)
        if not path.exists():
            pytest.fail(f"no golden text {relative}; look at the output and run `make golden`")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), str(relative), "this run", lineterm=""
            )
            pytest.fail("golden text differs (make golden rewrites it):\n" + "\n".join(lines))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(text)` compares with tests/golden; see `Golden`."""
    return Golden(request.node, request.config.getoption("--update-golden"))


@pytest.fixture
def fresh_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compile cache for one test, also seen by processes it starts."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(directory))
    return directory
