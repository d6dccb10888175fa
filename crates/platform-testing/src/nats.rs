use std::{
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Where Debian and others put it.
const PROGRAMS: [&str; 3] = ["/usr/sbin/nats-server", "/usr/local/bin/nats-server", "/usr/bin/nats-server"];

/// A NATS server on a port of its own; killed when dropped.
pub struct NatsServer {
    program: &'static str,
    port: u16,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts one; `None` when none is installed, which it says.
    pub fn start() -> Option<Self> {
        let Some(program) = PROGRAMS.into_iter().find(|program| Path::new(program).exists()) else {
            eprintln!("There is no nats-server here (Debian: apt install nats-server): what needs one is not tried.");
            return None;
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let mut server = Self { program, port, child: None };
        server.up();
        Some(server)
    }

    /// Address.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it.
    pub fn down(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal: `STOP`, and it is there but silent; `CONT`.
    pub fn signal(&self, name: &str) {
        let Some(child) = &self.child else { return };
        let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "the signal {name} was not sent");
    }

    /// Starts it again, on the same port.
    pub fn up(&mut self) {
        let mut command = Command::new(self.program);
        command.args(["--addr", "127.0.0.1", "--port", &self.port.to_string()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("nats-server starts");
        self.child = Some(child);
        let patience = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < patience, "nats-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.down();
    }
}
