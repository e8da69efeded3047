//! The binary: parse, then hand over to the command line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How soon freed pages go back to the system, in milliseconds. By itself the allocator keeps them for 1 s, and what is free for
/// reuse by any thread for ten times as long: after a burst of long answers that is most of the memory of the process (ADR 218).
const PURGE_DELAY_MS: std::ffi::c_long = 10;

/// `mi_option_purge_delay` of mimalloc 3, which the binding does not name.
const PURGE_DELAY: std::ffi::c_int = 15;

fn main() -> ExitCode {
    give_memory_back_soon();
    saga_runner::cli::main()
}

/// Sets the delay, unless `MIMALLOC_PURGE_DELAY` has set it.
#[allow(unsafe_code, reason = "options of the allocator have no safe binding")]
fn give_memory_back_soon() {
    // SAFETY: options may not be set by several threads at a time, and there is one. An index that is none is ignored.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const NAME: &str = "MIMALLOC_PURGE_DELAY";

    #[allow(unsafe_code, reason = "options of the allocator have no safe binding")]
    fn purge_delay() -> std::ffi::c_long {
        // SAFETY: as above: each process of this test asks from one thread.
        unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }
    }

    /// The index of the option is right if the variable of its name changes it, which this tests in processes of its own.
    #[test]
    fn freed_memory_goes_back_soon_unless_the_environment_says_otherwise() {
        if let Ok(expected) = std::env::var("PURGE_DELAY_EXPECTED") {
            give_memory_back_soon();
            assert_eq!(purge_delay().to_string(), expected);
            return;
        }
        let name = "tests::freed_memory_goes_back_soon_unless_the_environment_says_otherwise";
        for (set, expected) in [(None, "10"), (Some("77"), "77")] {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command
                .args(["--exact", name])
                .env("PURGE_DELAY_EXPECTED", expected);
            match set {
                Some(value) => command.env(NAME, value),
                None => command.env_remove(NAME),
            };
            let output = command.output().expect("it starts");
            assert!(output.status.success(), "{set:?}: {output:?}");
        }
    }
}
