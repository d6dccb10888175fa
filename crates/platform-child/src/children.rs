//! The parent's side: warm children, one piece of work each.

use std::{
    ffi::OsString,
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use tracing::debug;

use crate::serve::{TOO_LARGE, TOO_LONG};

/// Longest piece of work on the clock, on a machine that has much else to do.
const LONGEST: Duration = Duration::from_secs(20);
/// Largest answer, in bytes.
const MAX_ANSWER: u32 = 64 << 20;
/// Children that wait for work; more are ended when their work is done.
const MAX_IDLE: usize = 4;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It takes more CPU time, or time on the clock, than it may.
    #[error("it takes longer than it may")]
    TooLong,
    /// It takes more memory than it may.
    #[error("it takes more memory than it may")]
    TooLarge,
    /// There was no place for it in time: the work of its account that came before takes long.
    #[error("the work that came before it takes long")]
    Busy,
    /// No child could be started, whatever it was to do.
    #[error("no child process could be started: {0}")]
    NotStarted(io::Error),
    /// It ended for a reason of its own.
    #[error("the child process failed: {0}")]
    Failed(#[from] io::Error),
}

/// Child processes of one program, started when there is work and kept warm.
#[derive(Debug)]
pub struct Children {
    program: PathBuf,
    argument: OsString,
    longest: Duration,
    idle: Mutex<Vec<Warm>>,
}

#[derive(Debug)]
struct Warm {
    process: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl Children {
    /// Starts nothing yet. `argument` makes the program call [`crate::serve`].
    pub fn new(program: impl Into<PathBuf>, argument: impl Into<OsString>) -> Self {
        Self { program: program.into(), argument: argument.into(), longest: LONGEST, idle: Mutex::default() }
    }

    /// This program, also when its file was replaced since it was started.
    pub fn of_this_program(argument: impl Into<OsString>) -> io::Result<Self> {
        let running = PathBuf::from("/proc/self/exe");
        Ok(Self::new(if running.exists() { running } else { std::env::current_exe()? }, argument))
    }

    /// The same for work that takes longer on the clock.
    #[must_use]
    pub fn lasting(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Has one piece of work done. How many there are at once is the caller's to say.
    pub async fn run(&self, work: &str, input: &[u8]) -> Result<Vec<u8>, ChildError> {
        let mut child = match self.warm() {
            Some(warm) => warm,
            None => self.start().map_err(ChildError::NotStarted)?,
        };
        match timeout(self.longest, child.exchange(work, input)).await {
            Ok(Ok((answer, ends))) => {
                let mut idle = self.idle();
                if !ends && idle.len() < MAX_IDLE {
                    idle.push(child);
                }
                Ok(answer)
            }
            Ok(Err(error)) => Err(child.reason(error).await),
            Err(_) => Err(ChildError::TooLong),
        }
    }

    /// One that waits; those that somebody ended meanwhile are forgotten.
    fn warm(&self) -> Option<Warm> {
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop())
            .find_map(|mut warm| matches!(warm.process.try_wait(), Ok(None)).then_some(warm))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Warm>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> io::Result<Warm> {
        let mut command = Command::new(&self.program);
        command.arg(&self.argument).env_clear().current_dir("/").process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let (input, output) = process.stdin.take().zip(process.stdout.take()).expect("both are pipes");
        debug!(pid = process.id(), "Started a child process.");
        Ok(Warm { process, input, output })
    }
}

impl Warm {
    /// The answer, and whether the child ends after it.
    async fn exchange(&mut self, work: &str, input: &[u8]) -> io::Result<(Vec<u8>, bool)> {
        let name = u8::try_from(work.len()).map_err(io::Error::other)?;
        let length = u32::try_from(input.len()).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(work.len() + input.len() + 5);
        frame.push(name);
        frame.extend_from_slice(work.as_bytes());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(input);
        self.input.write_all(&frame).await?;
        let ends = self.output.read_u8().await? != 0;
        let length = self.output.read_u32_le().await?;
        if length > MAX_ANSWER {
            return Err(io::Error::other("its answer is too large"));
        }
        let mut answer = vec![0; length as usize];
        self.output.read_exact(&mut answer).await?;
        Ok((answer, ends))
    }

    /// Why a child gave no answer: how it ended says more than the pipe that broke.
    async fn reason(mut self, broken: io::Error) -> ChildError {
        // One that still runs broke the rules of the exchange; dropping it kills it.
        let ended = timeout(Duration::from_secs(1), self.process.wait()).await;
        match ended.ok().and_then(Result::ok).and_then(|status: ExitStatus| status.signal()) {
            Some(signal) if signal == TOO_LONG.as_raw() => ChildError::TooLong,
            Some(signal) if signal == TOO_LARGE.as_raw() => ChildError::TooLarge,
            _ => ChildError::Failed(broken),
        }
    }
}
