//! Tables about gaps: what filled them, how long they are, and the longest ones.

use super::*;
use crate::text::percent;

/// Bounds of the classes: half decades, in us.
const BOUNDS_US: [u64; 15] =
    [0, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 10_000_000];

/// What the host did during a gap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Outside of all recorded activity.
    Own,
    Call(usize),
    /// In ioctls and functions of nvidia.ko, in calls of this function or outside any call.
    Driver(Option<usize>),
    OffCpu(Option<usize>),
}

/// Stands for the functions beyond the limit.
pub const OTHERS: usize = usize::MAX;

pub struct Gap {
    pub since_ns: u64,
    pub ns: u64,
    pub thread: Thread,
    /// The kernels around the gap, or the calls if the kernels are unknown.
    pub after: Option<usize>,
    pub before: usize,
    /// The largest time first.
    pub causes: Vec<(Cause, u64)>,
    /// Where the host was when the gap ended: the call site of the launch that ended it.
    pub site: Option<Site>,
}

/// Limit on call sites that end gaps.
const SITES: usize = 65_536;

impl Gap {
    fn sum(&self, of: impl Fn(&Cause) -> bool) -> u64 {
        let causes = self.causes.iter().filter(|(cause, _)| of(cause));
        causes.fold(0, |sum: u64, (_, ns)| sum.saturating_add(*ns))
    }
}

#[derive(Default)]
pub struct Sums {
    pub launch_calls: u64,
    gaps: Total,
    by_length: [Total; BOUNDS_US.len()],
    by_cause: HashMap<Cause, Total>,
    by_site: HashMap<Site, Total>,
    /// The longest first.
    longest: Vec<Gap>,
}

impl Sums {
    pub fn add(&mut self, gap: Gap, listed: usize) {
        self.gaps.add(gap.ns);
        let at = BOUNDS_US.iter().rposition(|us| gap.ns >= us * 1000).unwrap_or(0);
        self.by_length[at].add(gap.ns);
        for (cause, ns) in &gap.causes {
            self.by_cause.entry(*cause).or_default().add(*ns);
        }
        if let Some(total) = gap.site.and_then(|site| entry(&mut self.by_site, site, SITES)) {
            total.add(gap.ns);
        }
        if self.longest.len() < listed || self.longest.last().is_some_and(|least| gap.ns > least.ns) {
            let at = self.longest.partition_point(|known| known.ns >= gap.ns);
            self.longest.insert(at, gap);
            self.longest.truncate(listed);
        }
    }

    pub fn report(&self, functions: &Functions, stacks: &Stacks) -> Report {
        if self.gaps.count == 0 {
            return nothing("There is no time between launches in this trace: it has fewer than two.");
        }
        let mut report = Report::default();
        report.facts([
            ("launch_calls", self.launch_calls),
            ("gaps", self.gaps.count),
            ("gap_ns", self.gaps.sum),
        ]);
        let longest = self.longest.first().map_or(0, |gap| gap.ns);
        report.title(format!(
            "Between {}: {} in {}, the longest {}",
            plural(self.launch_calls, "launch call"),
            duration(self.gaps.sum),
            plural(self.gaps.count, "gap"),
            duration(longest)
        ));
        self.causes(&mut report, functions);
        report.title("How long the gaps are");
        self.lengths(&mut report);
        report.title("The longest");
        self.longest(&mut report, functions, stacks);
        self.sites(&mut report, stacks);
        report
    }

    fn sites(&self, report: &mut Report, stacks: &Stacks) {
        let mut all: Vec<_> = self.by_site.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.cmp(x).then(a.cmp(b)));
        report.section(
            "Where the host was when the gaps ended",
            Listing::new("ended_by", "call sites", all)
                .millis(number("Total (ms)", "total_ns"), |(_, total)| total.sum)
                .share(number("(%)", "total_percent"), |(_, total)| Some((total.sum, self.gaps.sum)))
                .count(number("Gaps", "gaps"), |(_, total)| total.count)
                .cell(long("Call site of the launch", "call_site"), |(site, _)| stacks.text(**site)),
        );
    }

    fn causes(&self, report: &mut Report, functions: &Functions) {
        let mut all: Vec<_> = self.by_cause.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.sum.cmp(&x.sum).then(a.cmp(b)));
        report.table(
            Listing::new("causes", "causes", all)
                .millis(number("Total (ms)", "total_ns"), |(_, total)| total.sum)
                .share(number("(%)", "total_percent"), |(_, total)| Some((total.sum, self.gaps.sum)))
                .count(number("Gaps", "gaps"), |(_, total)| total.count)
                .cell(long("What the host did", "what"), |(cause, _)| named(**cause, functions)),
        );
        report.words(
            "A gap is time in which no thread of the process launches. While the process waits in one, the GPU works. Own code is time outside of CUDA calls, computing or asleep.",
        );
    }

    fn lengths(&self, report: &mut Report) {
        let used = |total: &Total| total.count > 0;
        let first = self.by_length.iter().position(used).unwrap_or(0);
        let last = self.by_length.iter().rposition(used).unwrap_or(0);
        let length = |at: usize| {
            let to = BOUNDS_US.get(at + 1).map_or("and more".to_owned(), |to| format!("to {}", whole(*to)));
            format!("{} {to}", whole(BOUNDS_US[at]))
        };
        report.table(
            Listing::new("lengths", "lengths", first..=last)
                .cell(text("Length", "length"), |at| length(*at))
                .micros(data("from_ns"), |at| BOUNDS_US[*at] * 1000)
                .count(number("Gaps", "gaps"), |at| self.by_length[*at].count)
                .millis(number("Total (ms)", "total_ns"), |at| self.by_length[*at].sum)
                .bar(text("Share of the gaps' time", "total_percent"), 40, |at| {
                    (self.by_length[*at].sum, self.gaps.sum)
                })
                .whole(),
        );
    }

    fn longest(&self, report: &mut Report, functions: &Functions, stacks: &Stacks) {
        let kernel = |number: usize| Cell::Kernel(functions.name(number).to_owned());
        let what = |gap: &Gap| {
            // A cause below a hundredth of the gap explains nothing.
            let worth = |(_, ns): &&(Cause, u64)| u128::from(*ns) * 100 >= u128::from(gap.ns);
            let part = |(cause, ns): &(Cause, u64)| {
                format!("{} {} %", named(*cause, functions), percent((*ns).into(), gap.ns.into()))
            };
            gap.causes.iter().filter(worth).take(3).map(part).collect::<Vec<_>>().join("; ")
        };
        report.table(
            Listing::new("longest", "gaps", &self.longest)
                .millis(number("Gap (ms)", "gap_ns"), |gap| gap.ns)
                .at(number("From (s)", "from_ns"), |gap| gap.since_ns)
                .count(number("Thread", "tid"), |gap| gap.thread.1)
                .count(data("pid"), |gap| gap.thread.0)
                .cell(long("After", "after"), |gap| gap.after.map(kernel))
                .cell(long("Before", "before"), |gap| kernel(gap.before))
                .cell(long("What the host did", "what"), |gap| what(gap))
                .cell(long("Ended at", "call_site"), |gap| gap.site.map(|site| stacks.text(site)))
                .micros(data("own_ns"), |gap| gap.sum(|cause| matches!(cause, Cause::Own)))
                .micros(data("in_calls_ns"), |gap| gap.sum(|cause| matches!(cause, Cause::Call(_))))
                .micros(data("in_driver_ns"), |gap| gap.sum(|cause| matches!(cause, Cause::Driver(_))))
                .micros(data("off_cpu_ns"), |gap| gap.sum(|cause| matches!(cause, Cause::OffCpu(_))))
                .more(self.gaps.count.saturating_sub(self.longest.len() as u64)),
        );
    }
}

fn named(cause: Cause, functions: &Functions) -> String {
    let name = |function: usize| if function == OTHERS { "other calls" } else { functions.name(function) };
    match cause {
        Cause::Own => "own code".to_owned(),
        Cause::Call(function) => name(function).to_owned(),
        Cause::Driver(Some(function)) => format!("{}, in the driver", name(function)),
        Cause::Driver(None) => "the driver, in no CUDA call".to_owned(),
        Cause::OffCpu(Some(function)) => format!("{}, off the CPU", name(function)),
        Cause::OffCpu(None) => "the driver, off the CPU".to_owned(),
    }
}

/// A bound without decimals.
fn whole(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{} s", us / 1_000_000),
    }
}
