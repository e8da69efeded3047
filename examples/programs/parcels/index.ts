// Packs the items of an order into as few parcels as it can (first fit, heaviest first), has each parcel shipped,
// and calls all of them back if one cannot be shipped in time. docs/programs.md says what goes in and out.

import { Json, Kind, parse } from "./json";

/** Most grams of a parcel. */
const GRAMS_MAX: i64 = 20_000;
/** How long all parcels may take together. */
const PATIENCE_MS: i64 = 24 * 3_600_000;
/** How often a parcel is called back before people have to, and the first pause between. */
const TRIES_MAX: i64 = 5;
const PAUSE_MS: i64 = 60_000;

export function saga_alloc(bytes: u32): u32 {
  return <u32>heap.alloc(bytes);
}

export function saga_transition(state: u32, stateBytes: u32, input: u32, inputBytes: u32): u64 {
  const decision = new Decision(read(state, stateBytes));
  decision.take(read(input, inputBytes));
  const answer = String.UTF8.encode(decision.answer().write());
  return ((<u64>changetype<usize>(answer)) << 32) | (<u64>answer.byteLength);
}

function read(at: u32, bytes: u32): Json {
  return parse(String.UTF8.decodeUnsafe(at, bytes));
}

class Decision {
  work: Json = Json.list();
  complete: bool = false;
  fail: string = "";

  constructor(public state: Json) {}

  answer(): Json {
    const answer = Json.map().set("state", this.state).set("work", this.work);
    if (this.complete) answer.set("complete", Json.bool(true));
    if (this.fail != "") answer.set("fail", Json.map().set("code", Json.text(this.fail)));
    return answer;
  }

  take(input: Json): void {
    const kind = input.get("kind").text;
    if (kind == "event") this.requested(input.get("event").get("data"));
    else if (kind == "result") this.done(input.get("name").text, input.get("result"));
    else if (kind == "error") this.failed(input.get("name").text, input.get("error"));
    else if (kind == "timer") this.due(input.get("timer").text);
    else if (kind == "cancel") this.callBack();
  }

  requested(order: Json): void {
    const parcels = pack(order.get("items").items);
    if (parcels == null) {
      this.fail = "too_heavy";
      return;
    }
    const map = Json.map();
    for (let i = 0; i < parcels.length; i++) {
      const name = "parcel-" + (i + 1).toString();
      map.set(name, Json.map().set("status", Json.text("asked")).set("parcel", parcels[i]));
      this.ask("parcel-ship", name, Json.map().set("order", order.get("order_id")).set("parcel", parcels[i]));
    }
    this.state.set("parcels", map);
    this.work.push(Json.map().set("timer", Json.text("late")).set("after_ms", Json.int(PATIENCE_MS)));
  }

  done(name: string, result: Json): void {
    if (name.startsWith("back-")) return this.calledBack(name);
    const parcel = this.parcel(name);
    parcel.set("status", Json.text("shipped")).set("tracking", result.get("tracking"));
    // It was given up while this was on its way.
    if (this.state.get("ending").kind == Kind.Bool) return this.callBack();
    const parcels = this.state.get("parcels");
    const trackings = Json.list();
    for (let i = 0; i < parcels.items.length; i++) {
      if (parcels.items[i].get("status").text != "shipped") return;
      trackings.push(parcels.items[i].get("tracking"));
    }
    const payload = Json.map().set("trackings", trackings);
    const fact = Json.map().set("type", Json.text("order.shipped")).set("payload", payload);
    this.work.push(Json.map().set("publish", fact));
    this.complete = true;
  }

  failed(name: string, error: Json): void {
    if (name.startsWith("back-")) return this.notBack(name);
    const unknown = error.get("unknown").text == "true";
    this.parcel(name).set("status", Json.text(unknown ? "unknown" : "refused"));
    this.giveUp(error.get("class").text);
  }

  giveUp(code: string): void {
    this.fail = code;
    this.callBack();
  }

  /** What was shipped, or may have been, is called back. What is still asked for shows later. */
  callBack(): void {
    this.state.set("ending", Json.bool(true));
    const parcels = this.state.get("parcels");
    for (let i = 0; i < parcels.items.length; i++) {
      const status = parcels.items[i].get("status").text;
      if (status == "shipped" || status == "unknown") {
        parcels.items[i].set("status", Json.text("returning"));
        this.again("back-" + parcels.keys[i]);
      }
    }
  }

  due(timer: string): void {
    if (timer == "late") this.giveUp("too_slow");
    else this.again(timer);
  }

  notBack(name: string): void {
    const parcel = this.parcel(name.substring(5));
    const tries = parcel.get("tries").asInt();
    if (tries < TRIES_MAX) {
      const pause = Json.int(PAUSE_MS << tries);
      this.work.push(Json.map().set("timer", Json.text(name)).set("after_ms", pause));
      return;
    }
    parcel.set("status", Json.text("lost"));
    const fact = Json.map().set("type", Json.text("parcel.lost")).set("payload", parcel);
    this.work.push(Json.map().set("publish", fact));
  }

  /** Asked again under the same name it is the same piece of work, whatever became of it before. */
  again(name: string): void {
    const parcel = this.parcel(name.substring(5));
    const tries = parcel.get("tries");
    parcel.set("tries", Json.int(tries.kind == Kind.Null ? 1 : tries.asInt() + 1));
    this.ask("parcel-cancel", name, Json.map().set("parcel", parcel.get("parcel")).set("tracking", parcel.get("tracking")));
  }

  calledBack(name: string): void {
    this.parcel(name.substring(5)).set("status", Json.text("returned"));
  }

  parcel(name: string): Json {
    return this.state.get("parcels").get(name);
  }

  ask(effect: string, name: string, input: Json): void {
    this.work.push(Json.map().set("effect", Json.text(effect)).set("name", Json.text(name)).set("with", input));
  }
}

/** The parcels as lists of article numbers with their weight; null if an item fits into none. */
function pack(items: Json[]): Json[] | null {
  const left = items.slice(0);
  left.sort((a, b) => <i32>(b.get("grams").asInt() - a.get("grams").asInt()));
  const parcels: Json[] = [];
  for (let i = 0; i < left.length; i++) {
    const grams = left[i].get("grams").asInt();
    if (grams > GRAMS_MAX) return null;
    let at = 0;
    while (at < parcels.length && parcels[at].get("grams").asInt() + grams > GRAMS_MAX) at++;
    if (at == parcels.length) parcels.push(Json.map().set("grams", Json.int(0)).set("skus", Json.list()));
    parcels[at].set("grams", Json.int(parcels[at].get("grams").asInt() + grams));
    parcels[at].get("skus").push(left[i].get("sku"));
  }
  return parcels;
}
