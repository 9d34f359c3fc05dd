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

/// The cells of a row. `total_ns` is the GPU time of all kernels.
pub fn kernel_cells(kernel: &GpuKernelFigures, total_ns: u128) -> Vec<Cell> {
    let GpuKernelFigures { avg_ns, med_ns, min_ns, max_ns, stddev_ns, .. } = *kernel;
    let each = [avg_ns, med_ns, min_ns, max_ns, stddev_ns];
    row(Cell::Kernel(kernel.name.clone()), (kernel.total_ns, total_ns), kernel.instances, each)
}

/// The cells of a row. `total_ns` is the time of all functions.
pub fn cells(function: &Function, total_ns: u128) -> Vec<Cell> {
    let Function { avg_ns, med_ns, min_ns, max_ns, stddev_ns, .. } = *function;
    let each = [avg_ns, med_ns, min_ns, max_ns, stddev_ns];
    row(function.name.as_str().into(), (function.total_ns, total_ns), function.calls, each)
}

fn row(name: Cell, (part_ns, all_ns): (u64, u128), count: u64, each: [u64; 5]) -> Vec<Cell> {
    let first = [name, Cell::Share(part_ns.into(), all_ns), Cell::Micros(part_ns), Cell::Count(count)];
    first.into_iter().chain(each.map(Cell::Micros)).collect()
}
