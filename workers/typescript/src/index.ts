/** Effect workers for saga-runner, after docs/workers.md. */

export type { Command, Json } from "./envelope.js";
export { EffectError, Failed, Retry, Unknown } from "./errors.js";
export { Worker, type EffectOptions, type Handler, type WorkerOptions } from "./worker.js";
