//! Agreement with the interpreter of the crate `cel`.
