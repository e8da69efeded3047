"""The messages: docs/envelopes.md and docs/schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

Json = Any

#: Longest message of a failure, in characters.
MESSAGE_MAX = 1_024
#: What the runner reads by default (`limits.payload_bytes`, `limits.json_depth`); integers have 64 signed bits.
RESULT_BYTES_MAX = 1_048_576
DEPTH_MAX = 64
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The deadline of a command whose cause had waited in a backlog, in place of the one in its body.
DEADLINE_HEADER = "saga-runner-deadline-ms"
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
    def parse(body: bytes, address: Address, headers: Mapping[str, str] | None = None) -> Command:
        """Raises ValueError with a sentence for people."""
        later = (headers or {}).get(DEADLINE_HEADER, "")
        try:
            value = json.loads(body)
            metadata = value["metadata"]
            named = (value["tenant_id"], value["effect_name"], value["command_id"])
            trace = metadata.get("traceparent")
            command = Command(
                address=address,
                input=value["payload"],
                idempotency_key=text(metadata["idempotency_key"]),
                deadline=max(int(metadata["deadline_ms"]), int(later) if later.isdecimal() else 0) / 1000,
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


def error_payload(error_class: str, message: str, *, refused: bool = False) -> dict[str, Json]:
    """`refused`: the upstream has refused, so the next attempt needs another idempotency key."""
    payload: dict[str, Json] = {"class": error_class, "message": message[:MESSAGE_MAX]}
    return {**payload, "refused": True} if refused else payload


def check_limits(value: Json, depth: int = 0) -> None:
    """Raises ValueError for JSON that the runner does not take."""
    if isinstance(value, bool):
        return
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise ValueError("an integer is outside 64 signed bits; give it as text")
    if isinstance(value, (dict, list, tuple)):
        if depth >= DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
        for member in value.values() if isinstance(value, dict) else value:
            check_limits(member, depth + 1)


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
    encoded = json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    # Whatever the payload was made of, this is what the runner reads.
    check_limits(json.loads(encoded)["payload"])
    if len(encoded) > RESULT_BYTES_MAX:
        raise ValueError(f"it has {len(encoded)} bytes, at most {RESULT_BYTES_MAX} are allowed")
    return encoded
