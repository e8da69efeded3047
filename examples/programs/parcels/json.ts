// JSON as far as a program needs it. Numbers are kept as they are written.

export enum Kind {
  Null,
  Bool,
  Number,
  Text,
  List,
  Map,
}

export class Json {
  kind: Kind = Kind.Null;
  text: string = "";
  keys: string[] = [];
  items: Json[] = [];

  static text(text: string): Json {
    const json = new Json();
    json.kind = Kind.Text;
    json.text = text;
    return json;
  }

  static int(number: i64): Json {
    const json = new Json();
    json.kind = Kind.Number;
    json.text = number.toString();
    return json;
  }

  static bool(answer: bool): Json {
    const json = new Json();
    json.kind = Kind.Bool;
    json.text = answer ? "true" : "false";
    return json;
  }

  static list(): Json {
    const json = new Json();
    json.kind = Kind.List;
    return json;
  }

  static map(): Json {
    const json = new Json();
    json.kind = Kind.Map;
    return json;
  }

  /** The member of this name, or null. */
  get(key: string): Json {
    const at = this.keys.indexOf(key);
    return at < 0 ? new Json() : this.items[at];
  }

  set(key: string, value: Json): Json {
    const at = this.keys.indexOf(key);
    if (at >= 0) {
      this.items[at] = value;
    } else {
      this.keys.push(key);
      this.items.push(value);
    }
    return this;
  }

  push(value: Json): Json {
    this.items.push(value);
    return this;
  }

  asInt(): i64 {
    return I64.parseInt(this.text);
  }

  write(): string {
    if (this.kind == Kind.Null) return "null";
    if (this.kind == Kind.Text) return quoted(this.text);
    if (this.kind == Kind.List) {
      const parts: string[] = [];
      for (let i = 0; i < this.items.length; i++) parts.push(this.items[i].write());
      return "[" + parts.join(",") + "]";
    }
    if (this.kind == Kind.Map) {
      const parts: string[] = [];
      for (let i = 0; i < this.items.length; i++) {
        parts.push(quoted(this.keys[i]) + ":" + this.items[i].write());
      }
      return "{" + parts.join(",") + "}";
    }
    return this.text;
  }
}

function quoted(text: string): string {
  let out = '"';
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code == 0x22 || code == 0x5c) {
      out += "\\" + String.fromCharCode(code);
    } else if (code < 0x20) {
      out += "\\u00" + (code < 0x10 ? "0" : "1") + (code & 15).toString(16);
    } else {
      out += String.fromCharCode(code);
    }
  }
  return out + '"';
}

/** Reads JSON that the runner has checked. */
export function parse(text: string): Json {
  return new Reader(text).value();
}

class Reader {
  at: i32 = 0;

  constructor(public text: string) {}

  /** The next character that is no blank. */
  peek(): i32 {
    while (this.text.charCodeAt(this.at) <= 0x20) this.at++;
    return this.text.charCodeAt(this.at);
  }

  value(): Json {
    const first = this.peek();
    if (first == 0x22) return Json.text(this.string());
    if (first == 0x5b) {
      const list = Json.list();
      this.at++;
      while (this.peek() != 0x5d) {
        list.push(this.value());
        if (this.peek() == 0x2c) this.at++;
      }
      this.at++;
      return list;
    }
    if (first == 0x7b) {
      const map = Json.map();
      this.at++;
      while (this.peek() != 0x7d) {
        const key = this.string();
        this.peek();
        this.at++;
        map.set(key, this.value());
        if (this.peek() == 0x2c) this.at++;
      }
      this.at++;
      return map;
    }
    const begin = this.at;
    while (this.at < this.text.length && isOfWord(this.text.charCodeAt(this.at))) this.at++;
    const word = this.text.substring(begin, this.at);
    if (word == "null") return new Json();
    const json = new Json();
    json.kind = word == "true" || word == "false" ? Kind.Bool : Kind.Number;
    json.text = word;
    return json;
  }

  string(): string {
    this.peek();
    this.at++;
    let out = "";
    while (true) {
      const code = this.text.charCodeAt(this.at++);
      if (code == 0x22) return out;
      if (code != 0x5c) {
        out += String.fromCharCode(code);
        continue;
      }
      const escape = this.text.charCodeAt(this.at++);
      if (escape == 0x75) {
        out += String.fromCharCode(<i32>parseInt(this.text.substr(this.at, 4), 16));
        this.at += 4;
      } else if (escape == 0x6e) out += "\n";
      else if (escape == 0x74) out += "\t";
      else if (escape == 0x72) out += "\r";
      else if (escape == 0x62) out += "\b";
      else if (escape == 0x66) out += "\f";
      else out += String.fromCharCode(escape);
    }
  }
}

function isOfWord(code: i32): bool {
  return (code >= 0x30 && code <= 0x39) || (code >= 0x61 && code <= 0x7a) || code == 0x45 || code == 0x2b || code == 0x2d || code == 0x2e;
}
