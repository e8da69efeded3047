"""How a handler says that a call has failed. After any other exception the outcome is unknown."""

from __future__ import annotations


class EffectError(Exception):
    """`error_class` is what `on_error` and `retry` of a saga name: letters, digits, `_` and `.`, a letter first."""

    def __init__(self, error_class: str, message: str = "") -> None:
        super().__init__(f"{error_class}: {message}")
        self.error_class = error_class
        self.message = message


class Failed(EffectError):
    """It definitely did not happen: the upstream refused the call, so none with this idempotency key has happened.

    `settles=False`: this attempt did nothing, and about earlier ones it says nothing.
    """

    def __init__(self, error_class: str, message: str = "", *, settles: bool = True) -> None:
        super().__init__(error_class, message)
        self.settles = settles


class Retry(EffectError):
    """Try again after so many seconds; by itself the package doubles its pause from attempt to attempt.

    `unknown=True`: the attempt may have happened.
    """

    def __init__(
        self,
        after: float | None = None,
        error_class: str = "transient",
        message: str = "",
        *,
        unknown: bool = False,
    ) -> None:
        super().__init__(error_class, message)
        self.after = after
        self.unknown = unknown


class Unknown(EffectError):
    """The outcome is unknown, and it is not to be tried again."""
