//! The child's side: one piece of work after another, each within its bounds.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{
    param::page_size,
    process::{Resource, Rlimit, Signal, getpid, kill_process, nice, setrlimit},
    time::{ClockId, clock_gettime},
};

/// Largest input, in bytes.
const MAX_INPUT: u32 = 64 << 20;
/// A child that has grown by so much more than it began with ends after its work: the next one begins small.
const GROWN: u64 = 32 << 20;
/// How often the bounds are looked at while there is work.
const LOOK: Duration = Duration::from_millis(2);
/// Added to the priority of the parent.
const NICENESS: i32 = 5;
/// `until` of a process that has no work.
const IDLE: u64 = u64::MAX;
/// What the process ends by: its parent tells the reasons apart.
pub(crate) const TOO_LONG: Signal = Signal::XCPU;
pub(crate) const TOO_LARGE: Signal = Signal::KILL;
/// Standard input, output and error, and the file that says how much memory is used.
const FILES: u64 = 4;

/// A kind of work.
pub struct Work {
    /// What [`crate::Children::run`] calls it by, at most 255 bytes.
    pub name: &'static str,
    /// Does it: bytes in, bytes out.
    pub run: fn(&[u8]) -> Vec<u8>,
    /// CPU time of one piece.
    pub cpu: Duration,
    /// Memory of one piece beyond what the idle process uses, in bytes; bounded on Linux.
    pub memory: u64,
}

/// Works until standard input ends. To be called first thing by a process that does nothing else.
pub fn serve(works: &[Work]) -> io::Result<()> {
    let watch = Arc::new(Watch {
        memory: File::open("/proc/self/statm").ok(),
        until: AtomicU64::new(IDLE),
        most_memory: AtomicU64::new(0),
    });
    let at_rest = watch.resident();
    confine()?;
    let watching = Arc::clone(&watch);
    let watchdog = thread::Builder::new().name("watchdog".to_owned()).spawn(move || watching.look())?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    while let Some((name, bytes)) = read_work(&mut input)? {
        let work = works.iter().find(|work| work.name.as_bytes() == name);
        let work = work.ok_or_else(|| io::Error::other("there is no such work"))?;
        watch.most_memory.store(at_rest.saturating_add(work.memory), Ordering::Relaxed);
        watch.until.store(nanos(cpu_time() + work.cpu), Ordering::Release);
        watchdog.thread().unpark();
        let answer = (work.run)(&bytes);
        watch.until.store(IDLE, Ordering::Release);
        let ends = watch.resident() > at_rest.saturating_add(GROWN);
        output.write_all(&[u8::from(ends)])?;
        output.write_all(&u32::try_from(answer.len()).map_err(io::Error::other)?.to_le_bytes())?;
        output.write_all(&answer)?;
        output.flush()?;
        if ends {
            break;
        }
    }
    Ok(())
}

/// The next piece of work: a byte and its name, four bytes (little endian) and its input.
fn read_work(input: &mut impl Read) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut name = [0];
    if input.read(&mut name)? == 0 {
        return Ok(None);
    }
    let mut name = vec![0; name[0].into()];
    input.read_exact(&mut name)?;
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_INPUT {
        return Err(io::Error::other("the input is too large"));
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    Ok(Some((name, bytes)))
}

/// No further file or socket, nothing written to disk, no core dump; whoever serves requests goes first.
fn confine() -> io::Result<()> {
    nice(NICENESS)?;
    for (resource, most) in [(Resource::Nofile, FILES), (Resource::Fsize, 0), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// Ends the process when a piece of work passes its bounds: nothing else stops a native loop.
struct Watch {
    memory: Option<File>,
    /// CPU time of the process, in nanoseconds.
    until: AtomicU64,
    /// In bytes.
    most_memory: AtomicU64,
}

impl Watch {
    fn look(&self) {
        loop {
            let until = self.until.load(Ordering::Acquire);
            if until == IDLE {
                thread::park();
                continue;
            }
            if nanos(cpu_time()) > until {
                end(TOO_LONG);
            }
            if self.resident() > self.most_memory.load(Ordering::Relaxed) {
                end(TOO_LARGE);
            }
            thread::park_timeout(LOOK);
        }
    }

    /// Memory in use, in bytes; 0 where the system does not say.
    fn resident(&self) -> u64 {
        let mut text = [0; 128];
        let read = self.memory.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let pages =
            std::str::from_utf8(&text[..read]).ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        pages.unwrap_or(0).saturating_mul(page_size() as u64)
    }
}

fn end(signal: Signal) {
    let _ = kill_process(getpid(), signal);
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}
