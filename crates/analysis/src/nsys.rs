//! The columns of nsys's cuda_api_sum and cuda_gpu_kern_sum. In: the figures of a function or a kernel. Out: the
//! columns, and the cells of its row. Tables that show more append their own columns and cells.

use crate::figures::Function;
use crate::gpu::figures::GpuKernelFigures;
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

const KERNEL: [Column; 9] = {
    let mut columns = FUNCTION;
    columns[2] = number("GPU time (us)", "total_ns");
    columns[3] = number("Instances", "instances");
    columns
};

/// The columns of functions, followed by more. ALL is the number of both.
pub const fn columns<const MORE: usize, const ALL: usize>(more: [Column; MORE]) -> [Column; ALL] {
    followed(FUNCTION, more)
}

/// The columns of kernels, in the same way.
pub const fn kernel_columns<const MORE: usize, const ALL: usize>(more: [Column; MORE]) -> [Column; ALL] {
    followed(KERNEL, more)
}

const fn followed<const MORE: usize, const ALL: usize>(
    first: [Column; 9],
    more: [Column; MORE],
) -> [Column; ALL] {
    let mut all = [first[0]; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < first.len() { first[at] } else { more[at - first.len()] };
        at += 1;
    }
    all
}

pub fn kernel_cells(kernel: &GpuKernelFigures, total_ns: u128) -> Vec<Cell> {
    vec![
        Cell::Kernel(kernel.name.clone()),
        Cell::Share(kernel.total_ns.into(), total_ns),
        Cell::Micros(kernel.total_ns),
        Cell::Count(kernel.instances),
        Cell::Micros(kernel.avg_ns),
        Cell::Micros(kernel.med_ns),
        Cell::Micros(kernel.min_ns),
        Cell::Micros(kernel.max_ns),
        Cell::Micros(kernel.stddev_ns),
    ]
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
