"""`flyball explain`: what the operator sees of a service, and what it did, read out of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.manifests import good
from flyball_operator.cli.entry import main

MODEL = {
    "id": "abcd1234",
    "t0": "0.0059",
    "h": "0.001",
    "c1": "1.2e-05",
    "c2": "4e-05",
    "beta": "2e-05",
    "g": "1.3e-09",
    "kappa": 256,
    "error": "0.08",
    "trusted": True,
    "steps": 12000,
}
LIMITS = {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 1024}
DECISION = {
    "time": "2026-11-22T03:47:07Z",
    "trigger": "ttft binds at 2.6/s per core of 371+23 tokens, 0 waiting",
    "before": {"maxNumActiveSeqs": 64, "maxNumScheduledTokens": 1024},
    "after": LIMITS,
    "predicted": "ttft 320ms, tpot 20ms, gap 64ms, 20 requests/s per core",
    "observed": "token 19ms, ttft 100 %",
}
TUNED: dict[str, Any] = {
    "replicas": 2,
    "readyReplicas": 2,
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "PodsReady"},
        {"type": "Tuned", "status": "True", "reason": "Applied", "message": "48 seqs, 1024 tokens on every Ready pod"},
    ],
    "objectives": [{"name": "ttft", "attained": "99.6", "budgetRemaining": "60", "window": "5m"}],
    "tuning": {
        "mode": "Auto",
        "epoch": 3,
        "generation": 12,
        "setpoint": LIMITS,
        "appliedPods": "2/2",
        "model": MODEL,
        "bindingObjective": "ttft",
        "decisions": [DECISION],
    },
}


def a_service(status: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return good(metadata__namespace="team", metadata__uid="uid-1", **changes) | {"status": status or {}}


@pytest.fixture
def explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command on a document; what it printed, in one line each."""

    def run(document: object, *options: str, code: int = 0) -> str:
        path = tmp_path / "service.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        assert main(["explain", "--file", str(path), *options]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def test_it_tells_of_a_service_that_is_tuned(explained: Any) -> None:
    said = explained(a_service(TUNED))
    for expected in (
        "team/chat: mode Auto, 2 of 2 pods Ready",
        "setpoint 12 of leadership 3, applied by 2/2 pods",
        "TimeToFirstToken within 500ms for 99 %",
        "99.6 % in the last 5m, 60 % of the allowed violations left",
        "Tuned True: 48 seqs, 1024 tokens on every Ready pod",
        "abcd1234: median error 8 %, learnt from 12,000 steps",
        "12us/token up to 256, 40us/token beyond",
        "a step of 48 decodes takes 7.44ms",
        "what binds: ttft",
        "nothing: mode Auto has applied what it decided",
        "requests at once: 64 to 48",
        "why: ttft binds at 2.6/s per core",
        "expected: ttft 320ms",
        "came: token 19ms, ttft 100 %",
    ):
        assert expected in said
    assert "PodsReady" not in said, "of what the reconciler does kubectl tells"
    assert max(map(len, said.splitlines())) <= 130


def test_as_json_it_has_what_the_text_is_made_of(explained: Any) -> None:
    said = json.loads(explained(a_service(TUNED), "-o", "json"))
    assert (said["namespace"], said["name"], said["unattended_since"]) == ("team", "chat", "")
    assert [one["metric"] for one in said["spec"]["objectives"]] == ["TimeToFirstToken"]
    assert said["spec"]["tuning"]["mode"] == "Auto"
    assert said["status"]["objectives"] == TUNED["objectives"]
    assert said["status"]["tuning"]["bindingObjective"] == "ttft"
    assert said["status"]["tuning"]["decisions"][0]["after"] == LIMITS


def test_it_tells_what_is_asked_of_the_queue(explained: Any) -> None:
    batching = {"strategy": {"type": "Static", "batchSize": 8}}
    said = explained(a_service(TUNED, spec__tuning={"order": "Arrival", "batching": batching}))
    assert "  spec.tuning asks for strategy Static, batches of at most 8 requests.\n" in said


def test_a_service_that_nobody_has_looked_at_yet(explained: Any) -> None:
    said = explained(a_service())
    assert "no operator has reported on this service" in said
    assert "nothing was counted" in said
    assert "not trusted yet, no steps seen" in said
    assert "none set yet: pods run at the upper bounds" in said


def test_of_a_service_that_is_not_accepted_it_says_why(explained: Any) -> None:
    said_by_reconciler = "Deployment chat has no owner and is left alone: remove it or give this service another name"
    conflict = {"type": "Accepted", "status": "False", "reason": "NameConflict", "message": said_by_reconciler}
    said = explained(a_service({"conditions": [conflict]}))
    assert f"Accepted False, NameConflict: {said_by_reconciler}" in " ".join(said.split())
    assert "a service that is not accepted is not tuned" in said
    assert "no operator has reported" not in said
    assert "has applied what it decided" not in said


def test_a_service_that_is_accepted_and_not_looked_at_yet(explained: Any) -> None:
    accepted = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "the spec can be acted upon"}
    said = explained(a_service({"conditions": [accepted]}))
    assert "the operator has accepted the service, and has not looked at its engines" in said
    assert "the spec can be acted upon" not in said


def test_a_rollback_and_what_serves_instead_are_told(explained: Any) -> None:
    back = {"type": "Ready", "status": "False", "reason": "RolledBack", "message": "InvalidImageName: reg.example/x@"}
    earlier = {"type": "Available", "status": "True", "reason": "EarlierRevisionServes", "message": "revision 1 serves"}
    said = explained(a_service({**TUNED, "conditions": [*TUNED["conditions"][1:], back, earlier]}))
    assert "Ready False, RolledBack: InvalidImageName: reg.example/x@" in said
    assert "Available True, EarlierRevisionServes: revision 1 serves" in said


def test_before_a_model_small_first_steps_are_not_told_as_the_upper_bounds(explained: Any) -> None:
    first = {"maxNumActiveSeqs": 256, "maxNumScheduledTokens": 512, "queuedTokens": 8533}
    said = explained(a_service({"tuning": {"mode": "Auto", "generation": 1, "setpoint": first}}))
    assert "what binds: nothing yet: first steps are small until the model is known" in said


@pytest.mark.parametrize(
    ("remaining", "words"),
    [
        ("0", "0 % of the allowed violations left"),
        ("-520", "6.2 times the allowed violations"),
        ("-999", "at least 11 times the allowed violations"),
    ],
)
def test_an_overspent_budget_is_told_as_a_multiple(explained: Any, remaining: str, words: str) -> None:
    rows = [{"name": "ttft", "attained": "93.8", "budgetRemaining": remaining, "window": "5m"}]
    assert f"93.8 % in the last 5m, {words}" in explained(a_service(TUNED | {"objectives": rows}))


def test_behind_a_gate_it_tells_who_is_refused(explained: Any) -> None:
    gated = LIMITS | {"stepBudget": "27.6ms", "firstTokenDeadline": "500ms", "firstTokenMargin": "0.85"}
    gated |= {"refusalStatus": 429}
    decision = DECISION | {"before": LIMITS, "after": gated}
    status = TUNED | {"tuning": TUNED["tuning"] | {"setpoint": gated, "decisions": [decision]}}
    said = explained(a_service(status, spec__tuning__overload="Shed"))
    assert "beside 48 decodes that is 618 tokens of a prompt" in said
    assert "who is predicted to wait longer than 425ms is refused" in said
    assert "time of a step: - to 27.6ms" in said.partition("last decisions")[2]
    assert "the HTTP status of who is refused: - to 429" in said.partition("last decisions")[2]


def test_in_the_on_time_order_it_tells_who_is_served_first(explained: Any) -> None:
    ordered = LIMITS | {"onTimeDeadline": "2s", "onTimeMargin": "0.70"}
    decision = DECISION | {"before": LIMITS, "after": ordered}
    status = TUNED | {"tuning": TUNED["tuning"] | {"setpoint": ordered, "decisions": [decision]}}
    said = explained(a_service(status))
    assert "who can have it within 1.4s is served first, the others behind" in said
    assert "the deadline by which requests are ordered: - to 2s" in said.partition("last decisions")[2]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (
            {"movedBehind": 140, "inTimeAfterAll": 42, "longestWait": "28s", "window": "5m"},
            "in the last 5m: 140 requests moved behind, 42 in time after all, the longest wait behind 28s",
        ),
        ({"movedBehind": 0, "longestWait": "0s", "window": "5m"}, "nobody was moved behind in the last 5m"),
    ],
)
def test_it_tells_what_the_order_did(explained: Any, order: dict[str, Any], words: str) -> None:
    assert words in explained(a_service(TUNED | {"tuning": TUNED["tuning"] | {"order": order}}))


def test_of_an_order_that_nobody_counted_it_tells_nothing(explained: Any) -> None:
    assert "on-time order" not in explained(a_service(TUNED))


def test_recommend_says_what_it_would_change(explained: Any) -> None:
    status = TUNED | {"tuning": TUNED["tuning"] | {"recommended": LIMITS | {"maxNumActiveSeqs": 20}}}
    said = explained(a_service(status, spec__tuning__mode="Recommend"))
    assert "requests at once: 48 to 20" in said.partition("would change")[2]


def test_disabled_would_change_nothing(explained: Any) -> None:
    assert "mode Disabled holds the upper bounds" in explained(a_service(TUNED, spec__tuning__mode="Disabled"))


def test_a_pod_that_is_slower_than_the_others_is_named(explained: Any) -> None:
    status = TUNED | {"tuning": TUNED["tuning"] | {"slowPods": [{"name": "chat-5d-x2x", "factor": "1.5"}]}}
    assert "pod chat-5d-x2x: steps take 1.5 times as long as on its siblings" in explained(a_service(status))


def test_what_a_terminal_would_obey_is_not_passed_on(explained: Any) -> None:
    obeyed = "pod chat-1: exit code 1: \x1b]0;owned\x07"
    failed = {"type": "Available", "status": "False", "reason": "EngineFailed", "message": obeyed}
    tuning = TUNED["tuning"] | {"slowPods": [{"name": "chat-\x1b[2J", "factor": "1.5"}]}
    said = explained(a_service(TUNED | {"conditions": [*TUNED["conditions"], failed], "tuning": tuning}))
    assert "exit code 1: \N{REPLACEMENT CHARACTER}]0;owned" in said
    assert said.replace("\n", "").isprintable()


def test_a_pause_is_in_the_first_line_and_what_comes_after_it_in_the_outlook(explained: Any) -> None:
    status = TUNED | {"tuning": TUNED["tuning"] | {"recommended": LIMITS | {"maxNumActiveSeqs": 20}}}
    said = explained(a_service(status, metadata__annotations={"serving.flyball.dev/tuning": "Paused"}))
    assert "mode Auto, paused by the annotation serving.flyball.dev/tuning, 2 of 2 pods" in said
    assert "requests at once: 48 to 20" in said.partition("would change once it is resumed")[2]


def test_a_model_that_is_not_trusted_explains_no_limit(explained: Any) -> None:
    status = TUNED | {"tuning": TUNED["tuning"] | {"model": MODEL | {"trusted": False}}}
    said = explained(a_service(status))
    assert "not trusted yet, 12,000 steps seen" in said
    assert "the time of a step, the order and the deadline follow an overload" in " ".join(said.split())
    assert "a step of" not in said.partition("limits in force")[2].partition("would change")[0]


def test_the_one_service_among_several_documents_is_meant(explained: Any) -> None:
    claim = "kind: PersistentVolumeClaim\n---\n"
    assert "team/chat: mode Auto" in explained(claim + yaml.safe_dump(a_service(TUNED)) + "---\n")


@pytest.mark.parametrize(
    ("document", "code", "expected"),
    [
        ("{", 2, "neither YAML nor JSON"),
        ("", 2, "is empty, accepted: InferenceService"),
        ("[1]", 2, "kind is not there, accepted: InferenceService"),
        ({"kind": "Deployment"}, 2, "kind is 'Deployment', accepted: InferenceService"),
        ({"kind": "InferenceService"}, 2, "metadata"),
        ("kind: Deployment\n---\nkind: Service\n", 2, "has 2 documents, none of kind InferenceService, accepted:"),
        ("kind: InferenceService\n---\nkind: InferenceService\n", 2, "has 2 documents, 2 of kind InferenceService"),
        (a_service(spec__engine__image=3), 2, "spec.engine.image"),
    ],
)
def test_what_is_no_service_is_refused_in_words(explained: Any, document: object, code: int, expected: str) -> None:
    assert expected in explained(document, code=code)


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--file", "/nowhere/chat.yaml"]) == 2
    assert "--file /nowhere/chat.yaml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["chat", "--file", "chat.yaml"], ["--file", "chat.yaml", "--namespace", "team"]]
)
def test_a_name_or_a_file(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["explain", *arguments])
    assert end.value.code == 2
    assert "--file" in capsys.readouterr().err


def test_without_a_kubeconfig_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main(["explain", "chat"]) == 1
    assert f"no usable kubeconfig: there is no {tmp_path / 'none'}; accepted" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "hello", "[1]", "a: [b", "clusters: 5", "kind: Config"])
def test_a_kubeconfig_of_another_form_is_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["explain", "chat"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("flyball explain: no usable kubeconfig: ")
    assert str(tmp_path / "config") in said


def test_what_decodes_read_is_part_of_what_a_limit_means(explained: Any) -> None:
    reading = TUNED | {"tuning": TUNED["tuning"] | {"model": MODEL | {"d": "5e-08"}}}
    said = explained(a_service(reading))
    assert "50ns/token of KV cache that decodes read" in " ".join(said.split())
    # 2.4 ms more than without.
    assert "a step of 48 decodes with 1,000 tokens of context each takes 9.84ms" in said
