//! The reference of the command line is what the program says.

use crate::docs::read;

#[test]
fn the_reference_of_the_command_line_is_printed_by_the_program() {
    let printed = saga_runner::cli::reference::markdown(saga_runner::cli::description());
    let kept = read("docs/cli.md");
    let differs = printed.lines().zip(kept.lines()).find(|(new, old)| new != old);
    assert!(
        printed == kept,
        "`saga-runner man --markdown > docs/cli.md`; the first difference: {differs:?}"
    );
}
