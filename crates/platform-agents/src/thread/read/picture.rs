//! The states of a thread as a picture, drawn from the table of changes.

use std::fmt::Write;

use crate::thread::change::state::{CHANGES, Cause, ThreadState};

const LABELS: usize = 190;
const LANE: usize = 84;
const HEAD: usize = 62;
const ROW: usize = 25;

const STYLE: &str = "<style>.lane{stroke:#cbd5e1}.change{stroke:#4f46e5;stroke-width:1.6}.from{fill:#4f46e5}\
                     .band{fill:#f8fafc}.open{fill:#eef2ff;stroke:#4f46e5}.terminal{fill:#f1f5f9;stroke:#334155;\
                     stroke-width:1.6}text{fill:#0f172a}</style>";

const ARROW: &str = "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"6\" \
                     markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"#4f46e5\"/></marker></defs>";

/// What leads to a state for one reason: a row of the picture. No state before means a new thread.
struct Row {
    cause: Cause,
    from: Vec<Option<ThreadState>>,
    to: ThreadState,
}

/// The picture as SVG (1.1, no script): a lane for each state, a row for each reason of a change, with dots where it
/// can begin and arrows to where it leads.
pub fn picture() -> String {
    let rows = rows();
    let (width, height) = (lane(None) + LANE * (ThreadState::ALL.len() + 1), HEAD + ROW * rows.len() + 8);
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"States of a thread and what leads from one to another\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n{STYLE}\n{ARROW}\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
    );
    for i in (0..rows.len()).step_by(2) {
        let _ = writeln!(svg, "<rect class=\"band\" y=\"{}\" width=\"{width}\" height=\"{ROW}\"/>", HEAD + ROW * i);
    }
    head(&mut svg, None, height);
    for state in ThreadState::ALL {
        head(&mut svg, Some(*state), height);
    }
    for (i, row) in rows.iter().enumerate() {
        change(&mut svg, HEAD + ROW * i + ROW / 2, row);
    }
    svg.push_str("</svg>\n");
    svg
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (from, cause, to) in CHANGES {
        match rows.iter_mut().find(|row| row.cause == *cause && row.to == *to) {
            Some(row) => row.from.push(*from),
            None => rows.push(Row { cause: *cause, from: vec![*from], to: *to }),
        }
    }
    rows
}

/// Where the lane of a state lies, from the left.
fn lane(state: Option<ThreadState>) -> usize {
    let place = state.and_then(|state| ThreadState::ALL.iter().position(|s| *s == state));
    LABELS + LANE / 2 + place.map_or(0, |place| (place + 1) * LANE)
}

fn head(svg: &mut String, state: Option<ThreadState>, height: usize) {
    let x = lane(state);
    let _ = writeln!(svg, "<line class=\"lane\" x1=\"{x}\" y1=\"{HEAD}\" x2=\"{x}\" y2=\"{}\"/>", height - 8);
    let Some(state) = state else {
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"36\" text-anchor=\"middle\">new</text>");
        return;
    };
    let (class, round) = if state.is_terminal() { ("terminal", 2) } else { ("open", 14) };
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{}\" y=\"10\" width=\"{}\" height=\"42\" rx=\"{round}\"/>",
        x - LANE / 2 + 2,
        LANE - 4
    );
    // A long name stands in two lines, broken where a word ends.
    let name = state.as_str();
    let lines = match name.rfind('_') {
        Some(end) => vec![&name[..=end], &name[end + 1..]],
        None => vec![name],
    };
    for (i, line) in lines.iter().enumerate() {
        let y = 35 - 7 * (lines.len() - 1) + 15 * i;
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" font-size=\"11\">{line}</text>");
    }
}

fn change(svg: &mut String, y: usize, row: &Row) {
    let to = lane(Some(row.to));
    let _ = writeln!(svg, "<text x=\"10\" y=\"{}\">{}</text>", y + 4, row.cause.as_str());
    for from in &row.from {
        let _ = writeln!(svg, "<circle class=\"from\" cx=\"{}\" cy=\"{y}\" r=\"4\"/>", lane(*from));
    }
    let begins = || row.from.iter().map(|from| lane(*from));
    for outermost in [begins().filter(|x| *x < to).min(), begins().filter(|x| *x > to).max()].into_iter().flatten() {
        let _ = writeln!(
            svg,
            "<line class=\"change\" x1=\"{outermost}\" y1=\"{y}\" x2=\"{to}\" y2=\"{y}\" marker-end=\"url(#arrow)\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_picture_in_the_docs_is_the_one_that_is_drawn() {
        let kept = include_str!("../../../../../docs/thread-states.svg");
        assert_eq!(kept, super::picture(), "write it anew: just docs");
    }
}
