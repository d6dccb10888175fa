//! A command on a machine, from its line to what it said.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use platform_core::{AccountId, Clock, Id, Result, millis};
use platform_sandbox::{Command, Running, SandboxError};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    live::{HOME, Live, failed},
    model::{CommandOutput, OutputPiece},
};
use crate::{
    environment::Variables,
    redact::{RedactedStream, Redactor, mask},
};

/// After a command has ended, what it started may hold its output open.
const LINGER: Duration = Duration::from_millis(100);
/// What may be the beginning of a value is not shown for so long.
const HELD: Duration = Duration::from_millis(500);
/// Pieces that nobody has read yet.
const MAX_UNREAD: usize = 64;
const PIECE: usize = 16 << 10;
/// Bytes that a pipe of Linux holds.
const PIPE: usize = 64 << 10;
/// Exit code of a command that took too long.
const TOO_LONG: i32 = 124;
/// Exit code of a command that was killed.
const KILLED: i32 = 137;
/// Longest directory that a command may end in.
const MAX_PATH: usize = 4096;
/// Runs `$1` in `$2`; says at the end where it is, behind the mark `$3`. `$4`: where it runs when that is gone. The line
/// sees nothing of this.
const RUN: &str = r#"cd -- "$2" 2>/dev/null || { if [ -n "$4" ] && cd -- "$4" 2>/dev/null
then echo "$2 is gone; this runs in $4." >&2; else cd -- "$2"; exit 1; fi; }
exec {__out}>&2; trap "printf '\\0%s%s\\0' $3 \"\$PWD\" >&$__out" EXIT; eval "unset __out; set --; $1""#;

enum MarkKind {}

/// What is to be run.
pub(crate) struct Line {
    pub line: String,
    /// Where the last command ended when absent.
    pub cwd: Option<String>,
    pub is_root: bool,
    /// They win over those of the machine.
    pub variables: Variables,
    /// `None` = as long as the machine stays.
    pub timeout: Option<Duration>,
    /// It is killed when nobody wants to know what it says.
    pub ends_with_reader: bool,
    /// Nothing is masked.
    pub is_raw: bool,
    /// What is kept of each stream, in bytes.
    pub most_bytes: usize,
}

/// Runs a line to its end; what it says on the way is told to whoever listens.
pub(crate) async fn run(
    live: &Arc<Live>,
    line: Line,
    says: &mpsc::Sender<OutputPiece>,
    clock: &dyn Clock,
) -> Result<CommandOutput> {
    let _using = live.using(clock.now());
    let ran = carry(live, line, says).await;
    live.state().used = clock.now();
    ran.map_err(failed)
}

/// A place for what a line says.
pub(crate) fn channel() -> (mpsc::Sender<OutputPiece>, mpsc::Receiver<OutputPiece>) {
    mpsc::channel(MAX_UNREAD)
}

/// What a line said that ran to its end, when nobody wants it in pieces.
pub async fn whole(mut said: mpsc::Receiver<OutputPiece>) -> Result<CommandOutput> {
    while let Some(piece) = said.recv().await {
        match piece {
            OutputPiece::Exit(output) => return Ok(output),
            OutputPiece::Failed(error) => return Err(error),
            OutputPiece::Stdout(_) | OutputPiece::Stderr(_) => {}
        }
    }
    Err(failed(SandboxError::Ended))
}

async fn carry(
    live: &Arc<Live>,
    line: Line,
    says: &mpsc::Sender<OutputPiece>,
) -> std::result::Result<CommandOutput, SandboxError> {
    let Line { line, cwd, is_root, variables: own, timeout: longest, ends_with_reader, is_raw, most_bytes } = line;
    let _place = live.commands.acquire().await;
    let learned = live.learn(&own).await.map_err(|error| SandboxError::Failed(error.message().to_owned()))?;
    let redactor = if is_raw { Redactor::default() } else { learned };
    let (mut variables, before) = {
        let state = live.state();
        (state.variables.clone(), state.cwd.clone())
    };
    variables.extend(own);
    // A directory that was asked for must be there.
    let other = if cwd.is_some() { "" } else { HOME };
    let cwd = cwd.unwrap_or_else(|| before.clone());
    let mark: String = Id::<MarkKind>::generate().into();
    let argv = ["bash", "-c", RUN, "bash", &line, &cwd, &mark, other].map(str::to_owned).to_vec();
    let variables = variables.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
    let began = Instant::now();
    let running = live.machine.start(Command { argv, variables, is_root, input: Bytes::new() }).await?;
    let Running { mut stdout, mut stderr, mut exit, kill } = running;
    let over = CancellationToken::new();
    let stream = |mark| Stream::new(&live.account, &redactor, mark, most_bytes, over.clone());
    let (mut out, mut err) = (stream(None), stream(Some(format!("\0{mark}").into_bytes())));
    let deadline = longest.map(|longest| began + longest);
    let code = {
        let reading = async {
            tokio::join!(
                out.read(&mut stdout, says, OutputPiece::Stdout),
                err.read(&mut stderr, says, OutputPiece::Stderr),
            );
        };
        let mut reading = std::pin::pin!(reading);
        let mut is_read = false;
        let ending = async {
            loop {
                tokio::select! {
                    code = &mut exit => break code,
                    () = &mut reading, if !is_read => is_read = true,
                }
            }
        };
        let in_time = async {
            match deadline {
                Some(deadline) => timeout_at(deadline, ending).await.ok(),
                None => Some(ending.await),
            }
        };
        let ended = tokio::select! {
            ended = in_time => ended,
            () = says.closed(), if ends_with_reader => None,
        };
        if ended.is_none() {
            kill();
        }
        if !is_read {
            let lingering = async {
                sleep(LINGER).await;
                over.cancel();
            };
            tokio::select! {
                () = &mut reading => {}
                () = lingering => reading.await,
            }
        }
        match ended {
            // What it said until its machine ended is known.
            Some(Err(SandboxError::Ended)) => KILLED,
            Some(code) => code?,
            None => TOO_LONG,
        }
    };
    out.finish(says, OutputPiece::Stdout).await;
    err.finish(says, OutputPiece::Stderr).await;
    let ended_in = err.filter.mark.as_mut().and_then(|mark| mark.said.take()).unwrap_or(before);
    live.state().cwd.clone_from(&ended_in);
    let ((stdout, out_is_cut), (stderr, err_is_cut)) = (out.tail(), err.tail());
    let bytes = ended_in.len();
    let cwd =
        mask(&live.account, bytes, move || String::from_utf8_lossy(&redactor.whole(ended_in.as_bytes())).into_owned());
    Ok(CommandOutput {
        exit_code: code,
        truncated: out_is_cut || err_is_cut,
        stdout,
        stderr,
        duration_ms: millis(began.elapsed()),
        cwd: cwd.await.map_err(|error| SandboxError::Failed(error.to_string()))?,
    })
}

/// One stream of a command: without the mark, masked, as text, the end of it kept.
struct Stream {
    account: AccountId,
    filter: Filter,
    /// Nothing more is waited for.
    over: CancellationToken,
    /// The beginning of a character.
    partial: Vec<u8>,
    kept: String,
    most_bytes: usize,
    truncated: bool,
}

impl Stream {
    fn new(
        account: &AccountId,
        redactor: &Redactor,
        mark: Option<Vec<u8>>,
        most_bytes: usize,
        over: CancellationToken,
    ) -> Self {
        let mark = mark.map(|mark| Mark { mark, held: Vec::new(), is_found: false, is_over: false, said: None });
        let (account, filter) = (account.clone(), Filter { mark, masked: redactor.stream() });
        Self { account, filter, over, partial: Vec::new(), kept: String::new(), most_bytes, truncated: false }
    }

    async fn read(
        &mut self,
        from: &mut (dyn AsyncRead + Send + Unpin),
        says: &mpsc::Sender<OutputPiece>,
        piece: fn(String) -> OutputPiece,
    ) {
        let mut bytes = vec![0; PIECE];
        // What a pipe holds when nothing more is waited for.
        let mut left = PIPE;
        loop {
            let over = self.over.clone();
            let holds = self.filter.masked.holds();
            let reading = async {
                let reading = from.read(&mut bytes);
                if holds { timeout(HELD, reading).await } else { Ok(reading.await) }
            };
            let read = tokio::select! {
                biased;
                read = reading => read,
                () = over.cancelled() => return,
            };
            let shown = match read {
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(length)) => {
                    if over.is_cancelled() {
                        left = left.saturating_sub(length);
                    }
                    match self.push(&bytes[..length]).await {
                        Ok(shown) => shown,
                        // What could not be masked is not shown, nor is what comes after it.
                        Err(error) => return warn!(%error, "The output of a command could not be masked."),
                    }
                }
                Err(_) => self.filter.masked.release(),
            };
            tokio::select! {
                biased;
                () = self.show(shown, says, piece) => {}
                () = over.cancelled() => return,
            }
            if left == 0 {
                return;
            }
            // Whatever it says, others have their turn.
            yield_now().await;
        }
    }

    /// What can be shown once this was said, too.
    async fn push(&mut self, said: &[u8]) -> Result<Vec<u8>> {
        if self.filter.masked.is_open() {
            return Ok(self.filter.push(said));
        }
        let (mut filter, said) = (std::mem::take(&mut self.filter), said.to_vec());
        let pushed = mask(&self.account, said.len(), move || {
            let shown = filter.push(&said);
            (filter, shown)
        });
        let (filter, shown) = pushed.await?;
        self.filter = filter;
        Ok(shown)
    }

    async fn finish(&mut self, says: &mpsc::Sender<OutputPiece>, piece: fn(String) -> OutputPiece) {
        let shown = self.filter.finish();
        self.show(shown, says, piece).await;
        if !self.partial.is_empty() {
            self.partial.clear();
            self.keep("\u{fffd}");
        }
    }

    async fn show(&mut self, shown: Vec<u8>, says: &mpsc::Sender<OutputPiece>, piece: fn(String) -> OutputPiece) {
        self.partial.extend(shown);
        let whole = match self.partial.utf8_chunks().last() {
            // What may be the beginning of a character waits for the rest of it.
            Some(chunk) if (1..4).contains(&chunk.invalid().len()) && is_beginning(chunk.invalid()) => {
                self.partial.len() - chunk.invalid().len()
            }
            _ => self.partial.len(),
        };
        let text = String::from_utf8_lossy(&self.partial[..whole]).into_owned();
        self.partial.drain(..whole);
        if text.is_empty() {
            return;
        }
        self.keep(&text);
        // Whoever asked may be gone; the command goes on.
        let _ = says.send(piece(text)).await;
    }

    /// The end is worth more than the beginning.
    fn keep(&mut self, text: &str) {
        self.kept.push_str(text);
        if self.kept.len() > self.most_bytes.saturating_mul(2) {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.kept.len() > self.most_bytes {
            let from = self.kept.ceil_char_boundary(self.kept.len() - self.most_bytes);
            self.kept.drain(..from);
            self.truncated = true;
        }
    }

    /// The end of it, and whether something stood before.
    fn tail(mut self) -> (String, bool) {
        self.cut();
        (self.kept, self.truncated)
    }
}

/// Takes out of a stream what is not to be seen.
#[derive(Default)]
struct Filter {
    mark: Option<Mark>,
    masked: RedactedStream,
}

impl Filter {
    fn push(&mut self, said: &[u8]) -> Vec<u8> {
        match &mut self.mark {
            Some(mark) => self.masked.push(&mark.push(said)),
            None => self.masked.push(said),
        }
    }

    fn finish(&mut self) -> Vec<u8> {
        let held = self.mark.as_mut().map(Mark::finish).unwrap_or_default();
        let mut shown = self.masked.push(&held);
        shown.extend(self.masked.finish());
        shown
    }
}

/// Whether bytes are the beginning of a character of UTF-8.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Finds where a command ended, and takes that out of what it said.
struct Mark {
    mark: Vec<u8>,
    held: Vec<u8>,
    is_found: bool,
    /// What was behind it was read, or was none.
    is_over: bool,
    said: Option<String>,
}

impl Mark {
    fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        if self.is_found {
            return self.read_rest(Vec::new());
        }
        if let Some(at) = self.held.windows(self.mark.len()).position(|window| window == self.mark) {
            let shown = self.held[..at].to_vec();
            self.held.drain(..at + self.mark.len());
            self.is_found = true;
            return self.read_rest(shown);
        }
        let begins = self.held.iter().rposition(|byte| *byte == 0);
        let begins = begins.filter(|at| self.mark.starts_with(&self.held[*at..]));
        self.held.drain(..begins.unwrap_or(self.held.len())).collect()
    }

    /// The directory ends at a zero; what comes after it was said by what goes on.
    fn read_rest(&mut self, mut shown: Vec<u8>) -> Vec<u8> {
        if let Some(end) = self.held.iter().position(|byte| *byte == 0).filter(|_| !self.is_over) {
            let said = String::from_utf8_lossy(&self.held[..end]).into_owned();
            self.said = Some(said).filter(|said| said.starts_with('/') && said.len() <= MAX_PATH);
            self.held.drain(..=end);
            self.is_over = true;
        }
        // Somebody else may have said the mark.
        if self.is_over || self.held.len() > MAX_PATH {
            self.is_over = true;
            shown.append(&mut self.held);
        }
        shown
    }

    fn finish(&mut self) -> Vec<u8> {
        if self.is_found { Vec::new() } else { std::mem::take(&mut self.held) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_command_ended_is_taken_out_of_what_it_said_wherever_it_is_cut() {
        let said = b"before\0no\0mark-1/work space\0after";
        for size in 1..said.len() {
            let (mark, held) = (b"\0mark-1".to_vec(), Vec::new());
            let mut mark = Mark { mark, held, is_found: false, is_over: false, said: None };
            let mut shown: Vec<u8> = said.chunks(size).flat_map(|piece| mark.push(piece)).collect();
            shown.extend(mark.finish());
            assert_eq!(String::from_utf8_lossy(&shown), "before\0noafter", "in pieces of {size}");
            assert_eq!(mark.said.as_deref(), Some("/work space"));
        }
    }
}
