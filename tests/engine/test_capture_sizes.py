"""What docs/launching.md says of CUDA graphs: vLLM's own capture sizes have one for every decode batch of a ceiling."""

from __future__ import annotations

import json
import subprocess

import pytest

from flyball_lab.harness.launcher import environment

pytestmark = pytest.mark.engine

#: Ceilings of requests: some of the sizes that vLLM captures, and some between two of them.
CEILINGS = (1, 3, 8, 12, 100, 128, 250, 256, 300, 500, 512)
#: What vLLM makes of its own default, asked of the method itself: a whole configuration needs a model and a GPU.
_ASK = """
import json, logging, sys
from vllm.config import CompilationConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.config.vllm import VllmConfig
logging.disable(logging.WARNING)

class Config:
    def __init__(self, **known):
        self.__dict__.update(known)
    def __getattr__(self, name):
        return None

def sizes(seqs):
    compilation = CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    VllmConfig._set_cudagraph_sizes(Config(
        model_config=Config(enforce_eager=False),
        compilation_config=compilation,
        parallel_config=Config(tensor_parallel_size=1),
        scheduler_config=Config(max_num_seqs=seqs, max_num_batched_tokens=8192),
        uniform_decode_query_len=1,
        num_speculative_tokens=0,
    ))
    return compilation.cudagraph_capture_sizes

sys.stderr.write("\\n" + json.dumps([sizes(seqs) for seqs in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def captured(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[int]]:
    asked = subprocess.run(
        [vllm_python, "-c", _ASK],
        input=json.dumps(CEILINGS),
        env=environment(tmp_path_factory.mktemp("home")),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return dict(zip(CEILINGS, json.loads(asked.stderr.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("ceiling", CEILINGS)
def test_every_decode_batch_up_to_a_ceiling_of_512_fits_a_graph(captured: dict[int, list[int]], ceiling: int) -> None:
    assert max(captured[ceiling]) >= ceiling
    assert max(captured[ceiling]) <= max(4, 2 * ceiling), "and none is captured for steps of another engine"
