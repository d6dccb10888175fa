//! A connection that holds nothing for long: a head comes in time, and little is read after an early answer.

use std::{
    cell::{Cell, OnceCell},
    future::poll_fn,
    io,
    net::IpAddr,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use actix_http::body::{BodySize, BoxBody, MessageBody};
use actix_web::{HttpResponse, rt::net::TcpStream};
use bytes::Bytes;
use platform_core::{Caller, FairPermit};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::gate::{Gate, KnownPlace};

/// The head of a request is complete so long after its first byte (contract 00 §1.8).
pub(crate) const HEAD: Duration = Duration::from_secs(10);
/// After an answer that came before its request was whole the connection lasts so much longer.
pub(crate) const LINGER: Duration = Duration::from_secs(2);
/// Whether its client has left meanwhile is looked at so often.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// So many bytes are read and thrown away meanwhile.
const LINGER_BYTES: usize = 64 * 1024;
/// A write that nobody reads ends its connection after this (contract 00 §1.8).
const STALLED_WRITE: Duration = Duration::from_secs(30);

/// A TCP connection; it has a place among those of its address until somebody is known on it, then among theirs.
pub(crate) struct Connection {
    stream: TcpStream,
    control: Rc<Control>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What the requests of a connection tell it.
pub(crate) struct Control {
    phase: Cell<Phase>,
    place: Cell<Option<FairPermit<IpAddr>>>,
    known: OnceCell<KnownPlace>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// Between requests; until when the head that has begun must be there.
    Waiting(Option<Instant>),
    /// A request is being answered.
    Serving,
    /// It was answered too early to go on; what more is read is thrown away.
    Closing { until: Instant, left: usize },
}

/// A request that is being answered, until this is dropped.
pub(crate) struct Serving(Rc<Control>);

impl Connection {
    pub fn new(stream: TcpStream, place: FairPermit<IpAddr>) -> Self {
        let _ = stream.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STALLED_WRITE));
        let (phase, place) = (Cell::new(Phase::Waiting(None)), Cell::new(Some(place)));
        let control = Rc::new(Control { phase, place, known: OnceCell::new() });
        Self { stream, control, timer: None }
    }

    pub fn control(&self) -> Rc<Control> {
        Rc::clone(&self.control)
    }

    /// Whether the time for what it waits for is over; wakes the task when it will be.
    fn is_over(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let Some(until) = until else { return false };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx).is_ready()
    }

    /// Whether the client has closed its end, though not all that it sent was read; looks again soon.
    fn has_left(&mut self, cx: &mut Context<'_>) -> bool {
        let ready = pin!(self.stream.ready(Interest::READABLE)).poll(cx);
        let has_left = match ready {
            Poll::Ready(Ok(ready)) => ready.is_read_closed(),
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        has_left || self.is_over(Some(Instant::now() + LOOK_AGAIN), cx)
    }
}

impl Control {
    /// A good credential came: a backend has many connections, which no longer count for their address.
    pub fn vouch(&self, gate: &Gate, caller: &Caller) {
        if self.known.get().is_none()
            && let Some(known) = gate.known_connection(caller)
        {
            let _ = self.known.set(known);
            self.place.take();
        }
    }

    /// A request begins.
    pub fn serve(self: Rc<Self>) -> Serving {
        self.phase.set(Phase::Serving);
        Serving(self)
    }
}

impl Serving {
    /// It is answered before it is whole: the connection closes soon.
    pub async fn close(&self) {
        self.0.phase.set(Phase::Closing { until: Instant::now() + LINGER, left: LINGER_BYTES });
        // The connection is read once more, and sees how long it has.
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Ready(())
        })
        .await;
    }

    /// It lasts as long as its answer is written.
    pub fn through(self, response: HttpResponse) -> HttpResponse {
        match response.body().size() {
            BodySize::Stream => response.map_body(|_, body| BoxBody::new(Streamed { body, _serving: self })),
            _ => response,
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if matches!(self.0.phase.get(), Phase::Serving) {
            self.0.phase.set(Phase::Waiting(None));
        }
    }
}

/// An answer that goes on for a while.
struct Streamed {
    body: BoxBody,
    _serving: Serving,
}

impl MessageBody for Streamed {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (until, left) = match self.control.phase.get() {
            Phase::Waiting(until) => (until, usize::MAX),
            Phase::Serving => (None, usize::MAX),
            Phase::Closing { until, left } => (Some(until), left),
        };
        // Nothing read is the end of what the client sends.
        if self.is_over(until, cx) {
            return Poll::Ready(Ok(()));
        }
        // What is not read stays with the client, who has time to see the answer.
        if left == 0 {
            return if self.has_left(cx) { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        match self.control.phase.get() {
            Phase::Waiting(None) if read > 0 => self.control.phase.set(Phase::Waiting(Some(Instant::now() + HEAD))),
            Phase::Closing { until, left } => {
                self.control.phase.set(Phase::Closing { until, left: left.saturating_sub(read) });
            }
            _ => {}
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
