//! The interpreter: `wasmi`, with everything switched off that could differ from one run or machine to another.

use wasmi::{
    CompilationMode, Config, EnforcedLimits, Engine as Interpreter, Error, ExternType, Instance, Memory,
    Module, Store, StoreLimits, StoreLimitsBuilder, TrapCode, TypedFunc, ValType,
};

use super::{ANSWER_BYTES_MAX, FUEL_PER_CALL, Failure, MEMORY_BYTES_MAX, MODULE_BYTES_MAX, ModuleError};

/// Takes memory for bytes that the runner is about to write: `(bytes) -> address`.
const ALLOC: &str = "saga_alloc";
/// Decides: `(state, state bytes, input, input bytes) -> address of the answer << 32 | its bytes`.
const TRANSITION: &str = "saga_transition";
/// Where all addresses lead to.
const MEMORY: &str = "memory";

/// Deepest nesting of calls in a program.
const CALLS_DEEP_MAX: usize = 1_000;
/// Most bytes of locals and operands of all calls that are open at a time.
const STACK_BYTES_MAX: usize = 1024 * 1024;
/// Most entries of a program's table of functions.
const TABLE_ENTRIES_MAX: usize = 10_000;

/// A compiled module with an interpreter of its own, which goes when it goes.
pub struct Engine {
    interpreter: Interpreter,
    module: Module,
}

fn config() -> Config {
    let mut config = Config::default();
    config
        .set_max_recursion_depth(CALLS_DEEP_MAX)
        .set_max_stack_height(STACK_BYTES_MAX)
        .set_max_cached_stacks(1)
        .consume_fuel(true)
        .ignore_custom_sections(true)
        // A mistake shows when the definition is loaded, not when an input comes.
        .compilation_mode(CompilationMode::Eager)
        .enforced_limits(EnforcedLimits::strict())
        .wasm_tail_call(false)
        .wasm_multi_memory(false)
        .wasm_custom_page_sizes(false)
        .wasm_wide_arithmetic(false);
    config
}

impl Engine {
    pub fn compile(bytes: &[u8]) -> Result<Self, ModuleError> {
        // Its text form is taken too by some, and would be parsed by rules that change.
        if !bytes.starts_with(b"\0asm") {
            return Err(ModuleError::NotBinary);
        }
        debug_assert!(bytes.len() <= MODULE_BYTES_MAX, "the caller has looked");
        let interpreter = Interpreter::new(&config());
        let module =
            Module::new(&interpreter, bytes).map_err(|error| ModuleError::Invalid(error.to_string()))?;
        if let Some(import) = module.imports().next() {
            return Err(ModuleError::Import {
                module: import.module().to_owned(),
                name: import.name().to_owned(),
            });
        }
        let engine = Self { interpreter, module };
        engine.check_exports()?;
        // Shows what does not fit into its bounds from the first.
        engine.start().map_err(ModuleError::Start)?;
        Ok(engine)
    }

    fn check_exports(&self) -> Result<(), ModuleError> {
        use ValType::{I32, I64};
        for (name, params, results) in [
            (ALLOC, &[I32][..], &[I32][..]),
            (TRANSITION, &[I32, I32, I32, I32], &[I64]),
        ] {
            let fits = match self.module.get_export(name) {
                Some(ExternType::Func(found)) => found.params() == params && found.results() == results,
                _ => false,
            };
            if !fits {
                let list = |types: &[ValType]| {
                    let names: Vec<&str> = types
                        .iter()
                        .map(|it| if *it == I64 { "i64" } else { "i32" })
                        .collect();
                    names.join(", ")
                };
                let (params, results) = (list(params), list(results));
                return Err(ModuleError::NoFunction(format!("{name}({params}) -> {results}")));
            }
        }
        match self.module.get_export(MEMORY) {
            Some(ExternType::Memory(_)) => Ok(()),
            _ => Err(ModuleError::NoMemory(MEMORY)),
        }
    }

    pub fn call(&self, state: &[u8], input: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut call = self.start()?;
        let state = call.give(state)?;
        let input = call.give(input)?;
        let packed = call
            .transition
            .call(&mut call.store, (state.0, state.1, input.0, input.1))
            .map_err(|error| failure(&error))?;
        call.answer(packed)
    }

    /// A fresh instance, with all of its fuel.
    fn start(&self) -> Result<Call, Failure> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(MEMORY_BYTES_MAX)
            .table_elements(TABLE_ENTRIES_MAX)
            .instances(1)
            .memories(1)
            .build();
        let mut store = Store::new(&self.interpreter, limits);
        store.limiter(|limits| limits);
        store.set_fuel(FUEL_PER_CALL).map_err(|error| failure(&error))?;
        let instance = Instance::new(&mut store, &self.module, &[]).map_err(|error| failure(&error))?;
        let lost = || Failure::Trap("an export is gone".to_owned());
        Ok(Call {
            memory: instance.get_memory(&store, MEMORY).ok_or_else(lost)?,
            alloc: instance
                .get_typed_func(&store, ALLOC)
                .map_err(|error| failure(&error))?,
            transition: instance
                .get_typed_func(&store, TRANSITION)
                .map_err(|error| failure(&error))?,
            store,
        })
    }
}

/// One call under way.
struct Call {
    store: Store<StoreLimits>,
    memory: Memory,
    alloc: TypedFunc<u32, u32>,
    transition: TypedFunc<(u32, u32, u32, u32), u64>,
}

impl Call {
    /// Writes `bytes` where the program wants to have them, and tells where that is.
    fn give(&mut self, bytes: &[u8]) -> Result<(u32, u32), Failure> {
        let length =
            u32::try_from(bytes.len()).map_err(|_| Failure::Trap("more input than memory".to_owned()))?;
        let at = self
            .alloc
            .call(&mut self.store, length)
            .map_err(|error| failure(&error))?;
        let place = usize::try_from(at).unwrap_or(usize::MAX);
        self.memory.write(&mut self.store, place, bytes).map_err(|_| {
            Failure::Trap(format!(
                "{ALLOC}({length}) gave {at}, where there is no room in its memory"
            ))
        })?;
        Ok((at, length))
    }

    fn answer(&self, packed: u64) -> Result<Vec<u8>, Failure> {
        let (at, length) = (packed >> 32, packed & u64::from(u32::MAX));
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let (start, bytes) = (whole(at), whole(length));
        if bytes > ANSWER_BYTES_MAX {
            return Err(Failure::Answer(format!(
                "the answer is {length} bytes long, at most {ANSWER_BYTES_MAX} are allowed"
            )));
        }
        let memory = self.memory.data(&self.store);
        let end = start.saturating_add(bytes);
        let answer = memory.get(start..end).ok_or_else(|| {
            Failure::Answer(format!(
                "the answer would be {length} bytes at {at}, outside of the memory"
            ))
        })?;
        Ok(answer.to_vec())
    }
}

fn failure(error: &Error) -> Failure {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => Failure::Fuel,
        Some(TrapCode::StackOverflow) => Failure::Trap(format!(
            "calls are nested deeper than {CALLS_DEEP_MAX}, or hold more than {STACK_BYTES_MAX} bytes"
        )),
        _ => Failure::Trap(error.to_string()),
    }
}
