"""What Helm 4, Flux and Argo CD say of objects: by their own libraries, which `hack/lib/go/health` runs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import yaml

from flyball_lab.repository import ROOT
from flyball_operator.api import names
from support.binaries import binary

Object = dict[str, Any]
#: Where Argo CD looks for the rule.
RULE_KEY = f"resource.customizations.health.{names.GROUP}_{names.KIND}"


class Health(NamedTuple):
    """`kstatus`: InProgress, Current, Failed or Terminating. `argocd`: Progressing, Healthy, Degraded and others."""

    kstatus: str
    argocd: str


#: Done, failed, and to be waited for.
DONE, FAILED, WAITED_FOR = (
    Health("Current", "Healthy"),
    Health("Failed", "Degraded"),
    Health("InProgress", "Progressing"),
)


@cache
def argocd_rule() -> str:
    """The rule in Lua that the documentation tells users to set."""
    page = (ROOT / "docs/operations.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (found,) = [block for block in blocks if RULE_KEY in block]
    return str(yaml.safe_load(found)["data"][RULE_KEY])


def healths(objects: Sequence[Object]) -> list[Health]:
    """What the tools say of each object."""
    asked = json.dumps({"rule": argocd_rule(), "objects": objects})
    done = subprocess.run([binary("health")], input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [Health(one["kstatus"]["status"], one["argocd"]["status"]) for one in json.loads(done.stdout)]


def health(found: Object) -> Health:
    """What the tools say of one object."""
    return healths([found])[0]
