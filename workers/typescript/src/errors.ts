/** How a handler says that a call has failed. After anything else that is thrown the outcome is unknown. */
export class EffectError extends Error {
  /** `errorClass` is what `on_error` and `retry` of a saga name: letters, digits, `_` and `.`, a letter first. */
  constructor(readonly errorClass: string, message = "") {
    super(message);
    this.name = new.target.name;
  }
}

/** It definitely did not happen: the upstream refused the call, so none with this idempotency key has happened. */
export class Failed extends EffectError {
  /** `settles: false`: this attempt did nothing, and about earlier ones it says nothing. */
  readonly settles: boolean;

  constructor(errorClass: string, message = "", options: { settles?: boolean } = {}) {
    super(errorClass, message);
    this.settles = options.settles ?? true;
  }
}

/** Try again; by itself the package doubles its pause from attempt to attempt. */
export class Retry extends EffectError {
  /** Milliseconds until the next attempt. */
  readonly after: number | undefined;
  /** Whether this attempt may have happened. */
  readonly unknown: boolean;

  constructor(message = "", options: { after?: number; errorClass?: string; unknown?: boolean } = {}) {
    super(options.errorClass ?? "transient", message);
    this.after = options.after;
    this.unknown = options.unknown ?? false;
  }
}

/** The outcome is unknown, and it is not to be tried again. */
export class Unknown extends EffectError {}
