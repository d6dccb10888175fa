//! `platform-gateway`: the platform as one program.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    platform_gateway::commands::main()
}
