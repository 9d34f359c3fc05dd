use std::process::ExitCode;

fn main() -> ExitCode {
    gpurec::main()
}
