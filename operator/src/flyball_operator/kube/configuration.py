"""How the API server is reached: by the account of a pod, or by a kubeconfig."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client, config
from yaml import YAMLError

from flyball_operator.api import names
from flyball_operator.kube.errors import ClusterError

#: Headers by which an API server does not compress its lists: in a cluster that costs both sides more than it saves.
UNCOMPRESSED: Final = {"Accept-Encoding": "identity"}


async def load_configuration() -> client.Configuration:
    """How to reach the API server: the pod's service account, else the kubeconfig. Raises `ClusterError`."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except Exception as error:
            raise ClusterError(f"neither a pod's service account nor a usable kubeconfig: {_wrong(error)}") from error
    made = _proxied(configuration)
    made.client_session_kwargs = {**(made.client_session_kwargs or {}), "headers": UNCOMPRESSED}
    return made


async def kubeconfig(context: str | None) -> tuple[client.Configuration, str]:
    """How a person's kubeconfig reaches an API server, and the namespace it names; of the current context if None.

    In a pod without a kubeconfig it is that of the pod's account. Raises `ClusterError`.
    """
    configuration = client.Configuration()
    # The client's own look at it is as old as its import. Of files that are not there it says that a key is missing.
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not await asyncio.to_thread(_any_exists, files):
        if context is None and _in_a_pod(configuration):
            return _proxied(configuration), await asyncio.to_thread(names.OWN_NAMESPACE_FILE.read_text, "utf-8")
        raise ClusterError(f"no usable kubeconfig: there is no {files}; accepted: one that $KUBECONFIG names")
    try:
        await config.load_kube_config(files, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
        chosen = current if context is None else next(entry for entry in contexts if entry["name"] == context)
        return _proxied(configuration), str(chosen["context"].get("namespace") or "default")
    except Exception as error:
        raise ClusterError(f"no usable kubeconfig: {_wrong(error, files)}") from error


def _proxied(configuration: client.Configuration) -> client.Configuration:
    """The same, by the proxy that `HTTPS_PROXY` and `NO_PROXY` name for this API server.

    They are looked up once, for watches too. Left to itself the client's HTTP library looks for each request, in
    threads: a seventh of a start's processor. It also looks into `~/.netrc`, and where the host is named there it
    refuses the request, because that has a token already.
    """
    address = urlsplit(configuration.host)
    # By host and port, or by host alone: of an IPv6 address only that is as `NO_PROXY` has it.
    if configuration.proxy is None and not any(map(proxy_bypass, (address.netloc, address.hostname or ""))):
        configuration.proxy = getproxies().get(address.scheme)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _wrong(error: Exception, files: str = "the file") -> str:
    """What is wrong with a kubeconfig.

    The client reads it as if it had the form, and stumbles in many ways where it has another.
    """
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, config.ConfigException | YAMLError):
        # YAML's parser says it over several lines.
        return " ".join(str(error).split())[:300]
    return f"{files} is no `kind: Config`"


def _in_a_pod(configuration: client.Configuration) -> bool:
    """Whether there is an account of a pod, which is used then."""
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        return False
    return True


def _any_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)
