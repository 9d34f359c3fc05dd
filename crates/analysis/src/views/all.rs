//! Every report of a trace, made in one reading of it. In: the lines of a trace. Out: the figures of the summary and the
//! parts of each report, for the HTML page, which shows them all. Not here: how a page shows them.

use gpurec_trace::Notes;
use serde_json::Value;

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
        All { views: made.collect(), context: Context::new(true) }
    }
}

impl All {
    pub fn line(&mut self, line: &Line) {
        self.context.line(line);
        for (_, view) in &mut self.views {
            view.line(line, &self.context);
        }
    }

    pub fn finish(self, notes: &Notes) -> (Figures, Vec<Value>) {
        let All { views, mut context } = self;
        context.notes = notes.clone();
        context.within();
        let figures = context.figures().clone();
        let reports = views.into_iter().map(|(kind, mut view)| {
            context.unknown_figures.clear();
            context.unanswered = false;
            // The figures name the processes, once.
            let report = answer(kind, &mut *view, &mut context);
            report.page(kind.name, kind.what, &context.sentences(false))
        });
        let reports = reports.collect();
        (figures, reports)
    }
}
