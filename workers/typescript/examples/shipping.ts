/**
 * Serves `shipping-create` of sagas/order.yaml: calls the shop as effects/shipping-create.yaml does.
 *
 *     NATS_URL=nats://127.0.0.1:4222 GROUP=shop SHOP_URL=http://127.0.0.1:8090 node dist/examples/shipping.js
 */

import { Failed, Retry, Worker, type Command, type Json } from "../src/index.js";

const shop = process.env["SHOP_URL"] ?? "http://127.0.0.1:8090";
const worker = new Worker({
  servers: process.env["NATS_URL"] ?? "nats://127.0.0.1:4222",
  group: process.env["GROUP"] ?? "shop",
  ackWait: Number(process.env["ACK_WAIT"] ?? 30) * 1_000,
});

async function ship(command: Command): Promise<Json> {
  let answer: Response;
  let body: Json;
  try {
    answer = await fetch(`${shop}/shipping/shipments`, {
      method: "POST",
      headers: {
        "content-type": "application/json",
        "idempotency-key": command.idempotencyKey,
        "x-tenant-id": command.tenant,
        ...(command.traceparent !== undefined && { traceparent: command.traceparent }),
      },
      body: JSON.stringify(command.input),
      signal: command.signal,
    });
    body = await answer.json().catch(() => ({}));
  } catch (error) {
    const refused = (error as { cause?: { code?: string } }).cause?.code === "ECONNREFUSED";
    // Sent, maybe; the idempotency key makes it safe to ask again.
    throw new Retry(String(error), refused ? {} : { errorClass: "ambiguous", unknown: true });
  }
  if (answer.status === 200 || answer.status === 409) return { parcel_id: body.id };
  if (answer.status === 422) throw new Failed("undeliverable", String(body.error ?? ""));
  const said = `the shop answers ${answer.status}`;
  if (answer.status === 429 || answer.status === 503) throw new Retry(said);
  if (answer.status >= 500) throw new Retry(said, { unknown: true });
  throw new Failed("permanent", said);
}

await worker.effect("shipping-create", ship, { concurrency: 16, timeout: 10_000 }).run();
