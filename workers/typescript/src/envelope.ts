/** The messages: docs/envelopes.md and docs/schemas. */

/** JSON as `JSON.parse` gives it: whole numbers beyond 2^53 lose digits. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Json = any;

/** Longest message of a failure, in characters. */
const MESSAGE_MAX = 1_024;
const NAME = /^[a-z0-9][a-z0-9_-]{0,62}$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

export type ResultType = "Succeeded" | "Failed" | "TimedOut";

/** What workers leave for each other about a command that goes back to the queue. */
export interface Progress {
  calls: number;
  unsettled: boolean;
  delivered: number;
  not_before_ms: number;
  worker: string;
  error?: { class: string; message?: string };
}

/** What the subject of a command says; the body is held against it. */
export interface Address {
  tenant: string;
  effect: string;
  commandId: string;
}

/** What a handler is given. */
export interface Command {
  tenant: string;
  effect: string;
  commandId: string;
  /** What the step's `with` rendered. */
  input: Json;
  /** The same for all attempts of this piece of work: pass it on to the upstream. */
  idempotencyKey: string;
  /** Milliseconds since 1970. */
  deadlineMs: number;
  saga: string;
  key: string;
  correlationId: string;
  /** W3C trace context, if the command carries one. */
  traceparent?: string;
  /** Aborted when the time of the attempt is over. */
  signal: AbortSignal;
}

export const isName = (text: string): boolean => NAME.test(text);

export function addressOf(subject: string, multiTenant: boolean): Address | undefined {
  let tokens = subject.split(".");
  let tenant = "";
  if (multiTenant) {
    if (tokens[0] !== "tenant" || !NAME.test(tokens[1] ?? "")) return undefined;
    tenant = tokens[1] ?? "";
    tokens = tokens.slice(2);
  }
  const [kind, effect, commandId] = tokens;
  if (tokens.length !== 3 || kind !== "effect" || !NAME.test(effect ?? "") || !UUID.test(commandId ?? "")) {
    return undefined;
  }
  return { tenant, effect: effect ?? "", commandId: commandId ?? "" };
}

export function subjectOf(address: Address, kind: string): string {
  const prefix = address.tenant === "" ? "" : `tenant.${address.tenant}.`;
  return `${prefix}${kind}.${address.effect}.${address.commandId}`;
}

/** Throws an error with a sentence for people. */
export function readCommand(
  body: string,
  address: Address,
  signal: AbortSignal,
): { command: Command; progress: Partial<Progress> } {
  const value: Json = JSON.parse(body);
  const metadata: Json = value?.metadata;
  const text = (name: string): string => {
    if (typeof metadata?.[name] !== "string") throw new Error(`metadata.${name} is not text`);
    return metadata[name];
  };
  if (!Number.isInteger(metadata?.deadline_ms)) throw new Error("metadata.deadline_ms is not a whole number");
  if (value.payload === undefined) throw new Error("there is no payload");
  if (value.tenant_id !== address.tenant || value.effect_name !== address.effect || value.command_id !== address.commandId) {
    throw new Error("tenant, effect or id of the command is not that of its subject");
  }
  const trace: Json = metadata.traceparent;
  const command: Command = {
    ...address,
    input: value.payload,
    idempotencyKey: text("idempotency_key"),
    deadlineMs: metadata.deadline_ms,
    saga: text("saga"),
    key: text("key"),
    correlationId: text("correlation_id"),
    ...(typeof trace === "string" && TRACEPARENT.test(trace) ? { traceparent: trace } : {}),
    signal,
  };
  return { command, progress: value.progress ?? {} };
}

export const errorPayload = (errorClass: string, message: string): { class: string; message: string } => ({
  class: errorClass,
  message: message.slice(0, MESSAGE_MAX),
});

export function result(
  address: Address,
  command: Command | undefined,
  resultType: ResultType,
  payload: Json,
  calls: number,
): string {
  return JSON.stringify({
    tenant_id: address.tenant,
    command_id: address.commandId,
    effect_name: address.effect,
    result_type: resultType,
    payload,
    timestamp: new Date().toISOString(),
    metadata: {
      ...(command && { saga: command.saga, key: command.key, correlation_id: command.correlationId }),
      ...(command?.traceparent !== undefined && { traceparent: command.traceparent }),
      ...(calls > 0 && { calls }),
    },
  });
}
