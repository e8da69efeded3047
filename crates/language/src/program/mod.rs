//! Programs: WebAssembly modules that decide for a saga, as `(state, input) -> answer` over JSON bytes.
//!
//! A call is computation and nothing else: a fresh instance without imports, bounded in fuel, memory and depth of
//! calls, so the same state and input give the same answer everywhere. What the answer means is [`answer`]'s to
//! read and the transition's to do.

pub mod answer;
#[cfg(feature = "wasm")]
mod engine;
#[cfg(not(feature = "wasm"))]
#[path = "absent.rs"]
mod engine;
#[cfg(all(test, feature = "wasm"))]
pub mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};

/// Largest module, in bytes.
pub const MODULE_BYTES_MAX: usize = 1024 * 1024;
/// What one call may use of the engine's fuel; about one unit for each instruction.
pub const FUEL_PER_CALL: u64 = 20_000_000;
/// Most memory that a program may have, in bytes.
pub const MEMORY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest answer, in bytes.
pub const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Whether this binary can run programs.
pub const IS_BUILT_IN: bool = cfg!(feature = "wasm");

/// A module that is ready to be called.
pub struct Program {
    hash: [u8; 32],
    bytes: Arc<[u8]>,
    engine: engine::Engine,
}

/// Why a call gave no answer. The same call always fails in the same way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the program used up its {FUEL_PER_CALL} units of fuel")]
    Fuel,
    /// The program was stopped, for instance by itself.
    #[error("the program was stopped: {0}")]
    Trap(String),
    /// It ended, and what it gave back is of no use.
    #[error("{0}")]
    Answer(String),
}

/// Why bytes are not a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    #[error("it is {bytes} bytes long, at most {MODULE_BYTES_MAX} are allowed")]
    TooLong { bytes: usize },
    /// The text form is refused, too.
    #[error("it is not a WebAssembly module in its binary form")]
    NotBinary,
    #[error("{0}")]
    Invalid(String),
    #[error("it imports {module}.{name}; a program has its state and its input, and may import nothing")]
    Import { module: String, name: String },
    #[error("it exports no function {0}")]
    NoFunction(String),
    #[error("it exports no memory \"{0}\"")]
    NoMemory(&'static str),
    #[error("it cannot be started: {0}")]
    Start(Failure),
    #[error("this runner is built without the feature \"wasm\"")]
    NoEngine,
}

/// Modules in use, by the hash of their bytes. A memory and no state: what is not found is compiled again.
static COMPILED: Mutex<BTreeMap<[u8; 32], Weak<Program>>> = Mutex::new(BTreeMap::new());

impl Program {
    /// Checks and compiles a module, or finds it among those in use.
    ///
    /// # Errors
    /// [`ModuleError`] where this is not a program.
    pub fn compile(bytes: &Arc<[u8]>) -> Result<Arc<Self>, ModuleError> {
        if bytes.len() > MODULE_BYTES_MAX {
            return Err(ModuleError::TooLong { bytes: bytes.len() });
        }
        let hash: [u8; 32] = Sha256::digest(bytes).into();
        let known = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = known().get(&hash).and_then(Weak::upgrade) {
            return Ok(program);
        }
        let program = Arc::new(Self {
            hash,
            bytes: Arc::clone(bytes),
            engine: engine::Engine::compile(bytes)?,
        });
        let mut known = known();
        // Another thread may have compiled it meanwhile.
        if let Some(program) = known.get(&hash).and_then(Weak::upgrade) {
            return Ok(program);
        }
        known.retain(|_, program| program.strong_count() > 0);
        known.insert(hash, Arc::downgrade(&program));
        Ok(program)
    }

    /// SHA-256 of the module.
    #[must_use]
    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The module.
    #[must_use]
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Asks the program for its answer to `input` in `state`, both as JSON.
    ///
    /// # Errors
    /// [`Failure`] where there is none.
    pub fn call(&self, state: &[u8], input: &[u8]) -> Result<Vec<u8>, Failure> {
        self.engine.call(state, input)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = data_encoding::HEXLOWER.encode(&self.hash);
        f.debug_tuple("Program").field(&hash).finish()
    }
}
