//! The states of a thread as a picture, drawn from the table of changes.

use std::fmt::Write;

use super::state::{CHANGES, Cause, ThreadState};

const WIDTH: i32 = 178;
const HEIGHT: i32 = 34;

/// Column and row of each state.
fn place(state: ThreadState) -> (i32, i32) {
    use ThreadState as S;
    let (column, row) = match state {
        S::UnderConstruction => (0, 1),
        S::Queued => (1, 1),
        S::Processing => (2, 1),
        S::Paused => (1, 3),
        S::PausedForResume => (2, 3),
        S::PausedForApproval => (1, 4),
        S::WaitingForResponse => (2, 4),
        S::HandedOff => (2, 5),
        S::Completed => (3, 0),
        S::Failed => (3, 1),
        S::GuardrailTrigger => (3, 2),
        S::Terminated => (3, 3),
        S::ApprovalRejected => (3, 4),
        S::LimitExceeded => (3, 5),
    };
    (40 + column * 250, 50 + row * 88)
}

/// The picture as SVG (1.1, no script): every change but `complete` and `a message`, which lead from every state
/// that is not terminal to a terminal one, and back to `queued`.
pub fn picture() -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1010 640\" width=\"1010\" height=\"640\" \
         role=\"img\" aria-label=\"States of a thread\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <style>.l{stroke:#64748b;fill:none;stroke-width:1.3}.b{fill:#eef2ff;stroke:#4f46e5}\
         .t{fill:#f1f5f9;stroke:#334155;stroke-width:1.6}.c{fill:#475569;font-size:10.5px;paint-order:stroke;\
         stroke:#fff;stroke-width:3px}</style>\n\
         <defs><marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0L8 4L0 8z\" fill=\"#64748b\"/></marker></defs>\n\
         <rect width=\"1010\" height=\"640\" fill=\"#fff\"/>\n",
    );
    let mut drawn: Vec<(Option<ThreadState>, ThreadState, Vec<&str>)> = Vec::new();
    for (from, cause, to) in CHANGES {
        if matches!(cause, Cause::Closed | Cause::Message) {
            continue;
        }
        match drawn.iter_mut().find(|(f, t, _)| f == from && t == to) {
            Some((.., causes)) => causes.push(cause.as_str()),
            None => drawn.push((*from, *to, vec![cause.as_str()])),
        }
    }
    for (i, (from, to, causes)) in drawn.iter().enumerate() {
        line(&mut svg, i, *from, *to, &causes.join("; "));
    }
    for state in ThreadState::ALL {
        let (x, y) = place(*state);
        let (class, radius) = if state.is_terminal() { ("t", 3) } else { ("b", 15) };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"{radius}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x + WIDTH / 2,
            y + 22,
            state.as_str()
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"40\" y=\"605\" class=\"c\">Not drawn: `complete` leads from every round state to completed, failed \
         or terminated; `a message` leads from every square state, and from paused and waiting_for_response, to \
         queued.</text>\n</svg>"
    );
    svg
}

fn line(svg: &mut String, i: usize, from: Option<ThreadState>, to: ThreadState, causes: &str) {
    let (tx, ty) = place(to);
    let Some(from) = from else {
        // New threads come from the left or from above.
        let (x, y) = (tx + 24, ty - 30);
        let _ = writeln!(
            svg,
            "<path class=\"l\" marker-end=\"url(#a)\" d=\"M{x} {y}L{x} {}\"/>\
             <text class=\"c\" x=\"{}\" y=\"{}\">new: {causes}</text>",
            ty - 2,
            x + 5,
            y + 8
        );
        return;
    };
    let (fx, fy) = place(from);
    // Lines between the same two columns leave and arrive at places of their own.
    let shift = i32::try_from(i % 5).unwrap_or(0) * 9 - 18;
    let (x1, y1, x2, y2) = match fx.cmp(&tx) {
        std::cmp::Ordering::Less => (fx + WIDTH, fy + HEIGHT / 2 + shift / 2, tx - 2, ty + HEIGHT / 2 + shift / 2),
        std::cmp::Ordering::Greater => (fx, fy + HEIGHT / 2 + shift / 2, tx + WIDTH + 2, ty + HEIGHT / 2 + shift / 2),
        std::cmp::Ordering::Equal if fy < ty => (fx + 70 + shift, fy + HEIGHT, tx + 70 + shift, ty - 2),
        std::cmp::Ordering::Equal => (fx + 120 + shift, fy, tx + 120 + shift, ty + HEIGHT + 2),
    };
    let (mx, my) = (i32::midpoint(x1, x2), i32::midpoint(y1, y2) - 4);
    let _ = writeln!(
        svg,
        "<path class=\"l\" marker-end=\"url(#a)\" d=\"M{x1} {y1}L{x2} {y2}\"/>\
         <text class=\"c\" x=\"{mx}\" y=\"{my}\" text-anchor=\"middle\">{causes}</text>"
    );
}
