"""What a support bundle takes out of objects and logs, and what it leaves."""

from __future__ import annotations

import json

import pytest

from flyball_operator.api import names
from flyball_operator.cli.bundle.redaction import REDACTED, redacted, text

PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----"
JWT = "eyJhbGciOiJFZERTQSJ9.eyJhdWQiOiJ1aWQtMSJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([{"name": "A", "value": "x"}], [{"name": "A", "value": REDACTED}]),
        ({"httpHeaders": [{"name": "Authorization", "value": "x"}]}, None),
        ({"args": ["--api-key", "x", "--port=1"]}, {"args": ["--api-key", REDACTED, "--port=1"]}),
        ({"args": ["--api-key=x"]}, {"args": [f"--api-key={REDACTED}"]}),
        ({"command": ["--hf_token", "x"]}, {"command": ["--hf_token", REDACTED]}),
        ({"command": ["srv", "-u", "--api-key", "x"]}, {"command": ["srv", "-u", "--api-key", REDACTED]}),
        ({"command": ["curl", "-u", 'a person:"x"']}, {"command": ["curl", "-u", f"a person:{REDACTED}"]}),
        ({"command": ["curl", "-u", "me:x", "-o", "a"]}, {"command": ["curl", "-u", f"me:{REDACTED}", "-o", "a"]}),
        ({"volumeAttributes": {"a": "x"}}, {"volumeAttributes": {"a": REDACTED}}),
        ({"apiKey": "x"}, {"apiKey": REDACTED}),
        # Settings of a KV connector.
        ({"lmcache.remote_password": "x", "hfToken": "x"}, {"lmcache.remote_password": REDACTED, "hfToken": REDACTED}),
        ({"clientSecret": "x", "secret_access_key": "x"}, {"clientSecret": REDACTED, "secret_access_key": REDACTED}),
        ({"args": ["env", "AWS_SECRET_ACCESS_KEY=x"]}, {"args": ["env", f"AWS_SECRET_ACCESS_KEY={REDACTED}"]}),
        ({"args": ["--otlp-headers", "x"]}, {"args": ["--otlp-headers", REDACTED]}),
        ({"annotations": {"team": "x"}}, {"annotations": {"team": REDACTED}}),
        ({"annotations": {names.ANNOTATION_TUNING_REASON: "x"}}, None),
        ({"metadata": {"managedFields": [{"x": 1}], "name": "a"}}, {"metadata": {"name": "a"}}),
    ],
)
def test_what_may_be_a_secret_goes(found: object, left: object) -> None:
    shown = redacted(found)
    assert '"x"' not in json.dumps(shown)
    assert left is None or shown == left


@pytest.mark.parametrize(
    "found",
    [
        {"args": ["--max-num-batched-tokens", "8192", "--tokenizer", "qwen", "--enable-prefix-caching"]},
        {"env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]},
        {"tls": {"secretName": "chat-tls"}},
        {"command": ["date", "-u", "+%H:%M:%S"]},
        {"command": ["wget", "-U", "https://example.com/agent"]},
        {"message": "python3 -u serve.py: started; docker run -u 1000:1000; date -u +%H:%M:%S"},
        {"message": "pip install --user git+https://mirror/a"},
        {"annotations": {names.ANNOTATION_ASKED: "hash 2026-11-20T10:00:00Z"}},
        {"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]},
        {"conditions": [{"type": "Ready", "status": "True", "message": 'secret "hf" not found'}]},
        {"message": "signing-key: team-a/flyball-public-keys is not there"},
        {"maxNumBatchedTokens": 8192, "ready": True, "none": None},
    ],
)
def test_what_a_fault_needs_stays(found: object) -> None:
    assert redacted(found) == found


@pytest.mark.parametrize(
    ("found", "secret"),
    [
        (f"key is {PEM} and so on", "MC4CAQ"),
        (PEM[:50], "MC4CAQ"),
        (f"Authorization: Bearer {JWT}", "eyJ"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNl"),
        ("hf_abcdefghijklmnop was refused", "abcdefgh"),
        ("sk-abcdefghijklmnop", "abcdefgh"),
        ("https://user:hunter2@prometheus/api", "hunter2"),
        ("curl -u user:hunter2 https://mirror/x", "hunter2"),
        ("curl --user 'user:hunter2 more' https://mirror/x", "more"),
        ("curl --proxy-user=user:hunter2 https://mirror/x", "hunter2"),
        ('["curl", "-u", "user:hunter2"]', "hunter2"),
        ("""curl -u user:"hunter2 more" https://mirror/x""", "hunter2"),
        ("""curl -u "$NAME":"hunter2 more" https://mirror/x""", "hunter2"),
        ("curl -fsSLu :hunter2 https://mirror/x", "hunter2"),
        ('curl --user "a person:hunter2" https://mirror/x', "hunter2"),
        ('curl --user "user:hunter2 cut off', "hunter2"),
        (r'curl -u "user:one\"hunter2"', "hunter2"),
        ("vllm serve --api-key hunter2 --port 1", "hunter2"),
        ("vllm serve --api-key='hunter2 more' --port 1", "hunter2"),
        ('{"password": "hunter2", "a": 1}', "hunter2"),
        ("HF_TOKEN=hunter2", "hunter2"),
        ("--hf-token hunter2", "hunter2"),
        ("--api-key=hunter2", "hunter2"),
        ("--use-auth --api-key hunter2", "hunter2"),
        ('["--api-key","hunter2"]', "hunter2"),
        ("['--api-key', 'hunter2']", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY=hunter2 s5cmd cp", "hunter2"),
        ('{"aws_secret_access_key": "hunter2"}', "hunter2"),
        ("DefaultEndpointsProtocol=https;AccountKey=hunter2;", "hunter2"),
        ("password=one,hunter2", "hunter2"),
        (r'"password": "one\"hunter2"', "hunter2"),
        ('password="cut off hunter2', "hunter2"),
        ("Authorization: Token hunter2", "hunter2"),
        ("Cookie: a=hunter1; b=hunter2", "hunter"),
        ("https://bucket/model?X-Amz-Credential=hunter1&X-Amz-Signature=hunter2", "hunter"),
        ("https://account/model?sv=1&sig=hunter2", "hunter2"),
        ("mongodb://user:at@hunter2@host", "hunter2"),
        ("nvapi-abcdefghijklmnop", "abcdefgh"),
        ("github_pat_abcdefghijklmnop", "abcdefgh"),
        ("gho_abcdefghijklmnop", "abcdefgh"),
        ("ASIAABCDEFGHIJKLMNOP", "ABCDEFGH"),
    ],
)
def test_what_looks_like_a_credential_goes_from_texts(found: str, secret: str) -> None:
    assert secret not in text(found)
    assert REDACTED in text(found)


@pytest.mark.parametrize(
    "found",
    [
        '{"token": "hunter2", "a": 1}',
        'password="hunter2"',
        '["--api-key", "hunter2"]',
        'sh -c "curl -u me:hunter2" x',
        '["curl", "-u", "me:hunter2"]',
    ],
)
def test_lines_of_a_log_in_json_stay_json_when_a_credential_goes(found: str) -> None:
    # As the operator's log has what others said: JSON, or JSON within JSON.
    for said in (found, json.dumps({"answer": found})):
        shown = text(json.dumps({"message": said, "event": "PushFailed"}))
        assert "hunter2" not in shown
        assert json.loads(shown)["event"] == "PushFailed"


@pytest.mark.parametrize("found", ['{"token":null,"a":"b"}', '{"token": 123, "a": 1}'])
def test_what_follows_a_value_without_quotes_stays_json(found: str) -> None:
    shown = text(found)
    assert "null" not in shown
    assert "123" not in shown
    assert shown.partition(REDACTED)[2].startswith(",")


@pytest.mark.parametrize(
    "found",
    [
        "--" + "_" * 500,
        "--" + "a_" * 500,
        "-" + "a-" * 500,
        'password="' * 500,
        "-a.-a." * 50_000,
        "--" + "key-" * 50_000,
        "token" * 50_000,
        '-u "a:' * 50_000,
        "-u a:" * 50_000,
    ],
    ids=lambda found: found[:9],
)
def test_no_text_takes_for_ever(found: str) -> None:
    # Any tenant can write such an argument. Where words of a name could be told apart in two ways, 40 characters took
    # half a minute, and 60 a year.
    assert text(found)
    assert redacted({"args": [found]})


@pytest.mark.parametrize(
    "found",
    [
        "200 tokens: 3 requests",
        "--max-num-batched-tokens 8192 --tokenizer qwen",
        "https://prometheus.monitoring:9090/api?query=up",
        "registry.example/flyball/operator@sha256:0123456789abcdef",
        "max_num_batched_tokens=8192 seqs=48",
        "ttft 320ms",
        "in the last 5m: first-token 93.8 % of 99 %, per-token 50.0 % of 95 %",
    ],
)
def test_figures_stay_in_texts(found: str) -> None:
    assert text(found) == found


def test_what_is_nested_without_end_is_cut() -> None:
    found: object = "x"
    for _ in range(200):
        found = {"a": found}
    assert '"x"' not in json.dumps(redacted(found))
