"""The messages: docs/envelopes.md and docs/schemas."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

Json = Any

#: Longest message of a failure, in characters.
MESSAGE_MAX = 1_024
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Address:
    """What the subject of a command says; the body is held against it."""

    tenant: str
    effect: str
    command_id: str

    @staticmethod
    def parse(subject: str, multi_tenant: bool) -> Address | None:
        tokens = subject.split(".")
        tenant = ""
        if multi_tenant:
            if len(tokens) < 2 or tokens[0] != "tenant" or not NAME.fullmatch(tokens[1]):
                return None
            tenant, tokens = tokens[1], tokens[2:]
        if len(tokens) != 3 or tokens[0] != "effect":
            return None
        if not NAME.fullmatch(tokens[1]) or not UUID.fullmatch(tokens[2]):
            return None
        return Address(tenant, tokens[1], tokens[2])

    def subject(self, kind: str) -> str:
        prefix = f"tenant.{self.tenant}." if self.tenant else ""
        return f"{prefix}{kind}.{self.effect}.{self.command_id}"


@dataclass(frozen=True)
class Command:
    """What a handler is given."""

    address: Address
    #: What the step's `with` rendered.
    input: Json
    #: The same for all attempts of this piece of work: pass it on to the upstream.
    idempotency_key: str
    #: Seconds since 1970.
    deadline: float
    saga: str
    key: str
    correlation_id: str
    #: W3C trace context, if the command carries one.
    traceparent: str | None
    progress: dict[str, Json] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.address.tenant

    @property
    def command_id(self) -> str:
        return self.address.command_id

    @staticmethod
    def parse(body: bytes, address: Address) -> Command:
        """Raises ValueError with a sentence for people."""
        try:
            value = json.loads(body)
            metadata = value["metadata"]
            named = (value["tenant_id"], value["effect_name"], value["command_id"])
            trace = metadata.get("traceparent")
            command = Command(
                address=address,
                input=value["payload"],
                idempotency_key=text(metadata["idempotency_key"]),
                deadline=int(metadata["deadline_ms"]) / 1000,
                saga=text(metadata["saga"]),
                key=text(metadata["key"]),
                correlation_id=text(metadata["correlation_id"]),
                traceparent=trace if isinstance(trace, str) and TRACEPARENT.fullmatch(trace) else None,
                progress=dict(value.get("progress") or {}),
            )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"command cannot be read: {error!r}") from error
        if named != (address.tenant, address.effect, address.command_id):
            raise ValueError("tenant, effect or id of the command is not that of its subject")
        return command


def text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def error_payload(error_class: str, message: str) -> dict[str, str]:
    return {"class": error_class, "message": message[:MESSAGE_MAX]}


def result(address: Address, command: Command | None, result_type: str, payload: Json, calls: int) -> bytes:
    metadata: dict[str, Json] = {}
    if command is not None:
        metadata = {"saga": command.saga, "key": command.key, "correlation_id": command.correlation_id}
        if command.traceparent:
            metadata["traceparent"] = command.traceparent
    if calls:
        metadata["calls"] = calls
    body = {
        "tenant_id": address.tenant,
        "command_id": address.command_id,
        "effect_name": address.effect,
        "result_type": result_type,
        "payload": payload,
        "timestamp": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        "metadata": metadata,
    }
    return json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
