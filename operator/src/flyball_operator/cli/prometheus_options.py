"""Which Prometheus a command asks, and how: an option, and the operator's own variables."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

if TYPE_CHECKING:
    from flyball_operator.app.settings import PrometheusSettings

#: The operator's own setting.
PROMETHEUS_VARIABLE: Final = "FLYBALL_PROMETHEUS_URL"


class WrongSettingError(Exception):
    """An option or variable says of Prometheus what cannot be; the message names it."""


def add_prometheus(parser: argparse.ArgumentParser) -> None:
    """The option that names it."""
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help=f"that scrapes the engines: ${PROMETHEUS_VARIABLE}; credentials, headers and certificates are those of "
        "the operator's variables FLYBALL_PROMETHEUS_…",
    )


def missing_prometheus(options: argparse.Namespace) -> str | None:
    """That nothing names it, None if something does."""
    if options.prometheus or os.environ.get(PROMETHEUS_VARIABLE):
        return None
    return f"--prometheus or ${PROMETHEUS_VARIABLE} is missing: the URL of the Prometheus that scrapes the engines"


def prometheus_settings(options: argparse.Namespace) -> PrometheusSettings:
    """How to ask Prometheus, as the operator is told. Raises `WrongSettingError`."""
    # It imports the client of Prometheus, which takes a second that other commands do not want to pay.
    from flyball_operator.app.settings import PrometheusSettings, problems  # noqa: PLC0415 – see above

    given = {"prometheus_url": options.prometheus} if options.prometheus else {}
    try:
        return PrometheusSettings(**given)
    except ValidationError as error:
        wrong = "; ".join(problems(error))
        raise WrongSettingError(wrong.replace(PROMETHEUS_VARIABLE, "--prometheus", 1) if given else wrong) from None
