//! The columns of nsys's cuda_api_sum and cuda_gpu_kern_sum. In: the figures of a function or a kernel. Out: the
//! columns, and the cells of its row. Tables that show more append their own columns and cells.

use crate::figures::Function;
use crate::gpu::figures::GpuKernelFigures;
use crate::table::{Cell, Column, long, number};

const NAME: Column = long("Name", "name");

/// The columns of a function's or a kernel's times, without the name.
const fn times(total: &'static str, count: (&'static str, &'static str)) -> [Column; 8] {
    [
        number("Time (%)", "time_percent"),
        number(total, "total_ns"),
        number(count.0, count.1),
        number("Avg (us)", "avg_ns"),
        number("Med (us)", "med_ns"),
        number("Min (us)", "min_ns"),
        number("Max (us)", "max_ns"),
        number("StdDev (us)", "stddev_ns"),
    ]
}

/// The columns of functions, followed by more. ALL is the number of both.
pub const fn columns<const MORE: usize, const ALL: usize>(more: [Column; MORE]) -> [Column; ALL] {
    joined([&[NAME], &times("Total (us)", ("Calls", "calls")), &more])
}

/// The columns of kernels. The name comes last, as in nsys: names of templates have hundreds of characters.
pub const fn kernel_columns<const MORE: usize, const ALL: usize>(more: [Column; MORE]) -> [Column; ALL] {
    joined([&times("GPU time (us)", ("Instances", "instances")), &more, &[NAME]])
}

const fn joined<const ALL: usize>(parts: [&[Column]; 3]) -> [Column; ALL] {
    let mut all = [NAME; ALL];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut of_part = 0;
        while of_part < parts[part].len() {
            all[at] = parts[part][of_part];
            (of_part, at) = (of_part + 1, at + 1);
        }
        part += 1;
    }
    all
}

/// The cells of a row, with `more` before the name. `total_ns` is the GPU time of all kernels.
pub fn kernel_cells(
    kernel: &GpuKernelFigures,
    total_ns: u128,
    more: impl IntoIterator<Item = Cell>,
) -> Vec<Cell> {
    let GpuKernelFigures { avg_ns, med_ns, min_ns, max_ns, stddev_ns, .. } = *kernel;
    let each = [avg_ns, med_ns, min_ns, max_ns, stddev_ns];
    let times = cells_of((kernel.total_ns, total_ns), kernel.instances, each);
    times.chain(more).chain([Cell::Kernel(kernel.name.clone())]).collect()
}

/// The cells of a row. `total_ns` is the time of all functions.
pub fn cells(function: &Function, total_ns: u128) -> Vec<Cell> {
    let Function { avg_ns, med_ns, min_ns, max_ns, stddev_ns, .. } = *function;
    let each = [avg_ns, med_ns, min_ns, max_ns, stddev_ns];
    let name = function.name.as_str().into();
    [name].into_iter().chain(cells_of((function.total_ns, total_ns), function.calls, each)).collect()
}

fn cells_of((part_ns, all_ns): (u64, u128), count: u64, each: [u64; 5]) -> impl Iterator<Item = Cell> {
    let first = [Cell::Share(part_ns.into(), all_ns), Cell::Micros(part_ns), Cell::Count(count)];
    first.into_iter().chain(each.map(Cell::Micros))
}
