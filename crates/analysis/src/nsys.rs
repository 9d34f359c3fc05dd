//! The columns of nsys's cuda_api_sum. In: a function's figures. Out: the columns, and the cells of its row. Tables that
//! show more append their own columns and cells.

use crate::figures::Function;
use crate::table::{Cell, Column, long, number};

const FUNCTION: [Column; 9] = [
    long("Name", "name"),
    number("Time (%)", "time_percent"),
    number("Total (us)", "total_ns"),
    number("Calls", "calls"),
    number("Avg (us)", "avg_ns"),
    number("Med (us)", "med_ns"),
    number("Min (us)", "min_ns"),
    number("Max (us)", "max_ns"),
    number("StdDev (us)", "stddev_ns"),
];

/// The columns, followed by more. ALL is the number of both.
pub const fn columns<const MORE: usize, const ALL: usize>(more: [Column; MORE]) -> [Column; ALL] {
    let mut all = [FUNCTION[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < FUNCTION.len() { FUNCTION[at] } else { more[at - FUNCTION.len()] };
        at += 1;
    }
    all
}

/// The cells of a row. `total_ns` is the time of all functions.
pub fn cells(function: &Function, total_ns: u128) -> Vec<Cell> {
    vec![
        function.name.as_str().into(),
        Cell::Share(function.total_ns.into(), total_ns),
        Cell::Micros(function.total_ns),
        Cell::Count(function.calls),
        Cell::Micros(function.avg_ns),
        Cell::Micros(function.med_ns),
        Cell::Micros(function.min_ns),
        Cell::Micros(function.max_ns),
        Cell::Micros(function.stddev_ns),
    ]
}
