"""What vLLM keeps of what it compiled: a list that is not whole would end every later start."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_engine.launch.compiled import remove_torn


def kept(root: Path, text: str) -> Path:
    path = root / "torch_compile_cache/ab12/rank_0_0/backbone/vllm_compile_cache.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "{((1, 8), 0, 'inductor'): ('fx', '/flyball-com", "\0", "{" * 1000])
def test_a_list_that_is_not_whole_is_removed(tmp_path: Path, text: str) -> None:
    path = kept(tmp_path, text)
    assert list(remove_torn(tmp_path)) == [path]
    assert not path.exists()


def test_a_whole_list_and_all_else_stay(tmp_path: Path) -> None:
    path = kept(tmp_path, "{((None, 8), 0, 'inductor'): ('fx', '/flyball-compiled/inductor/fx.py')}")
    beside = path.with_name("computation_graph.py")
    beside.write_text("class GraphModule(")
    assert list(remove_torn(tmp_path)) == []
    assert path.exists()
    assert beside.exists()


def test_without_a_folder_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert list(remove_torn(tmp_path / "missing")) == []
