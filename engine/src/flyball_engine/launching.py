"""How the operator starts an engine: the launcher's command, and the vLLM arguments that are not the user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from flyball_engine.contract import API_PORT

#: vLLM arguments that Flyball owns, by vLLM's own name (the parser's `dest`), and what sets each instead.
#: The launcher refuses them among the user's arguments under any spelling.
OWNED_ARGUMENTS: Final[Mapping[str, str]] = {
    "model": "spec.model.uri",
    "model_tag": "spec.model.uri",
    "served_model_name": "spec.model.servedName",
    "host": "Flyball (the engine listens on all addresses of its pod)",
    "port": f"Flyball (the engine listens on port {API_PORT})",
    "uds": f"Flyball (the engine listens on port {API_PORT})",
    "tensor_parallel_size": "spec.parallelism.tensor",
    "pipeline_parallel_size": "spec.parallelism.pipeline",
    "data_parallel_size": "spec.parallelism.data",
    "max_num_seqs": "spec.batching.maxNumSeqs",
    "max_num_batched_tokens": "spec.batching.maxNumBatchedTokens",
    "max_num_active_seqs": "spec.tuning.bounds.maxNumActiveSeqs",
    "max_num_scheduled_tokens": "spec.tuning.bounds.maxNumScheduledTokens",
    "enable_prefix_caching": "spec.batching.prefixCaching",
    "shutdown_timeout": "spec.rollout.drainTimeout",
    "scheduler_cls": "Flyball (the scheduler is its own)",
    "disable_log_stats": "Flyball (tuning needs the engine's statistics)",
    "config": "spec.engine.args (a file could set owned arguments unseen)",
    "ssl_certfile": "spec.engine.tls",
    "ssl_keyfile": "spec.engine.tls",
    "enable_ssl_refresh": "spec.engine.tls",
}

_ONE_POD: Final = (
    "without spec.parallelism.nodes, which tells each pod its part, it would wait for other nodes for ever"
)
#: vLLM arguments with which a pod never becomes Ready, by vLLM's own name, and why. Refused like those that are owned.
IMPOSSIBLE_ARGUMENTS: Final[Mapping[str, str]] = {
    "headless": "it starts no API server, so that no probe is answered",
    "grpc": "it serves gRPC in place of HTTP, so that no probe is answered",
    "ssl_cert_reqs": "the kubelet's probes have no certificate: ask clients for theirs before the pod, at the gateway",
    "nnodes": _ONE_POD,
    "data_parallel_rank": _ONE_POD,
    "data_parallel_start_rank": _ONE_POD,
    "data_parallel_size_local": _ONE_POD,
    "data_parallel_external_lb": _ONE_POD,
    "data_parallel_hybrid_lb": _ONE_POD,
    "data_parallel_multi_port_external_lb": _ONE_POD,
}

#: The launcher's module, and its exit code when it refuses to start; the reason is in the termination log.
LAUNCH_MODULE: Final = "flyball_engine.launch"
#: What a worker runs before it is told to end.
AWAIT_LEADER_MODULE: Final = "flyball_engine.launch.await_leader"
#: Where engines of one group of nodes find each other: the leader's port.
GROUP_PORT: Final = 29550
EXIT_REFUSED: Final = 64


def launch_command(
    *, owned: Sequence[str], user: Sequence[str], ranks: int | None = None, nodes: int | None = None
) -> list[str]:
    """Command of a governed engine container: `python3 -m flyball_engine.launch --owned=<JSON list> -- <user>...`.

    `owned` are Flyball's vLLM arguments, one token each (`--port=8000`, `--no-enable-prefix-caching`); `user` those of
    `spec.engine.args`, verbatim. The launcher puts the user's first and the owned ones last; it drops owned ones that
    the installed vLLM does not have. Everything after the first `--` is the user's. Of a pod of a group over several
    nodes, `ranks`: data-parallel ranks of each; `nodes`: how many one engine core spans. None where neither is so.
    """
    group = [f"--{name}={number}" for name, number in (("ranks", ranks), ("nodes", nodes)) if number is not None]
    return ["python3", "-m", LAUNCH_MODULE, f"--owned={json.dumps(list(owned))}", *group, "--", *user]
