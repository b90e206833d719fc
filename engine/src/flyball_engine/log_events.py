"""The engine's log: every line names one of these events, so that a query or an alert need not match its words.

vLLM's handlers write the message alone, so the event is in it: `Flyball SetpointExpired: start values hold …`. A
configuration of your own (`VLLM_LOGGING_CONFIG_PATH`) also gets it as the field `event`.
"""

from __future__ import annotations

import logging
from enum import StrEnum


class EngineLogEvent(StrEnum):
    """What happened. Names are part of the interface: docs/reference/log-events.md lists them."""

    ADAPTERS_UNREADABLE = "AdaptersUnreadable"
    """The list of adapters cannot be read; the message says why. Those that are loaded stay."""
    ADAPTER_LOADED = "AdapterLoaded"
    """An API server answers the name of an adapter."""
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"
    """An adapter could not be loaded; the message says why. It is tried again."""
    ADAPTER_UNLOADED = "AdapterUnloaded"
    """An adapter was removed from the list, and its name is not found any more."""
    API_SERVER_BEHIND = "ApiServerBehind"
    """An API server does not follow the first one, or cannot write down what it counted. It is tried again."""
    CERTIFICATE_NOT_FOLLOWED = "CertificateNotFollowed"
    """A renewed certificate needs a restart of the engine."""
    CERTIFICATE_NOT_SERVED = "CertificateNotServed"
    """A renewed certificate cannot be served. The earlier one is."""
    CERTIFICATE_RENEWED = "CertificateRenewed"
    """A renewed certificate is served."""
    CONTROL_PORT_ENDED = "ControlPortEnded"
    """The control port is gone, by the error in the message. vLLM serves on with its setpoint."""
    CONTROL_PORT_FAILED = "ControlPortFailed"
    """The control port could not start. vLLM serves without Flyball."""
    CONTROL_PORT_OPEN = "ControlPortOpen"
    """The control port accepts requests; the message has its address."""
    EXPIRY_NOT_ANSWERED = "ExpiryNotAnswered"
    """No engine core answered when the setpoint expired. A busy core sees that at its next step."""
    GATE_FAILED = "GateFailed"
    """A request was let in, because the gate failed on it."""
    GATE_NOT_INSTALLED = "GateNotInstalled"
    """Requests cannot be refused by a deadline with this vLLM; the message says why."""
    GOVERNING = "Governing"
    """An engine core is governed."""
    GOVERNING_ENDED = "GoverningEnded"
    """An engine core is no longer governed, by the error in the message. Start values hold."""
    KEYS_UNUSABLE = "KeysUnusable"
    """The public keys cannot be read, so no setpoint is accepted."""
    NOT_GOVERNED = "NotGoverned"
    """vLLM runs without Flyball; the message says why."""
    PREFIX_CACHE_NOT_FOLLOWED = "PrefixCacheNotFollowed"
    """The gate does not see which prefixes are cached, and takes prompts for cold; the message says why."""
    PROMPT_NOT_LOOKED_UP = "PromptNotLookedUp"
    """The gate took a prompt for cold, because looking it up failed."""
    REQUESTS_NOT_COUNTED = "RequestsNotCounted"
    """Requests are missing in the attained fractions; the message says why."""
    RUST_FRONTEND_DISABLED = "RustFrontendDisabled"
    """vLLM's Rust front end is switched off: the plugin lives in the Python API server."""
    SETPOINT_EXPIRED = "SetpointExpired"
    """No setpoint came in time. Start values hold until the next one."""
    SETPOINT_NOT_SHARED = "SetpointNotShared"
    """The other API servers of this pod could not be told of a setpoint."""
    SETPOINT_REFUSED = "SetpointRefused"
    """A setpoint was refused, with the reason in the message. Bad tokens are logged at DEBUG only."""
    START_VALUES_NOT_RESTORED = "StartValuesNotRestored"
    """The start values could not be restored, by the error in the message."""
    STATE_FILE_UNREADABLE = "StateFileUnreadable"
    """What an engine core publishes cannot be read; the message says why."""
    WARM_UP_ENDED = "WarmUpEnded"
    """The warm-up is over, and clients are let in; the message has its seconds."""
    WARM_UP_FAILED = "WarmUpFailed"
    """The first request failed for too long. Clients are let in all the same."""
    WARM_UP_SKIPPED = "WarmUpSkipped"
    """The engine takes no completion, so it is not warmed up."""
    WATCHDOG_TRIPPED = "WatchdogTripped"
    """A request or the queue stood still. Start values hold until a newer setpoint."""


class EventLog:
    """A logger whose lines each name an event; otherwise as `logging.Logger`."""

    def __init__(self, name: str) -> None:
        """`name`: of the module that logs.

        The logger is a child of vLLM's: it writes where vLLM does, though vLLM says where after it loads plugins, and a
        configuration of the user's own (`VLLM_LOGGING_CONFIG_PATH`) does not disable it.
        """
        self._logger = logging.getLogger(f"vllm.{name}")

    def debug(self, event: EngineLogEvent, message: str, *values: object, exc_info: bool = False) -> None:
        """What nobody need act on, and may come with each request."""
        self._write(logging.DEBUG, event, message, values, exc_info)

    def info(self, event: EngineLogEvent, message: str, *values: object) -> None:
        """What goes as intended."""
        self._write(logging.INFO, event, message, values)

    def warning(self, event: EngineLogEvent, message: str, *values: object, exc_info: bool = False) -> None:
        """What works less well now."""
        self._write(logging.WARNING, event, message, values, exc_info)

    def error(self, event: EngineLogEvent, message: str, *values: object) -> None:
        """What has failed."""
        self._write(logging.ERROR, event, message, values)

    def exception(self, event: EngineLogEvent, message: str, *values: object) -> None:
        """What has failed by the exception that is handled, with its traceback."""
        self._write(logging.ERROR, event, message, values, exc_info=True)

    def _write(
        self, level: int, event: EngineLogEvent, message: str, values: tuple[object, ...], exc_info: bool = False
    ) -> None:
        self._logger.log(
            level,
            f"Flyball {event.value}: {message}",
            *values,
            exc_info=exc_info,
            extra={"event": event.value},
            stacklevel=3,
        )
