//! Character graphics: a curve over time, and the time axis below it, which the timeline uses too.

use crate::table::size;

/// Eighths of a character.
pub const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Rows of a curve.
const ROWS: usize = 8;

/// Columns for the label of a row.
const LABEL: usize = 12;

/// Minimum number of columns between two marks of the axis.
const APART: u64 = 14;

/// The time axis of a picture, in columns.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub start_ns: u64,
    pub column_ns: u64,
    pub count: usize,
}

impl Columns {
    /// Merges the buckets so that they fit into `width` columns. A column consists of whole buckets, so that it shows
    /// nothing from outside its time.
    pub fn new(start_ns: u64, bucket_ns: u64, buckets: usize, width: usize) -> (Columns, usize) {
        let each = buckets.div_ceil(width.max(1)).max(1);
        let count = buckets.div_ceil(each).max(1);
        (Columns { start_ns, column_ns: bucket_ns.saturating_mul(each as u64), count }, each)
    }

    /// Marks at round times, and their labels below.
    pub fn axis(&self) -> [String; 2] {
        let step = self.step();
        let mut ticks: Vec<char> = vec!['─'; self.count];
        let mut labels = String::new();
        let first = self.start_ns.div_ceil(step);
        for at in (first..).map_while(|number| number.checked_mul(step)) {
            let column = usize::try_from((at - self.start_ns) / self.column_ns.max(1)).unwrap_or(usize::MAX);
            let Some(tick) = ticks.get_mut(column) else { break };
            *tick = '┬';
            let (written, label) = (labels.chars().count(), label(at, step));
            if written <= column && column + label.len() <= self.count {
                labels += &" ".repeat(column - written);
                labels += &label;
            }
        }
        [ticks.into_iter().collect(), labels]
    }

    /// A step of 1, 2 or 5 times a power of ten.
    fn step(&self) -> u64 {
        let least = self.column_ns.max(1).saturating_mul(APART);
        let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
        let mut steps = powers.flat_map(|power| [1, 2, 5].map(|factor| power.saturating_mul(factor)));
        steps.find(|step| *step >= least).unwrap_or(u64::MAX)
    }
}

/// A label with as many decimals as the step needs.
fn label(ns: u64, step: u64) -> String {
    let decimals = (0..9u32).find(|decimals| step.is_multiple_of(10u64.pow(9 - decimals))).unwrap_or(9);
    let seconds = ns / 1_000_000_000;
    if decimals == 0 {
        return format!("{seconds} s");
    }
    let fraction = ns % 1_000_000_000 / 10u64.pow(9 - decimals);
    format!("{seconds}.{fraction:0width$} s", width = decimals as usize)
}

/// The minimum and maximum of each column, as filled rows.
pub fn curve(columns: &Columns, values: &[(u64, u64)], peak: u64) -> Vec<String> {
    let mut lines = Vec::new();
    for row in (0..ROWS).rev() {
        let name = match row + 1 {
            ROWS => size(peak),
            row if row == ROWS / 2 => size(peak / 2),
            _ => String::new(),
        };
        let cells: String = values.iter().map(|value| cell(*value, peak, row)).collect();
        lines.push(format!("  {name:>LABEL$} │{cells}").trim_end().to_owned());
    }
    let [ticks, labels] = columns.axis();
    lines.push(format!("  {:>LABEL$} └{ticks}", "0"));
    lines.push(format!("  {:>LABEL$}  {labels}", ""));
    lines
}

/// One character: full up to the minimum, light between minimum and maximum.
fn cell((least, most): (u64, u64), peak: u64, row: usize) -> char {
    let eighths = |value: u64| {
        let all = (ROWS * 8) as u128;
        let rounded = (u128::from(value) * all).div_ceil(u128::from(peak.max(1)));
        usize::try_from(rounded).unwrap_or(usize::MAX)
    };
    let (low, high, base) = (eighths(least), eighths(most), row * 8);
    if low >= base + 8 {
        '█'
    } else if high <= base {
        ' '
    } else if low == high {
        LEVELS.get(high - base - 1).copied().unwrap_or('█')
    } else {
        '░'
    }
}

/// Number of columns left of the curve.
pub const MARGIN: usize = LABEL + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_at_round_times() {
        let columns = Columns { start_ns: 2_039_000_000, column_ns: 1_000_000, count: 50 };
        let [ticks, labels] = columns.axis();
        assert_eq!(ticks.chars().count(), 50);
        assert_eq!(
            (ticks.chars().position(|c| c == '┬'), labels.trim_start()),
            (Some(1), "2.04 s              2.06 s              2.08 s")
        );
        let columns = Columns { start_ns: 0, column_ns: 100, count: 30 };
        assert_eq!(columns.axis()[1], "0.000000 s          0.000002 s");
        let whole = Columns { start_ns: u64::MAX - 1, column_ns: u64::MAX, count: 3 };
        assert_eq!(whole.axis()[0].chars().count(), 3);
    }

    #[test]
    fn a_column_has_whole_buckets() {
        let (columns, each) = Columns::new(0, 10, 101, 50);
        assert_eq!((columns.column_ns, columns.count, each), (30, 34, 3));
        let (columns, each) = Columns::new(0, 10, 0, 0);
        assert_eq!((columns.count, each), (1, 1));
    }

    #[test]
    fn what_was_there_for_a_part_of_the_time_is_light() {
        let columns = Columns { start_ns: 0, column_ns: 1_000_000_000, count: 4 };
        let lines = curve(&columns, &[(0, 0), (0, 64), (64, 64), (1, 1)], 64);
        assert_eq!(lines[0], "          64 B │ ░█");
        assert_eq!(lines[7], "               │ ░█▁");
        assert_eq!(lines.len(), ROWS + 2);
    }
}
