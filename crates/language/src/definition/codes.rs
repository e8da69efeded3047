//! The codes of findings about definitions. Each has a page under docs/errors/; a code is never reused.

/// The text is not YAML as definitions use it.
pub const SYNTAX: &str = "SR0101";
/// An effect that no file defines.
pub const UNKNOWN_EFFECT: &str = "SR0102";
/// A file beyond the bounds on size, depth or repetition.
pub const LIMIT: &str = "SR0103";
/// A key that is twice in one map.
pub const DUPLICATE_KEY: &str = "SR0104";
/// A key that means nothing where it stands.
pub const UNKNOWN_KEY: &str = "SR0105";
/// A key that must be there.
pub const MISSING_KEY: &str = "SR0106";
/// A value of another type or form than is expected.
pub const WRONG_TYPE: &str = "SR0107";
/// A value that is not among those allowed.
pub const WRONG_VALUE: &str = "SR0108";
/// `apiVersion` or `kind` do not fit.
pub const HEADER: &str = "SR0109";
/// A name that breaks the rules of names.
pub const NAME: &str = "SR0110";
/// Two definitions of one name.
pub const DUPLICATE_NAME: &str = "SR0111";
/// A text that is not an expression.
pub const EXPRESSION: &str = "SR0112";
/// A name that expressions cannot read in this place.
pub const NOT_READABLE: &str = "SR0113";
/// An event type without a rule that finds its instance.
pub const NO_KEY_RULE: &str = "SR0114";
/// A step that the saga does not have.
pub const UNKNOWN_STEP: &str = "SR0115";
/// Steps that wait for each other.
pub const CYCLE: &str = "SR0116";
/// A state that the machine does not have.
pub const UNKNOWN_STATE: &str = "SR0117";
/// A state that nothing leads to.
pub const UNREACHABLE_STATE: &str = "SR0118";
/// A timer that nothing sets.
pub const UNKNOWN_TIMER: &str = "SR0119";
/// A timer that nothing reacts to.
pub const UNUSED_TIMER: &str = "SR0120";
/// Steps that may run at the same time and set one field.
pub const PARALLEL_SET: &str = "SR0121";
/// A saga without anything to do.
pub const NOTHING_TO_DO: &str = "SR0122";
/// A saga whose instances cannot complete.
pub const NEVER_COMPLETES: &str = "SR0123";
/// A URL whose host or path could be changed by a value.
pub const URL: &str = "SR0124";
/// Keys that exclude each other.
pub const CONTRADICTION: &str = "SR0125";
/// A retry without bound or without pause.
pub const RETRY: &str = "SR0126";
/// An alternative behind one that is always taken.
pub const UNREACHABLE_HANDLER: &str = "SR0127";
/// More steps or states than a saga may have.
pub const TOO_MANY: &str = "SR0128";
/// A result that a compensation reads and may not have.
pub const ABSENT_RESULT: &str = "SR0129";
/// A step that nothing undoes, and after which the instance may fail.
pub const UNCOMPENSATED: &str = "SR0130";
/// An alias that nothing registers.
pub const UNKNOWN_ALIAS: &str = "SR0131";
/// An alias by which no event is matched.
pub const UNUSED_ALIAS: &str = "SR0132";
/// A step that no input can reach.
pub const NEVER_STARTS: &str = "SR0133";
/// A bound that never passes, because a shorter one passes first.
pub const USELESS_BOUND: &str = "SR0134";
/// Something that does not do what it seems to.
pub const SURPRISE: &str = "SR0135";
/// A path that leads to no program.
pub const PROGRAM_FILE: &str = "SR0140";
/// A module that is not a program.
pub const PROGRAM: &str = "SR0141";
/// A program, and a runner that is built without them.
pub const NO_PROGRAMS: &str = "SR0142";
/// A provider that this runner is built without.
pub const NO_PROVIDER: &str = "SR0143";
/// A database that is not fixed, or whose address is none.
pub const DATABASE: &str = "SR0144";
/// A text that is not one statement of SQL.
pub const SQL_TEXT: &str = "SR0145";
/// Placeholders without values, or values without placeholders.
pub const SQL_BIND: &str = "SR0146";
/// A subject or a key that a value could redirect.
pub const SUBJECT: &str = "SR0147";
/// Descriptors of a gRPC service that cannot be used.
pub const DESCRIPTORS: &str = "SR0190";
/// A method that the descriptors do not have, or that is none for an effect.
pub const METHOD: &str = "SR0191";
/// Credentials that a call cannot prove itself with.
pub const CREDENTIALS: &str = "SR0192";
/// A signature that no receiver could check.
pub const SIGNATURE: &str = "SR0193";
/// A step that cannot be waited for from here.
pub const OUT_OF_REACH: &str = "SR0150";
/// A JSON Schema that cannot be used.
pub const SCHEMA: &str = "SR0170";
/// A path that leads to no schema.
pub const SCHEMA_FILE: &str = "SR0171";
/// An event type that is described and that nothing reacts to.
pub const UNUSED_EVENT: &str = "SR0172";
/// A field that the value does not have.
pub const UNKNOWN_FIELD: &str = "SR0173";
/// An operation that does not take such values.
pub const OVERLOAD: &str = "SR0174";
/// A field that may be missing, or a value that may be null, read without a guard.
pub const UNGUARDED: &str = "SR0175";
/// A comparison or a condition whose outcome is certain.
pub const CERTAIN: &str = "SR0176";
/// A condition that is not a boolean.
pub const NOT_BOOL: &str = "SR0177";
/// A value that does not fit its schema.
pub const MISFIT: &str = "SR0178";
/// A wait without an end.
pub const ENDLESS_WAIT: &str = "SR0160";
/// A saga that is not there, or that a step cannot start.
pub const UNKNOWN_SAGA: &str = "SR0151";
/// A fact that the saga does not publish, or a signal that it does not listen to.
pub const UNTOLD: &str = "SR0152";
/// Sagas that hear each other in a circle.
pub const CIRCLE: &str = "SR0153";
/// A fact that does not carry what is said where it is heard.
pub const UNHEARD: &str = "SR0154";
/// A cron expression that is invalid, or that no day fits.
pub const CRON: &str = "SR0180";
/// A time zone that the runner does not know.
pub const ZONE: &str = "SR0181";
/// A file whose expressions are not checked, for want of schemas.
pub const UNTYPED: &str = "SR0179";
