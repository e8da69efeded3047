"""Serves `payments-charge` of sagas/order.yaml: calls the shop as effects/payments-charge.yaml does.

    NATS_URL=nats://127.0.0.1:4222 GROUP=shop SHOP_URL=http://127.0.0.1:8090 python3 examples/payments.py
"""

import asyncio
import json
import logging
import os
import urllib.error
import urllib.request

from saga_runner_worker import Command, Failed, Json, Retry, Worker

SHOP = os.environ["SHOP_URL"]
worker = Worker(
    os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
    group=os.environ["GROUP"],
    ack_wait=float(os.environ.get("ACK_WAIT", "30")),
)


def post(path: str, command: Command) -> tuple[int, Json]:
    headers = {
        "content-type": "application/json",
        "idempotency-key": command.idempotency_key,
        "x-tenant-id": command.tenant,
    }
    if command.traceparent:
        headers["traceparent"] = command.traceparent
    request = urllib.request.Request(SHOP + path, json.dumps(command.input).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=8) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


@worker.effect("payments-charge", concurrency=16, timeout=10)
async def charge(command: Command) -> Json:
    try:
        status, body = await asyncio.to_thread(post, "/payments/charges", command)
    except OSError as error:
        if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
            raise Retry(message=str(error)) from error
        # Sent, maybe; the idempotency key makes it safe to ask again.
        raise Retry(error_class="ambiguous", message=str(error), unknown=True) from error
    if status in (200, 409):
        return {"charge_id": body["id"]}
    if status == 402:
        raise Failed("declined", str(body.get("error", "")))
    if status in (429, 503):
        raise Retry(message=f"the shop answers {status}")
    if status >= 500:
        raise Retry(message=f"the shop answers {status}", unknown=True)
    raise Failed("permanent", f"the shop answers {status}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run()
