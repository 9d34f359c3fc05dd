//! Every report of a trace, made in one reading of it. In: the lines of a trace. Out: the figures of the summary and the
//! parts of each report as JSON, for the HTML page, which shows them all. Not here: how a page shows them.

use gpurec_trace::Notes;
use serde_json::value::{RawValue, to_raw_value};

use super::output::ON_A_PAGE;
use super::*;

pub struct All {
    views: Vec<(&'static Kind, Box<dyn View>)>,
    context: Context,
}

impl Default for All {
    fn default() -> All {
        let config = ReportConfig { format: Format::Json, ..ReportConfig::default() };
        let made = VIEWS.iter().map(|kind| {
            let mut view = (kind.make)();
            view.configure(&config);
            (kind, view)
        });
        let mut context = Context::new(true);
        context.rows = ON_A_PAGE;
        All { views: made.collect(), context }
    }
}

impl All {
    pub fn line(&mut self, line: &Line) {
        self.context.line(line);
        for (_, view) in &mut self.views {
            view.line(line, &self.context);
        }
    }

    /// The reports as text: as values they take ten times as much memory.
    pub fn finish(self, notes: &Notes) -> Result<(Figures, Vec<Box<RawValue>>)> {
        let All { views, mut context } = self;
        context.notes = notes.clone();
        context.within();
        let mut reports = Vec::new();
        for (kind, mut view) in views {
            context.unknown_figures.clear();
            context.unanswered = false;
            // The figures name the processes, once.
            let report = answer(kind, &mut *view, &mut context);
            drop(view);
            reports.push(to_raw_value(&report.page(kind.name, kind.what, &context.sentences(false)))?);
        }
        Ok((context.into_figures(), reports))
    }
}
