"""Arguments that commands cannot take, and what they say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Spellings of owned arguments, and what sets each instead; of those that no pod is Ready with, and why.
REFUSED: Mapping[tuple[str, ...], str] = {
    ("--max-num-seqs=7",): "spec.batching.maxNumSeqs",
    ("--max-num-seqs", "7"): "spec.batching.maxNumSeqs",
    ("--max-num-seqs",): "spec.batching.maxNumSeqs",
    ("--max-num-seqs=x",): "spec.batching.maxNumSeqs",
    ("--max-num-seqs.a", "3"): "spec.batching.maxNumSeqs",
    ("--max-num-se", "7"): "argument --max-num-se means --max-num-seqs, which is set by spec.batching.maxNumSeqs",
    ("--max_num_seqs", "7"): "spec.batching.maxNumSeqs",
    ("--max_num-se=7",): "spec.batching.maxNumSeqs",
    ("--max-num-batched-tok=5",): "spec.batching.maxNumBatchedTokens",
    ("--max-num-act=5",): "spec.tuning.bounds.maxNumActiveSeqs",
    ("--max-num-sched=5",): "spec.tuning.bounds.maxNumScheduledTokens",
    ("--enable-prefix-caching",): "spec.batching.prefixCaching",
    ("--no-enable-prefix-caching",): "spec.batching.prefixCaching",
    ("--no-enable-prefix",): "spec.batching.prefixCaching",
    ("-tp", "2"): "argument -tp means --tensor-parallel-size, which is set by spec.parallelism.tensor",
    ("-tp=2",): "spec.parallelism.tensor",
    ("-pp", "2"): "argument -pp means --pipeline-parallel-size, which is set by spec.parallelism.pipeline",
    ("-asc", "0"): "--api-server-count must be at least 1, is 0",
    ("/other",): "argument /other is the model, which is set by spec.model.uri",
    ("--dtype", "half", "/other"): "argument /other is the model",
    ("--model", "x"): "spec.model.uri",
    ("--served", "a", "b"): "spec.model.servedName",
    ("--config", "x.yaml"): "spec.engine.args",
    ("--config=x.yaml",): "spec.engine.args",
    ("--scheduler-c=None",): "the scheduler is its own",
    ("--hos=::",): "listens on all addresses",
    ("--port=9",): "listens on port 8000",
    ("--uds=/tmp/s",): "listens on port 8000",
    ("--disable-log-s",): "tuning needs the engine's statistics",
    ("--dtype", "auto", "--shutdown_time", "3"): "spec.rollout.drainTimeout",
    ("--headless",): "argument --headless cannot be used: it starts no API server, so that no probe is answered",
    ("--grpc",): "it serves gRPC in place of HTTP, so that no probe is answered",
    ("--ssl_keyfile=/k.pem",): "cannot be used: probes and the operator speak plain HTTP to a pod",
    ("--ssl-certfile", "/c.pem"): "probes and the operator speak plain HTTP to a pod",
    ("--nnodes=2",): "each pod is an engine of its own, and would wait for other nodes for ever",
    ("--data-parallel-size=2", "-dpn", "1"): "argument -dpn means --data-parallel-rank, which cannot be used: each pod",
    ("--data-parallel-size-l=1",): "argument --data-parallel-size-l=1 means --data-parallel-size-local, which cannot",
    ("--data-parallel-external-lb",): "would wait for other nodes for ever",
}
#: What vLLM would not take itself, and what is said about it.
WRONG: Mapping[tuple[str, ...], str] = {
    ("--max-num", "3"): "ambiguous option",
    ("--max-modl-len=3",): "this vLLM has no argument --max-modl-len=3; did you mean --max-model-len?",
    ("--swap-space", "4"): "this vLLM has no argument --swap-space",
    ("--max-model-len=abc",): "invalid human_readable_int",
    ("--scheduling-policy=x",): "invalid choice",
    ("--dtype",): "expected one argument",
    ("--compilation-config.mode",): "the last one lacks its value",
    ("--",): "would turn the arguments behind it",
    ("--help",): "print something and exit",
    ("serve", "--model", "x"): "this vLLM has no argument x",
}  # fmt: skip
#: All of them.
VLLM_ARGUMENTS = [*REFUSED.items(), *WRONG.items()]

#: Of the launcher itself.
LAUNCHER: Final = [
    ("--owned=nonsense", "is no JSON"),
    ('--owned={"port": 8000}', "must be a list of strings"),
    ('--owned=["--port", "8000"]', "each with its value behind ="),
    ("--own=[]", "unrecognized arguments: --own=[]"),
]
#: Of scripts, with their exit codes.
SCRIPTS: Final = [
    ("cluster", 2, "Usage: hack/cluster"),
    ("cluster up --fake-nodes many", 2, "Usage: hack/cluster"),
    ("cluster down --purg", 2, "Usage: hack/cluster"),
    ("cluster exec", 2, "Usage: hack/cluster"),
    ("cluster restart", 1, "unknown daemon ''; there are: etcd"),
    ("cluster pause kublet", 1, "unknown daemon 'kublet'; there are: etcd"),
    ("cluster pause kubelet", 1, "the cluster does not run"),
    ("check --fixx", 1, "unknown option '--fixx'"),
    ("demo --load-cpu half", 1, "--load-cpu needs a limit such as 500m or 2, not 'half'"),
    ("demo --load-cpu", 1, "--load-cpu needs a limit such as 500m or 2, not ''"),
    ("demo --fast", 2, "unknown option '--fast'"),
    ("docs --fast", 2, "unknown option '--fast'"),
    ("docs --port many", 2, "--port"),
    ("gen --all", 1, "unknown option '--all'"),
    ("images engine", 1, "unknown image 'engine'; there are: operator plugin engine-cpu"),
    ("test --vllm 0.27", 2, "no vLLM '0.27' to test with; accepted: 0.26, 0.29, 0.32, 0.33, newest"),
    ("test engine --vllm", 2, "no vLLM 'none' to test with; accepted: 0.26, 0.29, 0.32, 0.33, newest"),
    ("test units", 2, "unknown level 'units'; accepted: pure, contract, engine, cluster, long"),
    ("fuzz --steps many", 2, "--steps is 'many'; accepted: a whole number"),
    ("fuzz --vllm 0.27", 2, "no vLLM '0.27' to test with; accepted: 0.26, 0.29, 0.32, 0.33, newest"),
    ("fuzz --forever", 2, "unknown option '--forever'"),
]
#: Of the simulated engine's command line.
SIMULATOR: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("", ("required",)),
    ("play", ("invalid choice: 'play'", "run")),
    ("run --preset h1000", ("--preset", "h100-8b")),
    ("run --lengths poems", ("--lengths", "conversation")),
    ("run --rate fast", ("--rate", "'fast'", "a number above 0")),
    ("run --rate 0", ("--rate", "a number above 0")),
    ("run --rate nan", ("--rate", "a number above 0")),
    ("run --variation 0", ("--variation", "a number above 0")),
    ("run --seconds -1", ("--seconds", "a number above 0")),
    ("run --patience 0", ("--patience", "a number above 0")),
    ("run --active 0", ("--active", "a whole number from 1 to 2147483647")),
    ("run --tokens 1.5", ("--tokens", "a whole number from 1 to 2147483647")),
    ("run --threshold -1", ("--threshold", "a whole number from 0 to 2147483647")),
    ("run --ttft 0", ("--ttft", "a number above 0")),
    ("run --tpot 1e9", ("--tpot", "a number above 0 and at most 86400")),
    ("run --trace /nowhere.csv", ("cannot read /nowhere.csv",)),
    ("serve --port 70000", ("--port", "a whole number from 1 to 65535")),
    ("serve --start-seconds -1", ("--start-seconds", "a number of at least 0")),
    ("serve --port 8001", ("--port 8001 is the control port, too", "accepted: another")),
    ("serve --host 192.0.2.1", ("--host 192.0.2.1", "accepted: an address of this machine")),
]
#: Of the padded engine's command line.
PADDED: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("", ("required",)),
    ("generate", ("invalid choice: 'generate'", "serve")),
    ("serve", ("required: --model",)),
    ("serve --model /nowhere", ("--model /nowhere", "a folder with a model and its tokeniser")),
    ("serve --model .", ("--model .: no config.json or tokeniser in it", "a folder with a model and its tokeniser")),
    ("serve --model . --batch-size 0", ("--batch-size", "a whole number from 1")),
    ("serve --model . --batch-size 33", ("--batch-size 33", "at most --max-num-seqs, 32")),
    ("serve --model . --max-num-seqs many", ("--max-num-seqs", "'many'", "a whole number from 1")),
    ("serve --model . --max-queue 0", ("--max-queue", "a whole number from 1")),
    ("serve --model . --max-delay 61", ("--max-delay", "seconds from 0 to 60")),
    ("serve --model . --max-delay soon", ("--max-delay", "'soon'", "seconds from 0 to 60")),
    ("serve --model . --max-model-len 0", ("--max-model-len", "a whole number from 1")),
    ("serve --model . --port 70000", ("--port", "a whole number from 1 to 65535")),
    ("serve --model . --drain-timeout 0", ("--drain-timeout", "a whole number from 1 to 86400")),
    ("serve --model . --dtype int4", ("--dtype", "float32")),
]
_REPLAY: Final = "replay chat --prometheus http://127.0.0.1:1"
#: Of `flyball`, but for what `flyball size` cannot size.
FLYBALL: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("", ("required: command",)),
    ("seize", ("invalid choice: 'seize'", "crd", "size")),
    ("crd --hashes", ("usage: flyball crd", "unrecognized arguments: --hashes")),
    ("size x --gpus L4", ("usage: flyball size", "--gpu NAME", "unrecognized arguments: --gpus")),
    ("size x --gpu L4 --memory 1GiB", ("--memory", "not allowed with argument --gpu")),
    ("size x --context many", ("--context", "invalid int value: 'many'")),
    ("replay", ("give the NAME", "--file", "--recorded")),
    ("replay chat -f chat.yaml", ("give the NAME of a service, or a file",)),
    ("replay -f chat.yaml -n team", ("--file asks no cluster", "--namespace")),
    ("replay chat", ("--prometheus or $FLYBALL_PROMETHEUS_URL is missing",)),
    ("replay chat --prometheus prometheus:9090", ("--prometheus", "is no URL such as http://prometheus.monitoring")),
    ("replay --recorded x --step 5s --to 1h", ("--recorded asks no Prometheus", "does not go with --to, --step")),
    ("replay --recorded x -n team", ("--recorded asks no cluster without a NAME", "--namespace")),
    (f"{_REPLAY} --from soon", ("--from: 'soon'", "a time such as 2026-11-22T08:00:00Z", "such as 2h")),
    (f"{_REPLAY} --from 2026-13-22T08:00:00Z", ("--from: '2026-13-22T08:00:00Z' is no time", "month")),
    (f"{_REPLAY} --to 2026-11-22T08:00:00", ("names no time zone", "accepted: 2026-11-22T08:00:00Z")),
    (f"{_REPLAY} --to 2999-01-01T00:00:00Z", ("--to: 2999-01-01T00:00:00Z is not past yet",)),
    (f"{_REPLAY} --from 1h --to 2h", ("--from", "is not before --to")),
    (f"{_REPLAY} --step 0", ("--step: '0'", "a duration such as 500ms")),
    (f"{_REPLAY} --step 100ms", ("--step: 100ms is out of range", "0.5s to 60s")),
    (f"{_REPLAY} --from 48h", ("34,561 ticks", "at most 17,280", "a --step of 11s or more")),
    (f"{_REPLAY} --from 999h", ("at most 17,280", "a shorter span")),
]
#: Of the operator process.
OPERATOR: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("run", ("usage: python3 -m flyball_operator", "unrecognized arguments: run")),
    ("--namespaces default", ("unrecognized arguments: --namespaces default",)),
]
#: Of `hack/bench`.
BENCH: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("", ("required: name",)),
    ("motor", ("invalid choice: 'motor'", "engine")),
    ("engine --fast", ("unrecognized arguments: --fast",)),
    ("law --part calm", ("no part calm", "accepted: open, gated, order, robust, ablate, trace")),
    ("law --part trace", ("the part trace needs --trace FILE",)),
    ("law --minutes 5", ("--rate and --minutes are of a trace", "--trace FILE")),
    ("law --trace /nowhere.csv", ("cannot read /nowhere.csv",)),
    ("law --trace x.csv --rate 0", ("--rate", "'0' is no number above 0")),
    ("law --trace x.csv --minutes soon", ("--minutes", "'soon' is no number above 0")),
    ("law --trace x.csv --preset tpu", ("--preset", "invalid choice: 'tpu'", "h100-8b")),
    ("tick --services 0", ("--services", "'0' is no whole number from 1 to 10000")),
    ("tick --ticks many", ("--ticks", "'many' is no whole number from 1")),
    ("tick --part law", ("no part law", "accepted: tick")),
    ("law --ablate gravity", ("no constant 'gravity'", "'all', ", "'huber'")),
    ("law --ablate huber --part open", ("--ablate goes with no other part",)),
    ("law --ablate tail", ("no goodput hangs on tail", "tests/perturb/test_capacity.py")),
    ("law --out /proc/nowhere", ("cannot keep results in /proc/nowhere",)),
    ("live --part calm", ("no part calm", "accepted: open, gated")),
    ("live --rate 2", ("--rate is no option of live, but of: law",)),
    ("engine --quick", ("--quick is no option of engine, but of: law, live",)),
    ("live --out /proc/nowhere", ("cannot keep results in /proc/nowhere",)),
]
#: Of `flyball-bench`, but for what needs an endpoint to be seen.
EXERCISE: Final[list[tuple[str, tuple[str, ...]]]] = [
    ("", ("required: command",)),
    ("run", ("required: --url",)),
    ("run --url ftp://x", ("--url", "'ftp://x' is no address", "such as http://127.0.0.1:8000")),
    ("run --url http://x --concurrency 0", ("--concurrency", "'0' is out of range", "1,16,64 or 1..64")),
    ("run --url http://x --concurrency 9..1", ("--concurrency", "'9..1' is out of range")),
    ("run --url http://x --concurrency many", ("--concurrency", "'many' is no list of numbers", "1,16,64 or 1..64")),
    ("run --url http://x --strategies Magic", ("--strategies", "'Magic' is unknown", "all, or a list of Continuous")),
    ("run --url http://x --workloads odd", ("--workloads", "'odd' is unknown", "a list of uniform, mixed")),
    ("run --url http://x --spread 1", ("--spread", "numbers from 0 to 0.99")),
    ("run --url http://x --max-delay -1", ("--max-delay", "numbers from 0 to 60")),
    ("run --url http://x --batch-size x", ("--batch-size", "whole numbers from 1 to 4096")),
    ("run --url http://x --requests 0", ("--requests", "whole numbers from 1 to 1000")),
    ("run --url http://x --seed 1.5", ("--seed", "whole numbers from 0 to 4294967295")),
    ("run --url http://x --timeout 0", ("--timeout", "numbers from 1 to 86400")),
    ("run --url http://x --tokenizer /nowhere", ("--tokenizer", "'/nowhere' is no folder", "or a name on the Hub")),
    ("report", ("required: FILE",)),
    (
        "report /nowhere.jsonl",
        ("/nowhere.jsonl: No such file or directory", "accepted: a results.jsonl, or its folder"),
    ),
]
