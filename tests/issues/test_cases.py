"""Public problem reports about systems like ours, as tests: the shared file, run unchanged.

The file lies beside the repository (`../shared/cases`); `adapter.py` maps its names onto trnx.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.issues.expected import BENCHMARKED, EXPECTED

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[2] / "shared" / "cases" / "test_issue_cases.py"

if not SHARED.is_file():
    pytest.skip(
        "the shared cases are not beside this repository (../shared/cases)",
        allow_module_level=True,
    )
pytest.importorskip("torch", reason="the shared cases need PyTorch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::trnx_torch.report.FallbackWarning"),
]


def _load() -> dict[str, Any]:
    """Names of the shared module, with `tests/issues/adapter.py` as its `adapter`.

    It believes to lie here: processes that it starts find the adapter by its `__file__`.
    """
    from tests.issues import adapter

    module = ModuleType("shared_issue_cases")
    module.__file__ = str(HERE / SHARED.name)
    code = compile(SHARED.read_text(encoding="utf-8"), str(SHARED), "exec")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    sys.modules["adapter"] = adapter
    try:
        exec(code, module.__dict__)
    finally:
        del sys.modules["adapter"]
    return vars(module)


CASES = {name: value for name, value in _load().items() if name.startswith("test_")}
globals().update({name: case for name, case in CASES.items() if name not in BENCHMARKED})


@pytest.fixture(autouse=True)
def expected_to_fail(request: pytest.FixtureRequest) -> None:
    """Mark the cases that are listed with a reason; one that passes fails the run."""
    reason = EXPECTED.get(request.node.name)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


def test_lists_name_cases() -> None:
    """Every listed name is one of the shared cases."""
    names = {name.partition("[")[0] for name in EXPECTED} | BENCHMARKED.keys()
    assert names <= CASES.keys()
