/** The messages: docs/envelopes.md and docs/schemas. */

/** JSON as `JSON.parse` gives it: whole numbers beyond 2^53 lose digits. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Json = any;

/** What the runner reads by default (`limits.payload_bytes`, `limits.json_depth`). */
const RESULT_BYTES_MAX = 1_048_576;
const DEPTH_MAX = 64;
/** Longest message of a failure, in characters. */
const MESSAGE_MAX = 1_024;
/** The deadline of a command whose cause had waited in a backlog, in place of the one in its body. */
export const DEADLINE_HEADER = "saga-runner-deadline-ms";
const NAME = /^[a-z0-9][a-z0-9_-]{0,62}$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const TRACEPARENT = /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;

export type ResultType = "Succeeded" | "Failed" | "TimedOut";

/** What workers leave for each other about a command that goes back to the queue. */
export interface Progress {
  calls: number;
  outcome_unknown: boolean;
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

/** `laterDeadline` is what the header of that name says. Throws an error with a sentence for people. */
export function readCommand(
  body: string,
  address: Address,
  signal: AbortSignal,
  laterDeadline?: string,
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
    deadlineMs: Math.max(metadata.deadline_ms, /^\d+$/.test(laterDeadline ?? "") ? Number(laterDeadline) : 0),
    saga: text("saga"),
    key: text("key"),
    correlationId: text("correlation_id"),
    ...(typeof trace === "string" && TRACEPARENT.test(trace) ? { traceparent: trace } : {}),
    signal,
  };
  return { command, progress: value.progress ?? {} };
}

/** `refused`: the upstream has refused, so the next attempt needs another idempotency key. */
export const errorPayload = (
  errorClass: string,
  message: string,
  refused = false,
): { class: string; message: string; refused?: true } => ({
  class: errorClass,
  message: message.slice(0, MESSAGE_MAX),
  ...(refused && { refused: true as const }),
});

/** Numbers that JSON cannot hold, and integers that the runner does not read. */
function checkNumber(value: unknown): void {
  if (typeof value !== "number") return;
  if (!Number.isFinite(value)) throw new Error(`${value} is not a number in JSON`);
  // From 1e21 on it is written with an exponent, and read as a double.
  const written = Number.isInteger(value) && Math.abs(value) < 1e21;
  if (written && (value >= 2 ** 63 || value < -(2 ** 63))) {
    throw new Error("an integer is outside 64 signed bits; give it as text");
  }
}

/** Throws where the runner would not read a result. */
function checkDepth(value: Json, depth = 0): void {
  if (typeof value !== "object" || value === null) return;
  if (depth >= DEPTH_MAX) throw new Error(`it is nested deeper than ${DEPTH_MAX} levels`);
  for (const member of Object.values(value)) checkDepth(member as Json, depth + 1);
}

export function result(
  address: Address,
  command: Command | undefined,
  resultType: ResultType,
  payload: Json,
  calls: number,
): string {
  const body = {
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
  };
  const text = JSON.stringify(body, (_, value: unknown) => {
    checkNumber(value);
    return value;
  });
  checkDepth(JSON.parse(text).payload);
  const bytes = Buffer.byteLength(text);
  if (bytes > RESULT_BYTES_MAX) throw new Error(`it has ${bytes} bytes, at most ${RESULT_BYTES_MAX} are allowed`);
  return text;
}
