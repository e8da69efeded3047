/** The worker: the order of steps of docs/workers.md, for each effect a number of places that serve one command each. */

import { randomUUID } from "node:crypto";
import {
  AckPolicy,
  DeliverPolicy,
  JetStreamApiError,
  jetstream,
  jetstreamManager,
  type Consumer,
  type JetStreamClient,
  type JetStreamManager,
  type JsMsg,
} from "@nats-io/jetstream";
import { connect, headers, nanos, type NodeConnectionOptions } from "@nats-io/transport-node";

import {
  DEADLINE_HEADER,
  addressOf,
  errorPayload,
  isName,
  readCommand,
  result,
  subjectOf,
  type Address,
  type Command,
  type Json,
  type Progress,
  type ResultType,
} from "./envelope.js";
import { EffectError, Failed, Retry, Unknown } from "./errors.js";

/** Commands that are answered and remembered, so that a repetition needs no look-up. */
const ANSWERED_MAX = 65_536;
/** A first delivery older than this, in milliseconds, is looked up among the results too. */
const RECHECK_AFTER = 60_000;
/** Longest delay of a negative acknowledgement, in milliseconds: what is due later comes back in between. */
const NAK_MAX = 60_000;
/** Lifetime of one request for a command, in milliseconds; a shutdown waits for it. */
const PULL = 2_000;
const FIRST_PAUSE = 200;
const PAUSE_MAX = 30_000;
const MAX_UNACKNOWLEDGED = 4_096;
const WRONG_LAST_SEQUENCE = 10_071;
const TOO_LARGE = 10_054;

export type Handler = (command: Command) => Promise<Json>;

export interface WorkerOptions {
  servers: string | string[];
  /** The manifest's `group`, which is the name of the cluster unless it says otherwise. */
  group: string;
  /** Whether the manifest has `tenants`. Default true. */
  multiTenant?: boolean;
  commandsStream?: string;
  eventsStream?: string;
  /** Milliseconds after which a command goes to another worker. Default 30,000. */
  ackWait?: number;
  /** For the connection: TLS, credentials and so on. */
  connection?: NodeConnectionOptions;
}

export interface EffectOptions {
  /** Commands that are served at the same time. Default 32. */
  concurrency?: number;
  /** Calls in all. Default 5. */
  attempts?: number;
  /** Milliseconds of one call. Default 60,000. */
  timeout?: number;
}

interface Effect extends Required<EffectOptions> {
  name: string;
  handler: Handler;
}

class GiveBack {
  constructor(readonly delay: number) {}
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const say = (text: string, error?: unknown): void => console.error(`saga-runner-worker: ${text}${error === undefined ? "" : `: ${String(error)}`}`);

/** Serves effects whose files say `external: {}`. */
export class Worker {
  private readonly effects: Effect[] = [];
  private readonly answered = new Set<string>();
  private readonly name = randomUUID();
  private readonly commands: string;
  private readonly events: string;
  private readonly multiTenant: boolean;
  private ackWait: number;
  private stopping = false;
  private js!: JetStreamClient;
  private jsm!: JetStreamManager;

  constructor(private readonly options: WorkerOptions) {
    this.commands = options.commandsStream ?? "WORKFLOW_COMMANDS";
    this.events = options.eventsStream ?? "WORKFLOW_EVENTS";
    this.multiTenant = options.multiTenant ?? true;
    this.ackWait = options.ackWait ?? 30_000;
  }

  /** Registers the handler of an effect. */
  effect(name: string, handler: Handler, options: EffectOptions = {}): this {
    if (!isName(name) || this.effects.some((effect) => effect.name === name)) {
      throw new Error(`"${name}" is not a name of an effect, or has a handler already`);
    }
    this.effects.push({ name, handler, concurrency: 32, attempts: 5, timeout: 60_000, ...options });
    return this;
  }

  /** Takes no new commands; `serve` ends when those in hand are answered. */
  stop(): void {
    this.stopping = true;
  }

  /** Serves until SIGTERM or SIGINT, then finishes what is in hand. */
  async run(): Promise<void> {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.once(name, () => this.stop());
    await this.serve();
  }

  async serve(): Promise<void> {
    const connection = await connect({
      waitOnFirstConnect: true,
      ...this.options.connection,
      servers: this.options.servers,
      maxReconnectAttempts: -1,
    });
    try {
      this.js = jetstream(connection);
      this.jsm = await jetstreamManager(connection, { checkAPI: false });
      const places = this.effects.flatMap((effect) => Array.from({ length: effect.concurrency }, () => this.place(effect)));
      await Promise.all(places);
    } finally {
      // Sends what is still to be sent, the last acknowledgements above all.
      await connection.drain();
    }
  }

  /** Takes one command after the other. */
  private async place(effect: Effect): Promise<void> {
    let pause = FIRST_PAUSE;
    while (!this.stopping) {
      try {
        const queue = await this.join(effect);
        while (!this.stopping) {
          const message = await queue.next({ expires: PULL });
          pause = FIRST_PAUSE;
          if (message) await this.serveOne(effect, message);
        }
      } catch (error) {
        // The connection, the stream or the consumer is gone for now.
        say(`effect ${effect.name}: the queue is lost, joining again`, error);
        for (const end = Date.now() + pause; !this.stopping && Date.now() < end; ) await sleep(100);
        pause = Math.min(pause * 2, PAUSE_MAX);
      }
    }
  }

  /** Creates the shared consumer, or takes the one that is there. */
  private async join(effect: Effect): Promise<Consumer> {
    const durable = `effect-${this.options.group}-${effect.name}`;
    const filter = `${this.multiTenant ? "tenant.*." : ""}effect.${effect.name}.>`;
    const wanted = {
      durable_name: durable,
      filter_subject: filter,
      deliver_policy: DeliverPolicy.All,
      ack_policy: AckPolicy.Explicit,
      ack_wait: nanos(this.ackWait),
      max_deliver: -1,
      max_ack_pending: MAX_UNACKNOWLEDGED,
      metadata: { saga_runner_group: this.options.group },
    };
    let info;
    try {
      info = await this.jsm.consumers.info(this.commands, durable);
    } catch (error) {
      if (!(error instanceof JetStreamApiError) || error.code !== 10_014) throw error;
      // Two that are alike do no harm to each other.
      info = await this.jsm.consumers.add(this.commands, wanted);
    }
    const found = info.config;
    if (found.filter_subject !== filter || found.ack_policy !== AckPolicy.Explicit || (found.max_deliver ?? -1) > 0) {
      throw new Error(`consumer ${durable} is another's: ${JSON.stringify(found)}`);
    }
    this.ackWait = Math.min((found.ack_wait ?? Infinity) / 1e6, this.ackWait);
    return this.js.consumers.get(this.commands, durable);
  }

  /** One delivery, from gate to acknowledgement. */
  private async serveOne(effect: Effect, message: JsMsg): Promise<void> {
    const beat = setInterval(() => message.working(), this.ackWait / 3);
    try {
      if (await this.process(effect, message)) message.ack();
      else message.term();
    } catch (error) {
      if (error instanceof GiveBack) message.nak(Math.min(Math.max(Math.ceil(error.delay), 1), NAK_MAX));
      // Unanswered for, it comes again after the ack wait.
      else say(`a command of ${effect.name} was not answered for`, error);
    } finally {
      clearInterval(beat);
    }
  }

  /** False: the command can never be read. */
  private async process(effect: Effect, message: JsMsg): Promise<boolean> {
    const address = addressOf(message.subject, this.multiTenant);
    if (address?.effect !== effect.name) {
      say(`${JSON.stringify(message.subject)} is not the subject of a command of ${effect.name}; dropped`);
      return false;
    }
    const delivered = message.info.deliveryCount;
    if (await this.isAnswered(address, delivered, message.info.timestampNanos)) return true;
    const abort = new AbortController();
    let read;
    try {
      read = readCommand(message.string(), address, abort.signal, message.headers?.get(DEADLINE_HEADER));
    } catch (error) {
      say(`command ${address.commandId} cannot be executed`, error);
      const payload = errorPayload("command.invalid", String(error));
      await this.recordAny(address, [result(address, undefined, "Failed", payload, 0)], undefined);
      return false;
    }
    const { command } = read;
    const [resultType, payload, calls] = await this.next(effect, command, read.progress, delivered, abort);
    let body: string;
    try {
      body = result(address, command, resultType, payload, calls);
    } catch (error) {
      say(`the result of command ${address.commandId} cannot be recorded`, error);
      const refused = errorPayload("result.refused", `the handler's result cannot be recorded: ${String(error)}`);
      body = result(address, command, "TimedOut", refused, calls);
    }
    const refused = errorPayload("result.refused", `the broker refuses a result of ${body.length} characters`);
    const kind = resultType === "Failed" ? "Failed" : "TimedOut";
    await this.recordAny(address, [body, result(address, command, kind, refused, calls)], command.traceparent);
    this.mark(address);
    return true;
  }

  private async isAnswered(address: Address, delivered: number, storedNs: number): Promise<boolean> {
    if (this.answered.has(subjectOf(address, ""))) return true;
    if (delivered <= 1 && Date.now() - storedNs / 1e6 < RECHECK_AFTER) return false;
    const answered = (await this.last(this.events, subjectOf(address, "effect_result"))) !== undefined;
    if (answered) this.mark(address);
    return answered;
  }

  private mark(address: Address): void {
    this.answered.add(subjectOf(address, ""));
    const [oldest] = this.answered;
    if (this.answered.size > ANSWERED_MAX && oldest !== undefined) this.answered.delete(oldest);
  }

  private async last(stream: string, subject: string): Promise<string | undefined> {
    try {
      const found = await this.jsm.streams.getMessage(stream, { last_by_subj: subject });
      return found?.string();
    } catch (error) {
      say(`${subject} cannot be looked up`, error);
      throw new GiveBack(1_000);
    }
  }

  /** Makes the next attempt, if it is due. The type of the result, its payload, and the calls so far. */
  private async next(
    effect: Effect,
    command: Command,
    initial: Partial<Progress>,
    delivered: number,
    abort: AbortController,
  ): Promise<[ResultType, Json, number]> {
    const none = { calls: 0, outcome_unknown: false, delivered: 0, not_before_ms: 0, worker: "" };
    const progress: Progress = { ...none, ...initial };
    if (delivered > 1) {
      const stored = await this.last(this.commands, subjectOf(command, "effect_progress"));
      Object.assign(progress, stored ? JSON.parse(stored) : {});
      // A delivery that ended without a word may have made a call.
      if (progress.delivered + 1 !== delivered) progress.outcome_unknown = true;
    }
    const left = command.deadlineMs - Date.now();
    if (left <= 0) {
      const last = progress.error ? `; the last call: ${progress.error.class}: ${progress.error.message ?? ""}` : "";
      return ["TimedOut", errorPayload("deadline", `the deadline passed${last}`), progress.calls];
    }
    const early = progress.not_before_ms - Date.now();
    if (early > 0) await this.giveBack(command, progress, delivered, early);
    progress.calls += 1;
    let failure: EffectError;
    try {
      const payload: Json = await this.attempt(effect, command, Math.min(left, effect.timeout), abort);
      return ["Succeeded", payload ?? {}, progress.calls];
    } catch (error) {
      failure =
        error instanceof EffectError ? error : new Retry(String(error), { errorClass: "ambiguous", unknown: true });
      if (failure !== error) say(`the handler of ${effect.name} failed`, error);
    }
    if (failure instanceof Retry) {
      progress.outcome_unknown ||= failure.unknown;
      const pause = failure.after ?? Math.min(FIRST_PAUSE * 2 ** (progress.calls - 1), PAUSE_MAX);
      const due = Date.now() + pause;
      if (progress.calls < effect.attempts && due < command.deadlineMs) {
        progress.not_before_ms = Math.floor(due);
        progress.error = errorPayload(failure.errorClass, failure.message);
        await this.giveBack(command, progress, delivered, pause);
      }
    }
    const settled = failure instanceof Failed && failure.settles;
    const outcome_unknown = failure instanceof Unknown || (progress.outcome_unknown && !settled);
    const payload = errorPayload(failure.errorClass, failure.message, settled);
    return [outcome_unknown ? "TimedOut" : "Failed", payload, progress.calls];
  }

  private async attempt(effect: Effect, command: Command, limit: number, abort: AbortController): Promise<Json> {
    let timer: NodeJS.Timeout | undefined;
    const over = new Promise<never>((_, reject) => {
      const late = new Retry("the handler did not end in time", { errorClass: "timeout", unknown: true });
      timer = setTimeout(() => {
        reject(late);
        abort.abort(late);
      }, limit);
    });
    try {
      return await Promise.race([effect.handler(command), over]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Leaves word for whoever gets the command next, and ends this delivery. */
  private async giveBack(command: Command, progress: Progress, delivered: number, delay: number): Promise<never> {
    const note = JSON.stringify({ ...progress, delivered, worker: this.name });
    try {
      await this.js.publish(subjectOf(command, "effect_progress"), note);
    } catch (error) {
      // Without a word the next one assumes the worst, which is safe.
      say(`no word was left about ${command.commandId}`, error);
    }
    throw new GiveBack(Math.min(delay, command.deadlineMs - Date.now()));
  }

  /**
   * Publishes the first of these that the broker takes. As long as it takes none, the command is neither called again nor
   * acknowledged: its result is all that tells that it was called.
   */
  private async recordAny(address: Address, bodies: string[], traceparent: string | undefined): Promise<void> {
    for (let pause = 1_000; ; pause = Math.min(pause * 2, 30_000)) {
      for (const body of bodies) {
        if (await this.record(address, body, traceparent)) return;
      }
      say(`the broker refuses every result of ${address.commandId}; trying again`, undefined);
      await sleep(pause);
    }
  }

  /** Publishes until a result stands, whoever wrote it. False: the broker will never take this one. */
  private async record(address: Address, body: string, traceparent: string | undefined): Promise<boolean> {
    const subject = subjectOf(address, "effect_result");
    const head = headers();
    head.set("Nats-Expected-Last-Subject-Sequence", "0");
    if (traceparent !== undefined) head.set("traceparent", traceparent);
    for (let pause = 20; ; pause = Math.min(pause * 2, 5_000)) {
      try {
        await this.js.publish(subject, body, { headers: head });
        return true;
      } catch (error) {
        if (error instanceof JetStreamApiError && error.code === WRONG_LAST_SEQUENCE) return true;
        if (error instanceof JetStreamApiError && error.code === TOO_LARGE) return false;
        if (error instanceof Error && /max_payload|payload max_payload/i.test(error.message)) return false;
        // It may be stored; the same message again finds out.
        say(`the result of ${address.commandId} waits`, error);
      }
      await sleep(pause);
    }
  }
}
