//! Error classes that the runner itself gives, and definitions answer.

/// Of a step or compensation whose outcome is unknown.
pub const TIMEOUT_CLASS: &str = "timeout";
/// Of a result that is not what the effect's `output` describes.
pub const RESULT_SCHEMA: &str = "result.schema";
/// Of a result on which an expression fails.
pub const RESULT_EXPRESSION: &str = "result.expression";
