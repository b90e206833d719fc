"""Which runs of tests are over, so that what they left on a cluster may be removed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from support.remnants import LABEL, is_over, mark, this_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=365)


def test_a_run_that_goes_on_is_not_over_however_old_it_is() -> None:
    assert not is_over(this_run(), LONG_AGO, NOW)


def test_a_process_that_has_ended_is_over_and_so_is_one_whose_number_another_has() -> None:
    script = "from support.remnants import this_run; print(this_run())"
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    run = done.stdout.strip()
    assert is_over(run, NOW, NOW)
    here, _, process = run.rpartition("-")[0].rpartition("-")
    assert process != str(os.getpid())
    assert is_over(f"{here}-{os.getpid()}-1", NOW, NOW)


def test_a_run_of_another_machine_is_over_after_a_day() -> None:
    elsewhere = this_run().replace(".", "0.", 1)
    assert not is_over(elsewhere, NOW - timedelta(hours=23), NOW)
    assert is_over(elsewhere, NOW - timedelta(hours=25), NOW)
    assert is_over("what is this", LONG_AGO, NOW)


def test_a_mark_keeps_other_labels_and_is_a_label() -> None:
    manifest: dict[str, Any] = {"kind": "Namespace", "metadata": {"name": "one", "labels": {"team": "a"}}}
    assert mark(manifest)["metadata"]["labels"] == {"team": "a", LABEL: this_run()}
    assert manifest["metadata"]["labels"] == {"team": "a"}
    assert len(this_run()) <= 63
