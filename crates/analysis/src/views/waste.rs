//! `report waste`: the summary's findings, the most costly first. docs/reading.md lists the patterns and their
//! thresholds.

use super::output::Report;
use super::{ReportConfig, Told, View};
use crate::Figures;
use crate::Summary;
use crate::figures::Finding;
use crate::table::{Cell, Column, Table, data, number};
use crate::text::{clean, duration, percent, plural};
use gpurec_trace::Line;

const COLUMNS: &[Column] =
    &[number("", "cost_ns"), data("cost_percent"), number("", "times"), data("what"), data("advice")];

pub fn make(config: &ReportConfig) -> Box<dyn View> {
    Box::new(Waste { summary: Summary::new(), top: config.top })
}

struct Waste {
    summary: Summary,
    top: Option<usize>,
}

impl View for Waste {
    fn line(&mut self, line: &Line) {
        self.summary.add(line);
    }

    fn finish(&mut self, told: &Told) -> Report {
        let Figures { mut findings, duration_ns, .. } = self.summary.of_file(&told.notes);
        // Findings without a known cost are mistakes: they follow those that cost time.
        findings.sort_by_key(|finding| std::cmp::Reverse((finding.cost_ns, finding.times)));
        findings.truncate(self.top.unwrap_or(usize::MAX));
        report(&findings, duration_ns)
    }
}

fn report(findings: &[Finding], whole_ns: u64) -> Report {
    let mut report = Report::default();
    report.fact("duration_ns", whole_ns);
    let mut table = Table::new("findings", "findings", COLUMNS);
    for finding in findings {
        table.row(vec![
            Cell::optional(finding.cost_ns, Cell::Micros),
            Cell::optional(finding.cost_ns, |ns| Cell::Share(ns.into(), whole_ns.into())),
            Cell::Count(finding.times),
            finding.what.as_str().into(),
            finding.advice.as_str().into(),
        ]);
    }
    report.data(table);
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
        let cost = match finding.cost_ns {
            Some(ns) => {
                format!("{} ({} % of the recording)", duration(ns), percent(ns.into(), whole_ns.into()))
            }
            None => "no time, but a mistake".to_owned(),
        };
        report.title(format!(
            "{}. {cost}, {}: {}",
            index + 1,
            plural(finding.times, "time"),
            clean(&finding.what)
        ));
        report.words(format!("try: {}", clean(&finding.advice)));
    }
    report
}
