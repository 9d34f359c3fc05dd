//! Tables about the time in which a GPU did nothing: what the host did, from which line, and the longest gaps.

use super::*;
use crate::text::percent;
use crate::units::decimal;
use gpurec_trace::bounds::Sums as Bounded;

/// Limit on distinct causes, on those with their call sites, and on waits.
const MOST: usize = 65_536;

const MS: u64 = 1_000_000;

/// The causes that a row of the longest gaps keeps.
const SHOWN: usize = 8;

/// What the host did while the GPU was idle. Numbers are those of functions, requests and states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// In no CUDA call; after a call that waited for the GPU.
    Own(Option<u32>),
    Call(u32),
    /// In a request to nvidia.ko, in a call or in none.
    Driver(Option<u32>, u32),
    /// Off the CPU, with the state.
    OffCpu(Option<u32>, u32),
    /// The call that submitted the work had returned.
    Latency,
    /// It had returned before the gap began.
    Queued,
    /// The call is not known, or the time is too long ago.
    Unknown,
}

impl Cause {
    pub fn function(self) -> Option<u32> {
        match self {
            Cause::Call(function) => Some(function),
            Cause::Driver(function, _) | Cause::OffCpu(function, _) => function,
            _ => None,
        }
    }

    fn text(self, functions: &Functions) -> String {
        let name = |number: u32| functions.name(number as usize);
        match self {
            Cause::Own(None) => "own code, in no CUDA call".to_owned(),
            Cause::Own(Some(wait)) => format!("own code after {}", name(wait)),
            Cause::Call(function) => name(function).to_owned(),
            Cause::Driver(Some(function), request) => format!("{}, in {}", name(function), name(request)),
            Cause::Driver(None, request) => format!("{}, in no CUDA call", name(request)),
            Cause::OffCpu(Some(function), state) => {
                format!("{}, off the CPU ({})", name(function), name(state))
            }
            Cause::OffCpu(None, state) => format!("own code, off the CPU ({})", name(state)),
            Cause::Latency => "from the return of the call to the start on the GPU".to_owned(),
            Cause::Queued => "nothing: the work was queued already".to_owned(),
            Cause::Unknown => "not known".to_owned(),
        }
    }
}

/// Where in the code some time was spent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spot {
    /// In the call made here.
    At(Site),
    /// In own code, or in calls without a call site: after the call at the first site, before the call at the second.
    Between(Option<Site>, Option<Site>),
}

impl Spot {
    pub const NONE: Spot = Spot::Between(None, None);

    /// The call site under which the time is shown: for own code that of the call after it.
    pub fn site(self) -> Option<Site> {
        match self {
            Spot::At(site) => Some(site),
            Spot::Between(_, next) => next,
        }
    }

    pub fn site_of_call(self) -> Option<Site> {
        match self {
            Spot::At(site) => Some(site),
            Spot::Between(..) => None,
        }
    }

    fn after(self) -> Option<Site> {
        match self {
            Spot::At(_) => None,
            Spot::Between(last, _) => last,
        }
    }
}

pub struct Gap {
    pub device: u32,
    pub since_ns: u64,
    pub ns: u64,
    /// The thread whose work ended the gap, if known.
    pub thread: Option<Thread>,
    /// The work around it.
    pub after: u32,
    pub before: u32,
    /// The part for which the host is to blame, if it waited for the GPU when the gap began.
    pub waited_ns: u64,
    /// The call in which it waited, and its call site.
    pub wait: Option<(u32, Option<Site>)>,
    pub causes: Vec<(Cause, Spot, u64)>,
}

/// A row of the table of lines: the cause, its call site, and whether the time lies before that call.
type LineKey = (Cause, Site, bool);

#[derive(Default)]
struct LineSum {
    total: Total,
    /// For time before the call: the earlier calls that it followed, by that time.
    after: Places,
}

#[derive(Default)]
pub struct Sums {
    /// Number of lines of GPU work.
    pub work: u64,
    pub busy_ns: u64,
    pub late: u64,
    gaps: Total,
    waited: Total,
    by_cause: Bounded<Cause, Total, MOST>,
    by_line: Bounded<LineKey, LineSum, MOST>,
    by_wait: Bounded<(Option<u32>, Option<Site>), Total, MOST>,
    by_device: HashMap<u32, Total>,
    /// The longest first.
    longest: Vec<Gap>,
}

impl Sums {
    pub fn add(&mut self, mut gap: Gap, listed: usize) {
        self.gaps.add(gap.ns);
        self.by_device.entry(gap.device).or_default().add(gap.ns);
        if gap.waited_ns > 0 {
            self.waited.add(gap.waited_ns);
            let (function, site) = gap.wait.unzip();
            self.by_wait.of((function, site.flatten())).add(gap.waited_ns);
        }
        self.add_causes(&mut gap.causes);
        gap.causes.truncate(SHOWN);
        if self.longest.len() < listed || self.longest.last().is_some_and(|least| gap.ns > least.ns) {
            let key = |gap: &Gap| (std::cmp::Reverse(gap.ns), gap.since_ns, gap.device);
            let at = self.longest.partition_point(|known| key(known) < key(&gap));
            self.longest.insert(at, gap);
            self.longest.truncate(listed);
        }
    }

    /// Adds the causes of a gap, and puts the largest first. A gap counts once for a cause, and once for a line.
    fn add_causes(&mut self, causes: &mut [(Cause, Spot, u64)]) {
        let line = |cause: Cause, spot: Spot| Some((cause, spot.site()?, spot.site_of_call().is_none()));
        causes.sort_unstable_by_key(|(cause, spot, _)| (*cause, line(*cause, *spot), *spot));
        let (mut last_cause, mut last_line) = (None, None);
        for (cause, spot, ns) in causes.iter() {
            let is_new = last_cause.replace(*cause) != Some(*cause);
            self.by_cause.of(*cause).add_part(*ns, is_new);
            let Some(line) = line(*cause, *spot) else { continue };
            let is_new = last_line.replace(line) != Some(line);
            let of = self.by_line.of(line);
            of.total.add_part(*ns, is_new);
            if let Some(after) = spot.after() {
                of.after.weigh(after, *ns);
            }
        }
        causes.sort_by_key(|(.., ns)| std::cmp::Reverse(*ns));
    }

    pub fn report(&self, functions: &Functions, stacks: &Stacks) -> Report {
        if self.work == 0 {
            return nothing("There is no GPU work in this trace: record with --gpu.");
        }
        let mut report = Report::default();
        report.facts([
            ("busy_ns", self.busy_ns),
            ("idle_ns", self.gaps.sum),
            ("gaps_count", self.gaps.count),
            ("waited_gaps", self.waited.count),
            ("waited_gap_ns", self.waited.sum),
            ("late", self.late),
        ]);
        let whole = u128::from(self.busy_ns) + u128::from(self.gaps.sum);
        if self.gaps.count == 0 {
            // A list, not a title: the statement stays true if some calls are unknown.
            report.lines(vec!["The GPU was never idle between its first work and its last.".to_owned()]);
            return report;
        }
        let longest = self.longest.first().map_or(0, |gap| gap.ns);
        report.title(format!(
            "GPU idle: {}, {} % of the time from the first work to the last, in {}, the longest {}",
            duration(self.gaps.sum),
            percent(self.gaps.sum.into(), whole),
            plural(self.gaps.count, "gap"),
            duration(longest)
        ));
        if let Some(words) = self.hidden() {
            report.words(words);
        }
        self.causes(&mut report, functions);
        if self.waited.count > 0 {
            report.words(format!(
                "By synchronisation: {} ({} %) in {}, which began while the host waited for the GPU and ended with work of the thread that waited.",
                duration(self.waited.sum),
                percent(self.waited.sum.into(), self.gaps.sum.into()),
                plural(self.waited.count, "gap")
            ));
        }
        report.words(
            "Each gap is attributed to the thread whose work ended it. Own code is time outside of CUDA calls, computing or asleep.",
        );
        report.words_if(
            self.late > 0,
            format!(
                "{} came too late to be counted whole: some of the idle time was busy.",
                plural(self.late, "record")
            ),
        );
        self.places(&mut report, functions, stacks);
        self.waits(&mut report, functions, stacks);
        report.title("The longest");
        self.longest(&mut report, functions, stacks);
        self.devices(&mut report);
        report
    }

    /// One gap may hide all others: the first one of a run often lasts as long as its preparations.
    fn hidden(&self) -> Option<String> {
        let gap = self.longest.first().filter(|gap| self.gaps.count > 1 && gap.ns > self.gaps.sum / 2)?;
        let millis = |ns: u64| decimal(ns, 3);
        let (from, to) =
            (millis(gap.since_ns / MS), millis(gap.since_ns.saturating_add(gap.ns).div_ceil(MS)));
        Some(format!(
            "One gap, from {from} s to {to} s, has {} % of it: --from {to} reports what follows.",
            percent(gap.ns.into(), self.gaps.sum.into())
        ))
    }

    fn causes(&self, report: &mut Report, functions: &Functions) {
        let known = self.by_cause.by_key.iter();
        let mut all: Vec<(String, Total)> =
            known.map(|(cause, total)| (cause.text(functions), *total)).collect();
        if self.by_cause.others.count > 0 {
            all.push(("others".to_owned(), self.by_cause.others));
        }
        all.sort_by(|(a, x), (b, y)| y.sum.cmp(&x.sum).then(a.cmp(b)));
        report.table(
            Listing::new("causes", "causes", all)
                .millis(number("Total (ms)", "total_ns"), |(_, total)| total.sum)
                .share(number("(%)", "total_percent"), |(_, total)| Some((total.sum, self.gaps.sum)))
                .count(number("Times", "times"), |(_, total)| total.count)
                .cell(long("What the host did", "what"), |(what, _)| what.clone()),
        );
    }

    /// The same by call site.
    fn places(&self, report: &mut Report, functions: &Functions, stacks: &Stacks) {
        let mut all: Vec<_> = self.by_line.by_key.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.total.sum.cmp(&x.total.sum).then(a.cmp(b)));
        let what = |cause: Cause, is_before: bool| match (cause, is_before) {
            (_, false) => cause.text(functions),
            (Cause::Own(None), true) => "own code, before this call".to_owned(),
            (_, true) => format!("{}, before this call", cause.text(functions)),
        };
        report.section(
            "In which line",
            Listing::new("lines", "lines", all)
                .millis(number("Total (ms)", "total_ns"), |(_, line)| line.total.sum)
                .share(number("(%)", "total_percent"), |(_, line)| Some((line.total.sum, self.gaps.sum)))
                .count(number("Times", "times"), |(_, line)| line.total.count)
                .cell(long("What the host did", "what"), |((cause, _, is_before), _)| {
                    what(*cause, *is_before)
                })
                .cell(long("Call site", "call_site"), |((_, site, _), _)| stacks.text(*site))
                .cell(long("After the call at", "after_call_site"), |(_, line)| line.after.text(stacks)),
        );
    }

    /// The waits after which the host was late.
    fn waits(&self, report: &mut Report, functions: &Functions, stacks: &Stacks) {
        let mut all: Vec<_> = self.by_wait.by_key.iter().collect();
        all.sort_by(|(a, x), (b, y)| y.sum.cmp(&x.sum).then(a.cmp(b)));
        let name = |function: Option<u32>| function.map(|number| functions.name(number as usize));
        report.section(
            "By synchronisation, in which wait",
            Listing::new("waits", "waits", all)
                .millis(number("Total (ms)", "total_ns"), |(_, total)| total.sum)
                .share(number("(%)", "total_percent"), |(_, total)| Some((total.sum, self.gaps.sum)))
                .count(number("Times", "times"), |(_, total)| total.count)
                .cell(long("Wait", "wait"), |((function, _), _)| name(*function))
                .cell(long("Call site", "call_site"), |((_, site), _)| site.map(|site| stacks.text(site))),
        );
    }

    fn longest(&self, report: &mut Report, functions: &Functions, stacks: &Stacks) {
        let kernel = |number: u32| Cell::Kernel(functions.name(number as usize).to_owned());
        let what = |gap: &Gap, most: usize| {
            let part = |(cause, _, ns): &(Cause, Spot, u64)| {
                format!("{} {} %", cause.text(functions), percent((*ns).into(), gap.ns.into()))
            };
            gap.causes.iter().take(most).map(part).collect::<Vec<_>>().join("; ")
        };
        let spot = |gap: &Gap| gap.causes.iter().map(|(_, spot, _)| *spot).find(|spot| spot.site().is_some());
        let site = |site: Option<Site>| site.map(|site| stacks.text(site));
        report.table(
            Listing::new("longest", "gaps", &self.longest)
                .millis(number("Gap (ms)", "gap_ns"), |gap| gap.ns)
                .at(number("From (s)", "from_ns"), |gap| gap.since_ns)
                .count(number("Device", "device"), |gap| gap.device)
                .count(number("Thread", "tid").minor(), |gap| gap.thread.map(|(_, tid)| tid))
                .count(data("pid"), |gap| gap.thread.map(|(pid, _)| pid))
                .cell(long("Mostly", "mostly"), |gap| what(gap, 1))
                .cell(data("what"), |gap| what(gap, SHOWN))
                .cell(long("After", "after"), |gap| kernel(gap.after))
                .cell(long("Before", "before"), |gap| kernel(gap.before))
                .cell(long("Call site", "call_site"), |gap| site(spot(gap).and_then(Spot::site)))
                .micros(data("waited_ns"), |gap| gap.waited_ns)
                .cell(data("after_call_site"), |gap| site(spot(gap).and_then(Spot::after)))
                .more(self.gaps.count.saturating_sub(self.longest.len() as u64)),
        );
    }

    fn devices(&self, report: &mut Report) {
        let mut all: Vec<_> = self.by_device.iter().collect();
        all.sort_by_key(|(device, _)| **device);
        let table = Listing::new("devices", "devices", all)
            .count(number("Device", "device"), |(device, _)| **device)
            .millis(number("Idle (ms)", "idle_ns"), |(_, total)| total.sum)
            .count(number("Gaps", "gaps"), |(_, total)| total.count);
        if self.by_device.len() > 1 {
            report.title("By device");
            report.table(table);
        } else {
            report.data(table);
        }
    }
}
