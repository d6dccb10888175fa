//! The platform, built beside the tests that run it.

fn main() -> std::process::ExitCode {
    platform_gateway::commands::main()
}
