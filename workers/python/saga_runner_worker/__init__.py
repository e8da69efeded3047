"""Effect workers for saga-runner, after docs/workers.md."""

from .envelope import Command, Json
from .errors import Failed, Retry, Unknown
from .worker import Handler, Worker

__all__ = ["Command", "Failed", "Handler", "Json", "Retry", "Unknown", "Worker"]
