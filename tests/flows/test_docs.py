"""The Python in README and docs runs as it is written, on a finished run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "blocks"),
    [("README.md", 2), ("docs/consuming-labels.md", 6), ("docs/fairness.md", 1)],
    ids=["README", "consuming-labels", "fairness"],
)
def test_the_snippets_of_a_page_run(
    page: str,
    blocks: int,
    small_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(small_root / "whole")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(found) == blocks
    namespace: dict[str, object] = {}
    for block in found:
        exec(compile(block, page, "exec"), namespace)
        assert capsys.readouterr().out.strip() or "print" not in block
