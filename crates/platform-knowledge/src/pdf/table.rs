//! Lines whose cells stand below one another are the rows of a table.

use super::drawn::{Cell, Line};
use super::whole_words;
use crate::html::cell_of;

/// Columns of a table.
const MAX_COLUMNS: usize = 64;

/// A column of a table: where its cells are on the page, and what they say, each with the number of its row.
struct Column {
    left: f64,
    right: f64,
    cells: Vec<(usize, String)>,
}

/// The rows of the table that the first of these lines are, cells of a column below one another, and how many lines
/// they take.
pub(super) fn table<'l>(lines: impl Iterator<Item = &'l Line>) -> (Vec<Vec<String>>, usize) {
    let (mut columns, mut rows, mut end) = (Vec::<Column>::new(), 0, 0);
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.text.trim().is_empty()) {
        let cells = line.cells();
        let Some(places) = places(&columns, &cells) else { break };
        end = at + 1;
        for ((cell, text), place) in cells.into_iter().zip(places) {
            let text = cell_of(&whole_words(text));
            match place {
                Some(at) => {
                    let column = &mut columns[at];
                    (column.left, column.right) = (column.left.min(cell.left), column.right.max(cell.right));
                    column.cells.push((rows, text));
                }
                None => columns.push(Column { left: cell.left, right: cell.right, cells: vec![(rows, text)] }),
            }
        }
        columns.sort_by(|a, b| a.left.total_cmp(&b.left));
        rows += 1;
    }
    if rows < 2 {
        return (vec![], 0);
    }
    let mut table = vec![vec![String::new(); columns.len()]; rows];
    for (at, column) in columns.into_iter().enumerate() {
        for (row, text) in column.cells {
            table[row][at] = text;
        }
    }
    (table, end)
}

/// The column below which each cell of a row stands, none for a new one; or the row is not of this table: two of its
/// cells stand below one column or one below two, or fewer than two below any.
fn places(columns: &[Column], cells: &[(&Cell, &str)]) -> Option<Vec<Option<usize>>> {
    let stands_below = |cell: &Cell, column: &Column| column.left < cell.right && cell.left < column.right;
    // As many cells as columns are one of each, wherever in its column each stands.
    if cells.len() > 2 && cells.len() == columns.len() {
        let is_of_other = |(at, (cell, _)): (usize, &(&Cell, &str))| {
            columns.iter().enumerate().any(|(of, column)| of != at && stands_below(cell, column))
        };
        if !cells.iter().enumerate().any(is_of_other) {
            return Some((0..cells.len()).map(Some).collect());
        }
    }
    let mut places = Vec::with_capacity(cells.len());
    for (cell, _) in cells {
        let mut below = (0..columns.len()).filter(|at| stands_below(cell, &columns[*at]));
        let place = below.next();
        if below.next().is_some() || place.is_some() && places.contains(&place) {
            return None;
        }
        places.push(place);
    }
    let (old, new) = (places.iter().flatten().count(), places.iter().filter(|place| place.is_none()).count());
    let is_row = if columns.is_empty() { new > 1 } else { old > 1 };
    (is_row && columns.len() + new <= MAX_COLUMNS).then_some(places)
}
