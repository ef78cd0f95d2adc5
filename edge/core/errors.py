"""The error tree: what went wrong and what to do next; rpc/errors.py translates to gRPC codes.

EdgeError                       one line for a person, `hint` is what to do next; exit code 1
├── UsageError                  wrong command line or argument; exit code 2
│   └── Unsupported             a demand that cannot be met as things are set up; names the parameter
│       └── CloudOff            the cloud was demanded and may not be asked; exit code 1
├── UnfitAnswer                 a cloud LLM's answer without the form that was demanded of it
├── ContextOverflow             a prompt that leaves no room in the context for a response
├── ConfigError                 bad configuration; carries file and line
├── ModelFileError              missing, corrupt or unsupported model file
│   └── NotComputed             a sound file with something that the decoders here do not compute; llama.cpp may serve it
├── AdapterError                an adapter that cannot be loaded or does not fit
├── NotFinite                   scores or weights that are no finite numbers: an adapter diverged, or a file is damaged
├── Collapsed                   learning destroys what was learned again and again, with ever smaller steps
├── TaskFileError               a task file with a bad line
├── StateError                  state folder locked, damaged or from another version
├── TooFewAnswers               a question about the past that too few answers exist for
└── CoordinatorError            a coordinator's refusal or failure; `retry_after_s` where known
    ├── BudgetExhausted         which budget is gone (answer locally)
    ├── RateLimited             too many requests now
    ├── CoordinatorUnavailable  unreachable, overloaded, draining, breaker open, ledger unwritable, upstream failed
    ├── OutcomeUnknown          cut after dispatch; may be charged; only a new key may retry
    ├── KeyReused               same call key, other content
    ├── CallInProgress          same call key is running elsewhere
    ├── CallCancelled           somebody with this device's credential stopped waiting for the call
    ├── StepMismatch            stale or gapped step; carries the expected one
    ├── Unpriced                no price for the model
    ├── InvalidRequest          malformed request
    ├── NotFound                unknown call, task or device
    ├── NotImplementedThere     the other side does not know this request, or not yet
    ├── Unauthenticated         bad credential
    ├── Withheld                kept on the device: a never-send rule, the leak test, or no room to write down what leaves
    └── PermissionDenied        other device's or task's data, or a device that was disabled
"""

from __future__ import annotations


class EdgeError(Exception):
    """A failure a person can act on. `str(error)` is one line; `hint` is what to do next, or ""."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def with_hint(self) -> str:
        """What went wrong and what to do next, in one line."""
        return f"{self}; {self.hint}" if self.hint else str(self)


class UsageError(EdgeError):
    """Wrong use of a command or an argument out of range."""

    exit_code = 2


class Unsupported(UsageError):
    """A demand that cannot be met as things are set up; `parameter` names it."""

    def __init__(self, message: str, *, parameter: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.parameter = parameter


class CloudOff(Unsupported):
    """The cloud was demanded where it may not be asked. The command was right: its failure is no wrong usage."""

    exit_code = 1

    def __init__(self, why: str) -> None:
        super().__init__(f"mode cloud-only is not possible: {why}", parameter="model", hint="ask without demanding the cloud")


class UnfitAnswer(EdgeError):
    """The cloud LLM's answer has not the form that was demanded of it."""


class ContextOverflow(EdgeError):
    """A prompt that leaves no room in the model's context for a response."""


class ConfigError(EdgeError):
    """A configuration that cannot be used; the message starts with FILE:LINE where there is one."""


class ModelFileError(EdgeError):
    """A model file that is missing, corrupt, truncated or of an unsupported architecture."""


class NotComputed(ModelFileError):
    """A model file that asks for something that learning, ONNX and MLX do not compute. llama.cpp may serve it."""


class AdapterError(EdgeError):
    """An adapter that cannot be loaded or does not fit the base model; the one in use stays."""


class NotFinite(EdgeError):
    """Scores or weights that are not finite numbers: an adapter that diverged, or a damaged file."""


class Collapsed(EdgeError):
    """Learning destroyed what was learned, several times in a row and with ever smaller steps; it has gone back each time."""


class TaskFileError(EdgeError):
    """A task file with a bad line; the message starts with FILE:LINE."""


class StateError(EdgeError):
    """A state folder that is locked by another process, damaged, or from another version."""


class TooFewAnswers(EdgeError):
    """Too few recorded answers for what is asked."""


class CoordinatorError(EdgeError):
    """A refusal or failure of the coordinator. `reason` is the wire's ErrorInfo reason."""

    reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        reason: str | None = None,
        retry_after_s: float | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        if reason is not None:
            self.reason = reason
        self.retry_after_s = retry_after_s
        self.metadata = dict(metadata or {})


class BudgetExhausted(CoordinatorError):
    """A budget or the step's call credit is gone; `metadata["budget"]` names which one."""

    reason = "BUDGET_EXHAUSTED"


class RateLimited(CoordinatorError):
    """Too many requests now; retry after `retry_after_s`."""

    reason = "RATE_LIMITED"


class CoordinatorUnavailable(CoordinatorError):
    """Unreachable, OVERLOADED, DRAINING, UPSTREAM_OPEN, UPSTREAM_FAILED or LEDGER_UNAVAILABLE; retry with the same key."""

    reason = "UNREACHABLE"


class OutcomeUnknown(CoordinatorError):
    """The call was cut after dispatch; it may be charged. Retry only with a new key."""

    reason = "OUTCOME_UNKNOWN"


class KeyReused(CoordinatorError):
    """The same call key came with other content."""

    reason = "KEY_REUSED"


class CallInProgress(CoordinatorError):
    """The same call key is running; ask with GetCall."""

    reason = "IN_PROGRESS"


class CallCancelled(CoordinatorError):
    """The call was cancelled by its device while this caller waited; GetCall returns what became of it."""

    reason = "CALL_CANCELLED"


class StepMismatch(CoordinatorError):
    """A stale or gapped step; `expected_step` is the one the coordinator waits for."""

    reason = "STEP_MISMATCH"

    @property
    def expected_step(self) -> int:
        """The step the coordinator expects next (metadata `expected_step`), or -1 when unknown."""
        return int(self.metadata.get("expected_step", "-1"))


class Unpriced(CoordinatorError):
    """The model has no price, so it cannot be called."""

    reason = "UNPRICED"


class InvalidRequest(CoordinatorError):
    """A malformed request."""

    reason = "INVALID_REQUEST"


class NotFound(CoordinatorError):
    """An unknown call, task or device."""

    reason = "NOT_FOUND"


class NotImplementedThere(CoordinatorError):
    """The other side does not know this request, or not yet."""

    reason = "UNIMPLEMENTED"


class Unauthenticated(CoordinatorError):
    """A bad or missing credential."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(CoordinatorError):
    """Another device's or task's data; DEVICE_DISABLED: the operator has shut the device out."""

    reason = "PERMISSION_DENIED"


def is_refused_alone(error: EdgeError) -> bool:
    """Whether a coordinator refuses this request and takes others of this device, as of a task that the device may not work on.

    What is about the device as a whole (its credential, DEVICE_DISABLED) is no such refusal.
    """
    return isinstance(error, InvalidRequest | NotFound) or (
        isinstance(error, PermissionDenied) and error.reason == PermissionDenied.reason
    )


class Withheld(CoordinatorError):
    """This device itself kept the request back; nothing was sent. The message never quotes what it was kept back for."""

    reason = "WITHHELD"
