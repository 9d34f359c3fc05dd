//! `report waste`: the summary's findings, the most costly first. docs/reading.md lists the patterns and their
//! thresholds.

use super::*;
use crate::text::percent;

pub const KIND: Kind = kind::<Waste>("waste", "what could be better, by what it costs")
    .table("findings", 20)
    .of_summary()
    .figures(&[shows("cuda_calls", "all that could be better", &[])]);

#[derive(Default)]
struct Waste {
    top: Option<usize>,
}

impl View for Waste {
    fn configure(&mut self, config: &ReportConfig) {
        self.top = config.top;
    }

    fn finish(&mut self, context: &Context) -> Report {
        let (mut findings, whole_ns) = (context.figures().findings.clone(), context.figures().duration_ns);
        // Findings without a known cost are mistakes: they follow those that cost time.
        findings.sort_by_key(|finding| std::cmp::Reverse((finding.cost_ns, finding.times)));
        findings.truncate(self.top.unwrap_or(usize::MAX));
        let mut report = Report::default();
        report.fact("duration_ns", whole_ns);
        report.data(
            Listing::new("findings", "findings", &findings)
                .micros(data("cost_ns"), |finding| finding.cost_ns)
                .share(data("cost_percent"), |finding| finding.cost_ns.map(|ns| (ns, whole_ns)))
                .count(data("times"), |finding| finding.times)
                .cell(data("what"), |finding| &finding.what)
                .cell(data("advice"), |finding| &finding.advice)
                .cell(data("call_site"), |finding| finding.site.as_ref())
                .count(data("call_site_times"), |finding| positive(finding.site_times)),
        );
        if findings.is_empty() {
            // A list, not a title: the statement stays true if some calls are unknown.
            report.lines(vec!["Nothing found that could be better.".to_owned()]);
            report.words(
                "Looked for: memory freed and allocated again, tiny launches, repeated copies with pageable memory, needless waits and waits for a single call, launch errors that no call asked for. What is below its threshold is left out (docs/reading.md).",
            );
            return report;
        }
        report.title(format!("What could be better: {}, by cost", plural(findings.len() as u64, "finding")));
        for (index, finding) in findings.iter().enumerate() {
            let cost = finding.cost_ns.map_or("no time, but a mistake".to_owned(), |ns| {
                format!("{} ({} % of the recording)", duration(ns), percent(ns.into(), whole_ns.into()))
            });
            let (times, what) = (plural(finding.times, "time"), clean(&finding.what));
            report.title(format!("{}. {cost}, {times}: {what}", index + 1));
            if let Some(site) = &finding.site {
                let times = match finding.site_times {
                    all if all == finding.times => "all of them".to_owned(),
                    some => format!("{some} of them, more than from anywhere else"),
                };
                report.words(format!("from: {} ({times})", clean(site)));
            }
            report.words(format!("try: {}", clean(&finding.advice)));
        }
        report
    }
}
