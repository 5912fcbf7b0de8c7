//! The `retrysafe` binary: arguments and exit codes. Everything else is the library's.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(retrysafe::cli::main())
}
